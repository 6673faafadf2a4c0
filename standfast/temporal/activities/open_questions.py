"""Finds the questions of an earlier run that the next one still has to ask, after a look into the ledger."""

from collections.abc import Sequence

from standfast.agent_loop import last_answer
from standfast.checkpoints import Question
from standfast.messages import Message
from standfast.runtime.dispatches import last_dispatch
from standfast.stores.protocol import DurableStore, Session
from standfast.temporal.activities.written_answers import read_entry
from standfast.temporal.wire.outcomes import read_outcome
from standfast.tools import Asked
from standfast.tools.attempts import call_key


async def still_asked(
    store: DurableStore, session: Session, messages: Sequence[Message], questions: Sequence[Question]
) -> tuple[Question, ...]:
    """Leave out calls of unknown outcome: what became of them since is in the ledger, and the run settles them.

    A person may have said that one has not happened, and it may have been run. Those of which nothing more is known
    are asked about again, as calls of unknown outcome and not as questions of their tools.
    """
    last = last_answer(messages)
    if last is None or session.journal_key is None:  # a process, which asks in its own words, has written last
        return tuple(questions)
    scope = f"{session.key}/{session.last_seq - (len(messages) - 1 - last)}"
    positions = {call.id: position for position, call in enumerate(messages[last].tool_calls or ())}
    asked = []
    for question in questions:
        position = positions.get(question.tool_call_id or "")
        if question.gate is not None or position is None or await _asks(store, scope, position, question):
            asked.append(question)
    return tuple(asked)


async def _asks(store: DurableStore, scope: str, position: int, question: Question) -> bool:
    """Whether it is the call itself that asks, or one that the ledger does not know."""
    call_id = str(question.tool_call_id)
    last = await last_dispatch(store, scope, position, call_id)
    if not last:
        return True
    entry = (await store.load_entries(scope, [key := call_key(position, call_id, last)]))[key]
    return entry.result is not None and isinstance(read_outcome(read_entry(entry)), Asked)
