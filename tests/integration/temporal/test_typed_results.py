"""Results of runs on Temporal have the same types as in process."""

from typing import Any

import pytest
from pydantic import BaseModel
from support.temporal_runs import Temporal

from standfast import Agent, InputError, PipelineResult, RunResult, Step, StepResult, pipeline, run, run_pipeline
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel


class Invoice(BaseModel):
    total: int


clerk = Agent("clerk", output=Invoice)


async def test_the_result_of_an_agent_is_the_one_in_process_without_the_transcript(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(['{"total": 3}'])):
        started = await temporal.start(clerk)
        there = await temporal.people.result(started.id, clerk)
    here = await run(clerk, message="go", llm=ScriptedModel(['{"total": 3}']))
    assert isinstance(there, RunResult)
    assert there.output == here.output == Invoice(total=3)
    assert (there.status, there.response, there.iterations) == (here.status, here.response, here.iterations)
    assert (there.session_id, there.messages) == (temporal.session(), ())


async def test_an_answer_that_does_not_fit_has_no_output(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(["three", "three"])):
        ended = await temporal.people.result((await temporal.start(clerk)).id, clerk)
    assert (ended.status, ended.output) == ("error", None)
    assert "does not fit the agent's output" in str(ended.error)


async def test_an_output_of_another_type_than_todays_is_refused(temporal: Temporal) -> None:
    today = Agent("clerk", output=list[int])
    async with temporal.worker(clerk, llm=ScriptedModel(['{"total": 3}'])):
        started = await temporal.start(clerk)
        with pytest.raises(InputError, match="the output does not match"):
            await temporal.people.result(started.id, today)


async def test_the_result_of_a_pipeline_is_the_one_in_process(temporal: Temporal) -> None:
    def choose(_: Any) -> str:
        return "b"

    bill = Step("bill", agent=clerk, output=Invoice)
    flow = (
        pipeline("bills")
        .step(bill)
        .parallel("both", Step("one", agent=clerk), Step("two", agent=clerk))
        .branch("which", on=choose, cases={"a": Step("a", agent=clerk), "b": Step("b", agent=clerk)})
        .build()
    )
    model = ScriptedModel(lambda *_: '{"total": 3}')
    async with temporal.worker(clerk, pipelines=[flow], llm=model):
        started = await start_pipeline(temporal.client, flow, run_key=temporal.session(), task_queue=temporal.name)
        there = await temporal.people.result(started.id, flow)
    here = await run_pipeline(flow, llm=model)
    assert isinstance(there, PipelineResult)
    assert there.outputs == here.outputs
    assert there.outputs["bill"] == there.outputs["which"] == Invoice(total=3)
    assert there.step_results == here.step_results
    assert there.step_results["bill"] == StepResult(status="complete", response='{"total": 3}', iterations=1)
