"""Runs of pipelines on Temporal that continue from the failed step of an earlier run."""

from functools import partial

import pytest
from support.temporal_runs import (
    Temporal,
    check_healthy,
    events,
    failure,
    pending,
    result,
    status,
)
from temporalio.api.enums.v1 import EventType

from integration.pipelines.test_gates import writer
from integration.pipelines.test_pipelines import echo
from integration.pipelines.test_temporal_gates import gated, start
from standfast import Approval, Step, pipeline
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel


async def test_a_run_continues_from_the_step_at_which_another_failed(temporal: Temporal) -> None:
    made = (
        pipeline("w")
        .map("each", Step("one", agent=writer, input=lambda ctx: ctx.item), over=lambda ctx: ctx.input)
        .step("ok", approval=Approval())
        .step("end", agent=writer, input=lambda ctx: f"{ctx.prev['each'][1]['response']} {ctx.prev['ok']['by']}")
        .build()
    )
    async with temporal.worker(writer, pipelines=[made], llm=ScriptedModel(echo)):
        first = await start(temporal, made, input=["a", "b"], user_id="ada")
        await pending(first)
        await first.signal("reject", {"gate": "ok", "by": "bob"})
        failed = await result(first)
        again = partial(start_pipeline, temporal.client, made, task_queue=temporal.name)
        run = await again(restart_of=failed["run_key"], restart_from="ok", user_id="ada")
        await pending(run)
        await run.signal("approve", {"gate": "ok", "by": "eve"})
        ended = await result(run)
        assert ended["outputs"]["end"] == {"response": "<<b> ['eve']>"}
        assert list(ended["step_results"]) == ["each/0", "each/1", "end"]
        assert "START_CHILD" not in str([EventType.Name(event.event_type) for event in await events(run)][:8])
        behind = await again(restart_of=ended["run_key"], restart_from="end", user_id="ada")
        await pending(behind)  # who approved the first time did not approve this
        await behind.signal("approve", {"gate": "ok", "by": "ada"})
        assert (await result(behind))["outputs"]["end"] == {"response": "<<b> ['ada']>"}


@pytest.mark.parametrize(
    ("restart", "user", "why"),
    [
        (("nope", "ok"), "ada", "no earlier run with the run_key 'nope'"),
        ((None, "nope"), "ada", 'Step "nope" not found'),
        ((None, "ok"), "mallory", "that was started for user_id 'mallory'; there is none at all"),
        ((None, "publish"), "ada", "the earlier run has no result of step 'ok'"),
    ],
)
async def test_a_run_that_cannot_continue_from_another_says_why(
    temporal: Temporal, restart: tuple[str | None, str], user: str, why: str
) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        first = await start(temporal, user_id="ada")
        await pending(first)
        key = restart[0] or (await status(first))["run_key"]
        run = await start_pipeline(
            temporal.client, gated, restart_of=key, restart_from=restart[1], user_id=user, task_queue=temporal.name
        )
        assert why in (await failure(run)).message
        await check_healthy(run)
