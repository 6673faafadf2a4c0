"""Answers that an agent's `output` reads: in a fence, or at the second try."""

import pytest
from pydantic import BaseModel
from support.drivers import Driver
from support.pipeline_drivers import PipelineDriver
from support.temporal_runs import Temporal
from support.transcripts import shape

from standfast import Agent, Loop, Step, pipeline
from standfast.testing import ScriptedModel


class Verdict(BaseModel):
    ok: bool


FENCED = ['```json\n{"ok": true}\n```', '```\n{"ok": true}\n```', '\n ```JSON\n{"ok":\ntrue}```\n']


@pytest.mark.parametrize("text", FENCED)
async def test_an_answer_in_a_fence_is_read(driver: Driver, text: str) -> None:
    ended = await driver.run(Agent("a", output=Verdict), ScriptedModel([text]))
    assert (ended.status, ended.response) == ("complete", text)
    assert ended.output in (Verdict(ok=True), {"ok": True})


async def test_an_answer_in_a_fence_is_read_by_the_step_of_a_pipeline(pipelines: PipelineDriver) -> None:
    line = pipeline("p").step("judge", agent=Agent("a", output=Verdict)).build()
    ended = await pipelines.run(line, ScriptedModel(FENCED[:1]))
    assert ended.status == "complete"


async def test_a_later_step_reads_the_output_of_an_agent_by_the_agents_type(pipelines: PipelineDriver) -> None:
    judge = Step("judge", agent=Agent("a", output=Verdict))
    other = Agent("b")
    say = Step("say", agent=other, input=lambda ctx: f"ok is {ctx[judge].ok}")
    last = Step("last", agent=other, input=lambda ctx: f"said {ctx[say]['response']}")
    model = ScriptedModel(['{"ok": true}', "yes", "done"])
    ended = await pipelines.run(pipeline("p").step(judge).step(say).step(last).build(), model)
    assert ended.status == "complete"
    assert [model.calls[turn].messages[-1].content for turn in (1, 2)] == ["ok is True", "said yes"]


async def test_without_retries_an_answer_that_does_not_fit_ends_the_run(driver: Driver) -> None:
    model = ScriptedModel(["Sure!", '{"ok": true}'])
    ended = await driver.run(Agent("a", output=Verdict, loop=Loop(output_retries=0)), model)
    assert (ended.status, ended.response, len(model.calls)) == ("error", "Sure!", 1)


async def test_an_answer_that_does_not_fit_is_corrected_once_unless_the_loop_says_otherwise(driver: Driver) -> None:
    ended = await driver.run(Agent("a", output=Verdict), ScriptedModel(["Sure!", '{"ok": true}']))
    assert (ended.status, ended.response, ended.iterations) == ("complete", '{"ok": true}', 2)
    model = ScriptedModel(["Sure!", "Sure!", '{"ok": true}'])
    ended = await driver.run(Agent("a", output=Verdict), model, session="other")
    assert (ended.status, ended.response, len(model.calls)) == ("error", "Sure!", 2)


async def test_a_correction_takes_an_iteration_which_there_must_be(driver: Driver) -> None:
    model = ScriptedModel(["Sure!", '{"ok": true}'])
    ended = await driver.run(Agent("a", output=Verdict, loop=Loop(max_iterations=1)), model)
    assert (ended.status, ended.response, len(model.calls)) == ("max-iterations", "Sure!", 1)


async def test_a_model_is_told_what_does_not_fit_and_asked_again(driver: Driver) -> None:
    model = ScriptedModel(["Sure!", '{"ok": "perhaps"}', '{"ok": true}'])
    ended = await driver.run(Agent("a", output=Verdict, loop=Loop(output_retries=2)), model)
    assert (ended.status, ended.response, ended.iterations) == ("complete", '{"ok": true}', 3)
    said = [line for line in shape(ended.messages) if line.startswith("user")]
    assert said[0] == "user go"
    assert said[1].startswith("user Your answer was not accepted: the answer does not fit the agent's output: ")
    assert "ok: Input should be a valid boolean" in said[2]
    assert [message.content for message in model.calls[1].messages[1:]] == [
        "go",
        "Sure!",
        said[1].removeprefix("user "),
    ]


async def test_a_model_is_asked_no_more_often_than_the_loop_says(driver: Driver) -> None:
    model = ScriptedModel(["no", "no", "no"])
    ended = await driver.run(Agent("a", output=Verdict, loop=Loop(output_retries=1)), model)
    assert (ended.status, ended.response, len(model.calls)) == ("error", "no", 2)
    assert "does not fit the agent's output" in str(ended.error)


async def test_a_corrected_answer_is_in_the_session_with_what_was_wrong(temporal: Temporal) -> None:
    agent = Agent("a", output=Verdict, loop=Loop(output_retries=1))
    async with temporal.worker(agent, llm=ScriptedModel(["no", '{"ok": false}'])):
        ended = await temporal.run(agent)
    assert ended["output"] == {"ok": False}
    assert [message.role for message in await temporal.messages()] == ["user", "assistant", "user", "assistant"]
