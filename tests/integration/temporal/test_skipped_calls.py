"""A person skips calls and steps that no worker has any more, with a reason that the model reads."""

import json
from functools import partial
from typing import Any

import pytest
from support.commands import done, refused
from support.deploys import LosesCalls, by_turn, clerk, is_being_settled, read, waits_for
from support.temporal_runs import Run, Temporal, check_healthy, pending, refusals, result, until, waiting
from support.transcripts import asks_for, call, kind_of

from standfast import Agent, Approval, InputError, Loop, Step, Tool, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel

SKIP = {"action": "skip", "reason": "the shop has closed", "by": "ada"}


def post(name: str = "post", **options: Any) -> Tool[..., Any]:
    @tool(name=name, approval=Approval(message="May it?"), **options)
    async def post(text: str) -> str:
        """Post a text."""
        return f"posted {text}"

    return post


async def waits_for_post(temporal: Temporal, *names: str) -> Run:
    """Return a run whose approved calls lack a worker; a worker of another version waits to be entered."""
    calls = [call(name, f"c{number}", text="x") for number, name in enumerate(names, 1)]
    async with temporal.worker(clerk(*map(post, dict.fromkeys(names))), llm=ScriptedModel([asks_for(*calls)])):
        run = await temporal.start("clerk")
        await pending(run, len(names))
    async with temporal.worker(clerk(), llm=ScriptedModel([])):
        for one in calls:
            await temporal.people.decide(run.id, one.id, "approve", by="ada")
        await until(partial(waits_for, run, "worker"))
    return run


async def test_a_call_that_no_worker_has_is_skipped_with_a_reason_that_the_model_reads(temporal: Temporal) -> None:
    run = await waits_for_post(temporal, "post")
    async with temporal.worker(clerk(), llm=ScriptedModel(["done"])):
        (item,) = await pending(run)
        assert (item["kind"], item["name"], item["can_skip"]) == ("worker", "post", True)
        await temporal.people.resume(run.id, "skip", reason="the shop has closed", by="ada")
        assert (await result(run))["status"] == "complete"
    told = {"c1": '{"error": "Not run: skipped by ada: the shop has closed"}'}
    assert read(await temporal.messages()) == told
    await check_healthy(run)


async def test_a_skip_by_signal_counts_too(temporal: Temporal) -> None:
    run = await waits_for_post(temporal, "post")
    async with temporal.worker(clerk(), llm=ScriptedModel(["done"])):
        await run.signal("resume", SKIP | {"name": "post"})
        assert (await result(run))["status"] == "complete"
    assert "skipped by ada" in read(await temporal.messages())["c1"]


@pytest.mark.slow
async def test_a_skip_says_what_it_is_for_where_several_things_wait(temporal: Temporal) -> None:
    run = await waits_for_post(temporal, "post", "mail")
    async with temporal.worker(clerk(post("mail")), llm=ScriptedModel(["done"])):
        (item,) = await pending(run)
        assert item["name"] == "post"  # calls run one after the other
        with pytest.raises(InputError, match="mail does not wait for that; waiting: post"):
            await temporal.people.resume(run.id, "skip", name="mail", reason="no")
        with pytest.raises(InputError, match="needs a reason"):
            await temporal.people.resume(run.id, "skip", name="post")
        with pytest.raises(InputError, match="the run is not paused"):
            await temporal.people.resume(run.id)
        await temporal.people.resume(run.id, "skip", name="post", reason="no", by="ada")
        assert (await result(run))["status"] == "complete"
    assert read(await temporal.messages()) == {"c1": '{"error": "Not run: skipped by ada: no"}', "c2": "posted x"}


async def test_what_waits_for_its_agent_cannot_be_skipped(temporal: Temporal) -> None:
    async with temporal.worker(Agent("other"), llm=ScriptedModel([])):
        run = await temporal.start("clerk")
        (item,) = await pending(run)
        assert "can_skip" not in item
        await run.signal("resume", SKIP)
        await until(partial(refusals, run))
        assert await refusals(run) == ["resume: the run does not wait for a call or step that can be skipped"]
        assert [one["kind"] for one in await waiting(run)] == ["worker"]


@pytest.mark.slow
async def test_the_command_skips(temporal: Temporal) -> None:
    run = await waits_for_post(temporal, "post")
    async with temporal.worker(clerk(), llm=ScriptedModel(["done"])):
        await refused(temporal, "resume", run.id, "--skip", code=2)
        assert "--skip --name post" in await done(temporal, "pending", run.id)
        await done(temporal, "resume", run.id, "--skip", "--reason", "the shop has closed")
        assert (await result(run))["status"] == "complete"
    assert "skipped by ada: the shop has closed" in read(await temporal.messages())["c1"]


