"""People who look at a waiting item before they decide on it in process, and so have its digest."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import standfast
from standfast import Checkpoint
from standfast.agent_loop import Gate


async def run(agent: Any, *, decisions: Any = (), **given: Any) -> Any:
    return await standfast.run(agent, decisions=await _looked(decisions, given.get("checkpoint"), given), **given)


async def resume(agent: Any, checkpoint: Any, answer: Any = None, *, decisions: Any = (), **given: Any) -> Any:
    return await standfast.resume(
        agent, checkpoint, answer, decisions=await _looked(decisions, checkpoint, given), **given
    )


async def run_pipeline(flow: Any, *, decisions: Any = (), **given: Any) -> Any:
    if decisions:
        waits = await standfast.run_pipeline(flow, **given)
        decisions = _with(decisions, {item.gate: item.digest for item in waits.approvals})
    return await standfast.run_pipeline(flow, decisions=decisions, **given)


async def looked(decisions: Any, **given: Any) -> Any:
    """Return decisions with the digests that a session shows."""
    return await _looked(decisions, None, given)


async def _looked(decisions: Any, checkpoint: Any, given: Mapping[str, Any]) -> Any:
    if not decisions:
        return decisions
    if isinstance(checkpoint, str):
        checkpoint = Checkpoint.model_validate_json(checkpoint)
    if isinstance(checkpoint, Mapping):
        checkpoint = Checkpoint.model_validate(checkpoint)
    questions = () if checkpoint is None else checkpoint.questions or ()
    session_id = given.get("session_id") or (None if checkpoint is None else checkpoint.session_id)
    if given.get("store") is not None and session_id is not None:
        session = await given["store"].load_session(session_id)
        questions = questions if session is None else session.questions or ()
    gates = [Gate.read(question.gate).at(datetime.now(UTC)) for question in questions if question.gate is not None]
    return _with(decisions, {gate.name: gate.shown_digest for gate in gates})


def _with(decisions: Any, digests: Mapping[str, str]) -> Any:
    if isinstance(decisions, str | Mapping) or not isinstance(decisions, Sequence):
        return decisions
    return [
        {"digest": digests[one["gate"]], **one} if isinstance(one, dict) and one.get("gate") in digests else one
        for one in decisions
    ]
