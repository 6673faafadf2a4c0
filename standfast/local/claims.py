"""Takes in what a checkpoint claims that nobody has signed: guardrails and people are asked again."""

from standfast.agent_loop import Gate, Held, LoopState
from standfast.local.answers import Answers
from standfast.local.run_gates import RunGates
from standfast.local.transcripts import RunTranscript
from standfast.runtime.inputs import RunInput


async def take_claims(
    given: RunInput, state: LoopState, transcript: RunTranscript, answers: Answers, gates: RunGates
) -> LoopState:
    """Return the state of a run after what was given to it was checked; its session is new, unless it has gates."""
    is_new, guardrails = transcript.log.is_new, answers.guardrails(state.agent)
    if state.open_calls and is_new:
        checked = await guardrails.checked_again(given.messages or [])
        transcript.begin(checked, checked)
        state = state.fold(checked, recovering=False, questions=state.kept_questions)
    if state.unasked and given.claimed_gates:
        return await gates.open(state, state.unasked, given.claimed_gates)
    if not is_new or given.claimed_answer is None or not state.is_at_rest or state.finished:
        return state
    stopped = await guardrails.stopped_again(transcript.messages, given.claimed_answer)
    if isinstance(stopped, Held):
        return await gates.hold(state, stopped, Gate.read(given.claimed_answer.gate or {}))
    if stopped is None:
        return state
    transcript.add([stopped])
    return state.replied(stopped)
