"""Rejections that return while runs are reset, continued as new or killed: nothing is lost or repeated."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.pages import browser, send
from support.resets import resets
from support.temporal_runs import Run, Temporal, chain, check_healthy, pending, refusals, result, status, until, wedges

from integration.pipelines.test_changes_requested import reviewed
from integration.pipelines.test_gates import writer
from integration.pipelines.test_pipelines import echo
from standfast import Approval, InputError, Pipeline, Step, StepContext, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel


async def start(temporal: Temporal, asked: Pipeline) -> Run:
    return await start_pipeline(temporal.client, asked.name, run_key=temporal.session(), task_queue=temporal.name)


async def waits_at(run: Run, gate: str) -> dict[str, Any]:
    async def found() -> Any:
        return [item for item in await pending(run) if item["name"] == gate]

    (item,) = await until(found)
    return dict(item)


def paying(effects: list[str]) -> Pipeline:
    """Return a pipeline that pays before a gate, which goes back to before that, within a map and outside of it."""

    @tool
    async def pay(to: str) -> str:
        """Pay."""
        effects.append(to)
        return f"paid {to}"

    def to(ctx: StepContext) -> dict[str, str]:
        return {"to": f"{ctx.input or ''} {ctx.feedback}"}

    inner = (
        pipeline("inner")
        .step("pay", run=pay, input=to)
        .step("ok", approval=Approval(on_reject="pay"))
        .step("end", run=pay, input=lambda ctx: {"to": f"end of {ctx.prev['pay']}"})
    )
    each = Step("each", pipeline=inner.build(), input=lambda ctx: ctx.item)
    return (
        pipeline("w")
        .map("all", each, over=lambda ctx: ["x", "y"])
        .step("pay-all", run=pay, input=to)
        .step("ok-all", approval=Approval(on_reject="pay-all"))
        .build()
    )


@pytest.mark.slow
async def test_a_reset_to_any_point_repeats_no_effect_and_asks_nothing_again(temporal: Temporal) -> None:
    effects: list[str] = []
    asked = paying(effects)
    async with temporal.worker(pipelines=[asked]):
        run = await start(temporal, asked)
        for gate, decision, comment in (
            ("all/0/ok", "reject", "more"), ("all/1/ok", "approve", None), ("all/0/ok_2", "approve", None),
            ("ok-all", "reject", "all"), ("ok-all_2", "approve", None),
        ):  # fmt: skip
            await waits_at(run, gate)
            await temporal.people.decide(run.id, gate, decision, by="ada", comment=comment)
        before = await result(run)
        assert sorted(effects) == sorted(
            ["x None", "x more", "y None", "end of paid x more", "end of paid y None", " None", " all"]
        )
        count = len(effects)
        async for again in resets(temporal, run):
            assert (await result(again))["outputs"] == before["outputs"]
            await check_healthy(again)
    assert len(effects) == count


@pytest.mark.slow
async def test_it_goes_back_also_after_the_run_has_gone_on_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 25)
    asked = reviewed(max_rejections=6, show=lambda ctx: {"draft": ctx.prev["write"]["response"], "n": len(ctx.prev)})
    model = ScriptedModel(echo)
    async with temporal.worker(writer, pipelines=[asked], llm=model):
        run = await start(temporal, asked)
        for number in range(1, 6):
            gate = "ok" if number == 1 else f"ok_{number}"
            item = await waits_at(run, gate)
            assert [one["label"] for one in item["shown"]] == ["draft", "n"]
            await temporal.people.decide(run.id, gate, "reject", comment=f"c{number}", digest=item["digest"])
        await waits_at(run, "ok_6")
        await temporal.people.decide(run.id, "ok_6", "approve")
        ended = await result(run)
        assert ended["outputs"]["write"]["response"].startswith("<c5|<c4|<c3|<c2|<c1|<write>")
        histories = await chain(temporal.client, run)
        assert [wedges(history) for history in histories] == [[]] * len(histories)
    assert len(histories) > 1
    assert len(model.calls) == 7


async def test_a_worker_that_comes_back_continues_where_the_rejection_led(temporal: Temporal) -> None:
    asked, model = reviewed(), ScriptedModel(echo)
    async with temporal.worker(writer, pipelines=[asked], llm=model):
        run = await start(temporal, asked)
        await waits_at(run, "ok")
    await run.signal("reject", {"gate": "ok", "comment": "no"})  # without a worker
    await run.signal("approve", {"gate": "ok"})  # is too late
    async with temporal.worker(writer, pipelines=[asked], llm=model):
        await waits_at(run, "ok_2")
        assert "ok was rejected already" in " ".join(await refusals(run))
    async with temporal.worker(writer, pipelines=[asked], llm=model):
        assert (await status(run))["running"] == ["ok_2"]
        await temporal.people.decide(run.id, "ok_2", "approve")
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert len(model.calls) == 3


async def test_nobody_decides_early_on_what_a_gate_declares(temporal: Temporal) -> None:
    asked = reviewed(show=lambda ctx: ctx.prev["write"]["response"])
    async with temporal.worker(writer, pipelines=[asked], llm=ScriptedModel(echo)):
        run = await start(temporal, asked)
        await run.signal("approve", {"gate": "ok"})
        await run.signal("approve", {"gate": "ok_2"})
        item = await waits_at(run, "ok")

        async def refused() -> bool:
            return "digest is missing" in " ".join(await refusals(run))

        assert await until(refused)
        await temporal.people.decide(run.id, "ok", "reject", digest=item["digest"])
        again = await waits_at(run, "ok_2")
        assert again["digest"] != item["digest"]
        with pytest.raises(InputError, match="has changed"):
            await temporal.people.decide(run.id, "ok_2", "approve", digest=item["digest"])


async def test_two_who_decide_at_the_same_time_send_it_back_once(temporal: Temporal) -> None:
    asked, model = reviewed(), ScriptedModel(echo)
    async with temporal.worker(writer, pipelines=[asked], llm=model):
        run = await start(temporal, asked)
        item = await waits_at(run, "ok")
        sent = [
            temporal.people.decide(run.id, "ok", "reject", by=by, comment=by, digest=item["digest"])
            for by in ("ada", "bob", "eve")
        ]
        came = await asyncio.gather(*sent, return_exceptions=True)
        assert sum(isinstance(one, InputError) for one in came) == 2
        await waits_at(run, "ok_2")
        await temporal.people.decide(run.id, "ok_2", "approve")
        assert (await result(run))["status"] == "complete"
    assert len(model.calls) == 3


async def test_the_page_shows_a_run_that_was_sent_back_with_all_its_rounds(temporal: Temporal) -> None:
    asked = reviewed()
    async with temporal.worker(writer, pipelines=[asked], llm=ScriptedModel(echo)), browser(temporal) as client:
        run = await start(temporal, asked)
        await waits_at(run, "ok")
        await send(client, f"/runs/{run.id}", run.id, "decide", decision="reject", comment="shorter")
        await waits_at(run, "ok_2")
        page = await client.get(f"/runs/{run.id}")
        assert page.status_code == 200
        assert "&lt;shorter|&lt;write&gt;|" in page.text  # what the gate shows now
        step = await client.get(f"/runs/{run.id}/write_2")
        assert step.status_code == 200
        assert "shorter|&lt;write&gt;|" in step.text
        await send(client, f"/runs/{run.id}", run.id, "decide", decision="approve")
        assert (await result(run))["status"] == "complete"
        assert (await client.get(f"/runs/{run.id}")).status_code == 200


# --- kill -9 in process ---

PROGRAM = '''
import asyncio, os, signal, sys
from standfast import Approval, pipeline, run_pipeline, sqlite_store, tool

path, effects, killed, decision = sys.argv[1:]

def stop(where):
    if where == killed:
        os.kill(os.getpid(), signal.SIGKILL)

@tool
async def pay(to: str) -> str:
    """Pay."""
    stop("before " + to)
    with open(effects, "a") as file:
        file.write(to + "\\n")
    stop("after " + to)
    return "paid"

def to(ctx):
    stop("input " + str(ctx.feedback))
    return {"to": str(ctx.feedback)}

w = (
    pipeline("w")
    .step("pay", run=pay, input=to)
    .step("ok", approval=Approval(on_reject="pay"))
    .build()
)

async def main():
    async with sqlite_store(path) as store:
        given = [{"gate": "ok", "decision": "reject", "comment": "again"}] if decision else []
        went = await run_pipeline(w, store=store, run_key="k", decisions=given)
        print(went.status, went.pending_step or went.error_reason)

asyncio.run(main())
'''


async def process(folder: Path, killed: str = "", decision: str = "") -> str:
    """Run the program; return what it says, or "killed"."""
    arguments = [str(folder / "s.db"), str(folder / "effects"), killed, decision]
    ran = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *arguments, stdout=asyncio.subprocess.PIPE, env=os.environ.copy()
    )
    said = (await ran.communicate())[0].decode().strip()
    return "killed" if ran.returncode == -signal.SIGKILL else said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "then", "paid"),
    [
        ("input again", "pending ok_2", ["None", "again"]),  # nothing of the round had begun
        ("before again", "error tool-failed", ["None"]),  # it may have paid: never again, and never hidden
        ("after again", "error tool-failed", ["None", "again"]),
    ],
)
async def test_a_process_that_is_killed_in_the_second_round_neither_loses_the_rejection_nor_pays_twice(
    tmp_path: Path, killed: str, then: str, paid: list[str]
) -> None:
    assert await process(tmp_path) == "pending ok"
    assert await process(tmp_path, killed, "reject") == "killed"
    assert await process(tmp_path) == then
    assert (tmp_path / "effects").read_text().split() == paid
