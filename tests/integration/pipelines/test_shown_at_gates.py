"""People's view of a gate: earlier outputs, or its own contents, complete and under its digest. In both drivers."""

import base64
from typing import Any

import pytest
from support.commands import data, done, refused, standfast
from support.pages import XSS, browser, send
from support.pipeline_drivers import PipelineDriver
from support.temporal_runs import Temporal, pending, result, until
from temporalio.api.sdk.v1 import WorkflowMetadata

from integration.pipelines.test_gates import approve, writer
from integration.pipelines.test_pipelines import echo, says
from standfast import (
    Approval,
    DefinitionError,
    Diff,
    Image,
    InputError,
    Markdown,
    Pipeline,
    Step,
    StoreError,
    Table,
    pipeline,
    run_pipeline,
    sqlite_store,
    tool,
)
from standfast.temporal import load_shown, start_pipeline
from standfast.testing import ScriptedModel

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
LONG = "\n\n".join(f"Paragraph {number} of the article." for number in range(2_000))  # 70 KB


def gated(**approval: Any) -> Pipeline:
    ok = Approval(message="Publish?", **approval)
    return pipeline("w").step("write", agent=writer).step("ok", approval=ok).step("b", agent=writer).build()


@tool
async def count(text: str) -> dict[str, int]:
    """Count the letters."""
    return {"letters": len(text)}


async def shown_by(temporal: Temporal, asked: Pipeline, *texts: str, given: Any = None) -> list[dict[str, Any]]:
    """Return what a gate shows, by both drivers the same."""
    model = ScriptedModel([*texts, *texts])
    local = await run_pipeline(asked, input=given, run_key="shown", store=temporal.store, llm=model)
    async with temporal.worker(writer, pipelines=[asked], llm=model):
        run = await start_pipeline(
            temporal.client, asked.name, input=given, run_key=temporal.session(), task_queue=temporal.name
        )
        (item,) = await pending(run)
        assert await load_shown(temporal.store, item) == list(local.shown)
        assert item["digest"] == local.digest
    return list(local.shown)


async def test_a_gate_shows_the_outputs_since_the_last_gate(temporal: Temporal) -> None:
    counted = Step("count", run=count, input=lambda ctx: {"text": ctx.prev["write"]["response"]})
    asked = pipeline("w").step("write", agent=writer).step(counted).step("ok", approval=Approval()).build()
    assert await shown_by(temporal, asked, "# Title") == [
        {"label": "write", "kind": "markdown", "text": "# Title"},
        {"label": "count", "kind": "json", "value": {"letters": 7}},
    ]


async def test_a_gate_before_the_first_step_shows_the_input(temporal: Temporal) -> None:
    asked = pipeline("w").step("ok", approval=Approval()).step("b", agent=writer).build()
    assert await shown_by(temporal, asked, given={"amount": 5}) == [
        {"label": "input", "kind": "json", "value": {"amount": 5}}
    ]


async def test_a_second_gate_shows_what_came_after_the_first_or_the_same_again(pipelines: PipelineDriver) -> None:
    model = ScriptedModel(echo)
    two = pipeline("w").step("a", agent=writer).step("one", approval=Approval()).step("b", agent=writer)
    for last, labels in ((two, ["b"]), (two.step("two", approval=Approval()), ["b"])):
        asked = last.step("last", approval=Approval()).build()
        decisions = [approve("one"), *([approve("two")] if "two" in [stage.name for stage in asked.stages] else [])]
        store = pipelines.temporal.store
        options: dict[str, Any] = {"run_key": f"r{len(asked.stages)}", "store": store, "llm": model}
        went = await run_pipeline(asked, **options)
        for decision in decisions:
            went = await run_pipeline(asked, decisions=[decision], **options)
        assert (went.pending_step, [one["label"] for one in went.shown]) == ("last", labels)


async def test_a_gate_in_a_map_shows_its_item(pipelines: PipelineDriver) -> None:
    each = Step("ok", approval=Approval())
    asked = pipeline("w").map("all", each, over=lambda ctx: ["x", "y"]).build()
    went = await run_pipeline(asked, store=pipelines.temporal.store, run_key="m")
    assert went.shown == [{"label": "item", "kind": "text", "text": "x"}]


