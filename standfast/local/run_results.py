"""Makes the result of a run in this process that has come to its end."""

from collections.abc import Mapping

from standfast.agent_loop import Finish, LoopState
from standfast.agents import Agent
from standfast.checkpoints import RunResult
from standfast.local.transcripts import RunTranscript


def run_result(
    agent: Agent,
    state: LoopState,
    finish: Finish,
    ending: Finish,
    problem: str | None,
    transcript: RunTranscript,
    counts: Mapping[str, int],
    compressions: int | None,
) -> RunResult:
    """Return the result of a run.

    Args:
        ending: `finish`, after the agent's output type has judged it; `problem` is what does not fit.
        counts: how often each tool was requested.
    """
    budget = agent.loop.budget
    return RunResult(
        status=ending.status,
        response=finish.response,
        messages=tuple(transcript.messages),
        iterations=state.iterations,
        checkpoint=transcript.checkpoint(state),
        session_id=transcript.log.session_id,
        usage=state.usage,
        budget_percent=state.usage.total_tokens / budget.max * 100 if budget and state.usage else None,
        output=agent.read_output(finish.response) if ending.status == "complete" else None,
        error=finish.response if finish.status == "error" else problem,
        tool_call_summary=dict(counts) or None,
        compression_count=compressions,
        tripped=ending.tripped,
    )
