"""An accepted answer is in the session even if the run ends with other questions open."""

import pytest
from support.questions import ask
from support.temporal_runs import Temporal, check_healthy, pending, result, until
from support.transcripts import asks_for, call, tool_results

from standfast import Agent
from standfast.testing import ScriptedModel

asker = Agent("asker", tools=[ask])


def three_questions() -> ScriptedModel:
    calls = [call("ask", f"c{number}", question=f"{number}?") for number in (1, 2, 3)]
    return ScriptedModel([asks_for(*calls), "done", "done"])


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("first", ["c1", "c2"])
async def test_nobody_is_asked_again_what_they_answered_before_a_run_was_terminated(
    temporal: Temporal, first: str
) -> None:
    async with temporal.worker(asker, llm=three_questions()):
        run = await temporal.start(asker)
        await pending(run, 3)
        await temporal.people.answer(run.id, "one", tool_call_id=first)

        async def is_written() -> bool:
            return "one" in [message.content for message in tool_results(await temporal.messages())]

        await until(is_written)
        await run.terminate()
        again = await temporal.start(asker, None)
        left = [item["name"] for item in await pending(again)]
        assert left == [name for name in ("c1", "c2", "c3") if name != first]
        for name in left:
            await temporal.people.answer(again.id, f"later {name}", tool_call_id=name)
        assert (await result(again))["status"] == "complete"
        await check_healthy(again)
    results = tool_results(await temporal.messages())
    assert len(results) == 3
    assert {message.tool_call_id: message.content for message in results}[first] == "one"