async def test_a_gate_shows_what_it_says_of_every_kind(temporal: Temporal) -> None:
    values = {
        "text": Markdown("*new*"),
        "prices": Table([{"item": "tea", "price": 2}, {"item": "cake"}], ["item", "price"]),
        "change": Diff("a\nb", "a\nc"),
        "settings": Diff({"n": 1}, {"n": 2}),
        "picture": Image(data=PIXEL, media_type="image/png"),
        "note": "plain",
        "data": [1, {"x": None}],
    }
    asked = gated(show=lambda ctx: {**values, "draft": ctx.prev["write"]["response"]})
    assert await shown_by(temporal, asked, "the draft") == [
        {"label": "text", "kind": "markdown", "text": "*new*"},
        {"label": "prices", "kind": "table", "columns": ["item", "price"], "rows": [["tea", 2], ["cake", None]]},
        {"label": "change", "kind": "diff", "before": "a\nb", "after": "a\nc"},
        {"label": "settings", "kind": "diff", "before": '{\n  "n": 1\n}', "after": '{\n  "n": 2\n}'},
        {"label": "picture", "kind": "image", "media_type": "image/png", "data": PIXEL},
        {"label": "note", "kind": "text", "text": "plain"},
        {"label": "data", "kind": "json", "value": [1, {"x": None}]},
        {"label": "draft", "kind": "text", "text": "the draft"},
    ]


async def test_a_person_who_decides_on_what_a_gate_declares_says_on_what(pipelines: PipelineDriver) -> None:
    asked, temporal = gated(show=lambda ctx: Markdown(ctx.prev["write"]["response"])), pipelines.temporal
    went = await pipelines.run(asked, says("the draft"), decisions=[approve(digest=None), approve(digest="0" * 32)])
    assert went.status == "pending"
    assert "digest is missing; a decision here needs the digest" in went.refused[0]
    assert "has changed" in went.refused[1]
    first, second = [
        await run_pipeline(asked, run_key=key, store=temporal.store, llm=says(text))
        for key, text in (("k1", "one text"), ("k2", "another text"))
    ]
    assert first.digest != second.digest
    other = [approve(digest=second.digest)]
    with pytest.raises(InputError, match="has changed"):
        await run_pipeline(asked, run_key="k1", store=temporal.store, llm=says("-"), decisions=other)
    went_on = await run_pipeline(
        asked, run_key="k1", store=temporal.store, llm=says("-"), decisions=[approve(digest=first.digest)]
    )
    assert went_on.status == "complete"


async def test_continuing_after_a_gate_in_process_approves_what_it_shows() -> None:
    asked = gated(show=lambda ctx: Markdown(ctx.prev["write"]["response"]))
    waits = await run_pipeline(asked, llm=says("text"))
    went = await run_pipeline(asked, llm=says("b"), resume_after="ok", previous_results=waits.step_results)
    assert went.status == "complete"


async def test_the_people_of_an_escalation_decide_on_the_same(temporal: Temporal) -> None:
    asked = gated(show="all of it", timeout=0.2, on_timeout="escalate", escalate_to=Approval(message="Still?"))
    async with temporal.worker(writer, pipelines=[asked], llm=ScriptedModel(echo)):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)

        async def escalated() -> Any:
            return [item for item in await pending(run) if item["message"] == "Still?"]

        (item,) = await until(escalated)
        assert item["shown"] == [{"kind": "text", "text": "all of it"}]
        with pytest.raises(InputError, match="digest is missing"):
            await temporal.people.decide(run.id, "ok", "approve", digest=None)
        await temporal.people.decide(run.id, "ok", "approve", digest=item["digest"])
        assert (await result(run))["status"] == "complete"


@pytest.mark.parametrize(
    ("show", "why"),
    [
        (Image(url="https://example.org/x.png"), "at a URL may change"),
        (Image(data=PIXEL, media_type="image/svg+xml"), "an image is one of"),
        ({"x": object()}, "is not JSON"),
        ({1: "x"}, "a label is a text"),
        (Table([{"a": 1}, {"b": 2}]), "which no column shows"),
        (Table([[1], [1, 2]], ["a"]), "must have 1 values"),
        (Markdown(5), "takes a text"),  # type: ignore[arg-type]
        ("x" * 1_100_000, "people must see all of it to approve it"),
        (float("nan"), "is not JSON"),
    ],
)
async def test_what_cannot_be_shown_is_refused_when_it_is_declared(show: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        Approval(show=show)
    with pytest.raises(InputError, match=why):  # a function's, where it runs
        await run_pipeline(gated(show=lambda ctx: show), llm=says("text"))


def test_only_a_pipelines_gate_says_what_it_shows() -> None:
    with pytest.raises(DefinitionError, match="is for a pipeline's gate, not for a call"):
        tool(approval=Approval(show="x"))(count.handler)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="also applies to escalations"):
        Approval(timeout="1m", on_timeout="escalate", escalate_to=Approval(show="x"))


# --- what is large ---