@pytest.mark.slow
async def test_a_skipped_call_that_may_have_run_says_so_to_the_model(temporal: Temporal) -> None:
    @tool(verify=lambda: None)
    async def pay() -> str:
        """Pay."""
        return "paid"

    script = by_turn(asks_for(call("pay", "c1")), "done")
    async with temporal.worker(clerk(pay), llm=ScriptedModel(script), store=LosesCalls(temporal.store)):
        run = await temporal.start("clerk")
        await until(partial(is_being_settled, run))
    async with temporal.worker(clerk(), llm=ScriptedModel(script)):
        await until(partial(waits_for, run, "worker"))
        await temporal.people.resume(run.id, "skip", reason="the bank has closed", by="ada")
        assert (await result(run))["status"] == "complete"
    messages = await temporal.messages()
    assert kind_of(messages, "c1") == "tool-durability-error"
    assert "not looked up, skipped by ada: the bank has closed" in json.loads(read(messages)["c1"])["error"]


# --- steps of pipelines ---


def gated(*later: Step[Any]) -> Any:
    builder = pipeline("line").step("check", approval=Approval(message="Go on?"))
    for step in later:
        builder = builder.step(step)
    return builder.build()


def send(name: str = "send") -> Step[Any]:
    @tool(name=f"{name}_out")
    async def send_out() -> str:
        """Send."""
        return "sent"

    return Step(name, run=send_out)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("removed", ["the step", "the tool alone"])
async def test_a_skipped_step_fails_its_pipeline_in_the_words_of_who_skipped_it(
    temporal: Temporal, removed: str
) -> None:
    """Later steps were written to read its output; a restart from one of them keeps what came before."""
    closer = Agent("closer")
    started = gated(send(), Step("last", agent=closer))
    async with temporal.worker(closer, pipelines=[started], llm=ScriptedModel(["closed"])):
        run = await start_pipeline(
            temporal.client, "line", input={}, run_key=temporal.session(), task_queue=temporal.name
        )
        await pending(run)
    other = gated(Step("last", agent=closer)) if removed == "the step" else gated(
        Step("send", run=send("mail").run), Step("last", agent=closer)
    )  # fmt: skip
    async with temporal.worker(closer, pipelines=[other], llm=ScriptedModel(["closed"])):
        await run.execute_update("decide", {"gate": "check", "decision": "approve", "by": "ada"})
        if removed == "the step":
            await until(partial(waits_for, run, "worker"))
            assert [item["name"] for item in await waiting(run)] == ["send"]
            await temporal.people.resume(run.id, "skip", reason="no longer sent", by="ada")
        ended = await result(run)
        if removed == "the tool alone":  # the step is there, and runs what it runs today
            assert (ended["status"], ended["outputs"]["send"]) == ("complete", "sent")
            return
        assert (ended["status"], ended["failed_step"], ended["error_reason"]) == ("error", "send", "skipped")
        assert ended["error"] == "Step 'send': skipped by ada: no longer sent"
        again = await start_pipeline(
            temporal.client, "line", run_key=temporal.session("again"), restart_of=ended["run_key"],
            restart_from="last", task_queue=temporal.name,
        )  # fmt: skip
        await pending(again)  # the gate before it opens again: the step behind it is about to run
        await temporal.people.decide(again.id, "check", "approve", by="ada")
        assert (await result(again))["status"] == "complete"
    await check_healthy(run)


async def test_a_run_that_asks_for_an_unknown_outcome_asks_also_when_it_is_skipped(temporal: Temporal) -> None:
    @tool(verify=lambda: None)
    async def pay() -> str:
        """Pay."""
        return "paid"

    script, loop = by_turn(asks_for(call("pay", "c1")), "done"), Loop(on_unknown="ask")
    async with temporal.worker(clerk(pay, loop=loop), llm=ScriptedModel(script), store=LosesCalls(temporal.store)):
        run = await temporal.start("clerk")
        await until(partial(is_being_settled, run))
    async with temporal.worker(clerk(loop=loop), llm=ScriptedModel(script)):
        await until(partial(waits_for, run, "worker"))
        await temporal.people.resume(run.id, "skip", reason="closed", by="ada")
        await until(partial(waits_for, run, "unknown"))
        await temporal.people.resolve(run.id, "c1", "happened", result="receipt", by="ada")
        assert (await result(run))["status"] == "complete"
    assert read(await temporal.messages()) == {"c1": "receipt"}
