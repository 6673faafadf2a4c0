"""Finds promises that were not kept in the chaos of sessions: compares effects and transcripts with its books."""

from collections import Counter
from collections.abc import Iterator, Sequence

from acceptance.chaos_of_sessions import Chaos
from acceptance.replays import failed_replays
from standfast import Message, ToolCall

NOT_RUN = "Not run"


async def faults(chaos: Chaos, cases: Sequence[str], pipelines: Sequence[str] = ()) -> list[str]:
    """Return in words whatever is not as it was promised."""
    found = list(chaos.books.unanswered)
    path = chaos.world.folder / "effects.txt"
    effects = Counter(path.read_text().splitlines() if path.exists() else ())
    found += [f"{line} had {times} effects" for line, times in effects.items()
              if times > 1 and line.partition(".")[0] in pipelines]  # fmt: skip
    for case in cases:
        found += await _faults_of_calls(chaos, case, case)
        found += await _faults_of_messages(chaos, case)
    for case, session in chaos.desks.items():
        found += await _faults_of_calls(chaos, case, session)
    found += [
        f"{call}: refused, {why}, but it was approved by nobody else and ran"
        for call, why in chaos.books.refused
        if chaos.world.effects(call) and not chaos.books.approved[call] and call not in chaos.books.unsure
    ]
    begun = [session.id for session in await chaos.world.store.list_sessions()]
    found += [f"{session} was begun from an export, beside its own" for session in begun if session.startswith("sess_")]
    return found + await failed_replays(chaos.world, chaos.seed)


async def _faults_of_calls(chaos: Chaos, case: str, session: str) -> list[str]:
    messages, found = await chaos.world.store.load_messages(session), []
    asked = [call for message in messages for call in message.tool_calls or ()]
    results = Counter(message.tool_call_id for message in messages if message.role == "tool")
    read = {message.tool_call_id: message.content for message in messages if message.role == "tool"}
    for call in asked:
        if results[call.id] != 1:
            found.append(f"{call.id} has {results[call.id]} results")
        found += _faults_of_effects(chaos, call, read.get(call.id, ""))
        found += _faults_of_answers(chaos, call, messages)
        if call.name == "pay":
            found += _faults_of_approvals(chaos, call, read.get(call.id, ""))
    known = {call.id for call in asked}
    effects = chaos.world.folder / "effects.txt"
    lines = set(effects.read_text().splitlines()) if effects.exists() else set()
    found += [f"{call} ran, and no transcript asks for it" for call in lines - known if call.startswith(f"{case}.")]
    return found


def _faults_of_effects(chaos: Chaos, call: ToolCall, read: str) -> Iterator[str]:
    effects, is_safe = chaos.world.effects(call.id), call.name.startswith("look")
    if not is_safe and effects > 1:
        yield f"{call.id} of {call.name} had {effects} effects"
    if read.startswith("did") and not effects:
        yield f"{call.id} says that it ran, and did not"
    if NOT_RUN in read and effects and not is_safe:
        yield f"{call.id} ran, and the model reads: {read}"


def _faults_of_approvals(chaos: Chaos, call: ToolCall, read: str) -> Iterator[str]:
    books = chaos.books
    approved, rejected = books.approved[call.id], books.rejected[call.id]
    if chaos.world.effects(call.id) and not approved and call.id not in books.unsure:
        yield f"{call.id} ran, and nobody has approved it"
    if approved > 1 or (approved and rejected):
        yield f"{call.id} was approved {approved} times, and rejected {rejected} times"
    if approved and "reject" in read:
        yield f"{call.id} was approved, and the model reads: {read}"


def _faults_of_answers(chaos: Chaos, call: ToolCall, messages: Sequence[Message]) -> Iterator[str]:
    for text in [text for text, of in chaos.books.answered.items() if of == call.id]:
        read = [message.tool_call_id for message in messages if text in message.content]
        if read != [call.id]:
            yield f"{text!r} counts for {call.id}, and stands in the transcript as the results of {read}"
    for text in [text for text, of in chaos.books.not_answers.items() if of == call.id]:
        if any(text in message.content for message in messages):
            yield f"{text!r} was refused for {call.id}, and stands in the transcript"


async def _faults_of_messages(chaos: Chaos, case: str) -> list[str]:
    heard = Counter(m.content for m in await chaos.world.store.load_messages(case) if m.role == "user")
    said = [text for text in chaos.books.said if text.startswith(f"{case}: ")]
    return [
        f"{text!r} was accepted, and stands {heard[text]} times in the transcript" for text in said if heard[text] != 1
    ]