async def test_what_is_large_is_read_whole_from_the_store(temporal: Temporal, tmp_path: Any) -> None:
    asked = gated()
    async with temporal.worker(writer, pipelines=[asked], llm=says(LONG, "b")):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        (item,) = await pending(run)
        assert [(one["kind"], one["label"]) for one in item["shown"]] == [("left-out", "write")]
        assert await load_shown(temporal.store, item) == [{"label": "write", "kind": "markdown", "text": LONG}]
        async with sqlite_store(tmp_path / "other.db") as other:
            with pytest.raises(StoreError, match="are not in this store"):
                await load_shown(other, item)
        with pytest.raises(StoreError, match="do not match the digest"):
            await load_shown(temporal.store, {**item, "digest": "0" * 32})
        store, at = str(tmp_path / "standfast.db"), ("pending", run.id)
        (whole,) = await data(temporal, *at, "--full", "--store", store)
        assert whole["shown"][0]["text"] == LONG
        assert "Paragraph 1999 of" in await done(temporal, *at, "--full", "--store", store)
        assert "which were not shown here" in await refused(temporal, "approve", run.id, "ok", "--yes")
        assert (await standfast(temporal, "approve", run.id, "ok", "--digest", item["digest"])).exit_code == 0
        assert (await result(run))["status"] == "complete"


async def test_of_an_output_that_is_too_large_the_size_and_the_digest_are_shown(temporal: Temporal) -> None:
    huge = "x" * 1_200_000
    shown = await shown_by(temporal, gated(), huge)
    assert [(one["kind"], one["label"], one["size"] > 1_200_000) for one in shown] == [("left-out", "write", True)]


# --- the page ---


async def test_the_page_shows_all_of_it_and_hides_nothing(temporal: Temporal) -> None:
    text = f"# Title\n\n{XSS}\n\n[click](https://evil.example) ![x](https://evil.example/y) &#x202e; <!-- hid -->\n\n"
    text += "[ref]: javascript:alert(1)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    asked = gated(show=lambda ctx: {"draft": Markdown(ctx.prev["write"]["response"]), "change": Diff("a\nb", "a\nc")})
    async with temporal.worker(writer, pipelines=[asked], llm=says(text, "b")), browser(temporal) as client:
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        await pending(run)
        for page in ("/", f"/runs/{run.id}"):
            card = (await client.get(page)).text
            drawn = card.split('<div class="markdown">')[1].split("</div>")[0]
            assert "<h1>Title</h1>" in drawn
            assert "<td>2</td>" in drawn
            assert "<script" not in drawn
            assert "<img" not in drawn
            assert "<a " not in drawn
            for said in ("https://evil.example)", "javascript:alert(1)", "&amp;#x202e;", "&lt;!-- hid --&gt;"):
                assert said in drawn
            assert "<del>- b</del>\n<ins>+ c</ins>" in card
        await send(client, f"/runs/{run.id}", run.id, "decide", decision="approve")
        assert (await result(run))["status"] == "complete"


async def test_what_the_page_cannot_show_whole_can_only_be_rejected_there(temporal: Temporal) -> None:
    asked = gated()
    async with temporal.worker(writer, pipelines=[asked], llm=says(LONG, "b")):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        await pending(run)
        elsewhere = Temporal(temporal.client, None, temporal.name)  # type: ignore[arg-type]
        async with browser(elsewhere) as client:
            card = (await client.get(f"/runs/{run.id}")).text
            assert "Here it can only be rejected" in card
            assert 'value="approve"' not in card
        async with browser(temporal) as client:
            assert "Paragraph 1999 of" in (await client.get(f"/runs/{run.id}")).text
            part = await client.get(f"/arguments/{run.id}", params={"gate": "ok"})
            assert "Paragraph 1999 of" in part.text
            await send(client, f"/runs/{run.id}", run.id, "decide", decision="reject")
        assert (await result(run))["error_reason"] == "approval-rejected"


# --- what else people see ---


@pytest.mark.parametrize(
    ("on_timeout", "then"),
    [
        ("fail", "the run fails"),
        ("reject", "it is rejected"),
        ("approve", "it is approved"),
        ("escalate", "it asks eve"),
    ],
)
async def test_people_see_what_happens_at_the_deadline(temporal: Temporal, on_timeout: Any, then: str) -> None:
    to = Approval(approvers=["eve"]) if on_timeout == "escalate" else None
    asked = gated(timeout="7d", on_timeout=on_timeout, escalate_to=to)
    async with temporal.worker(writer, pipelines=[asked], llm=says("text")), browser(temporal) as client:
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        (item,) = await pending(run)
        assert item["then"] == then
        assert f", then {then}" in (await client.get(f"/runs/{run.id}")).text
        assert f"  Then   {then}" in await done(temporal, "pending", run.id)


async def test_temporal_web_shows_it_with_the_digest_or_says_where_all_of_it_is(temporal: Temporal) -> None:
    asked = gated(show=lambda ctx: {"draft": Markdown(ctx.prev["write"]["response"])})
    async with temporal.worker(writer, pipelines=[asked], llm=says("A ‮text`", LONG)):
        for large in (False, True):
            key = temporal.session(str(large))
            run = await start_pipeline(temporal.client, "w", run_key=key, task_queue=temporal.name)
            (item,) = await pending(run)
            told = await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
            page = told.current_details
            assert ("draft: A ‹U+202E›text`" in page) is not large
            assert (item["digest"] in page) is not large
            assert ("the page show everything that is decided on" in page) is large
