"""Activities that keep users' messages, and find the messages and answers from before a workflow was reset."""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from temporalio import activity

from standfast.errors import InputError, SessionConflictError
from standfast.messages import Message
from standfast.runtime.message_ids import KeptMessage, Unheard, was_pruned
from standfast.stores.protocol import DurableStore, Session
from standfast.temporal.activities.gates.gate_activities import refusal_before
from standfast.temporal.activities.sessions.session_marks import write_at_work
from standfast.temporal.activities.sessions.transcripts import Transcript
from standfast.temporal.activities.worker.activity_guards import Guard, json_activity
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import AnsweredReference, KeepReference, Kept, WrittenOutcome
from standfast.temporal.wire.inputs import Said, said_by_user, said_id, user_message, with_id
from standfast.temporal.wire.results import receipted

_UNHEARD = 100  # messages of earlier runs that a run reads; the next run reads the others


class SaidActivities:
    """Keeps the messages to the runs of a worker."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.keep, self.answered]

    @json_activity(names.KEEP)
    async def keep(self, reference: KeepReference) -> list[Said] | Kept | None:
        """Keep the user's messages to the run until a run, this or another, has read them.

        Returns the unread messages, if the workflow was reset and asks.
        """
        with Guard(self._host, beats=False):
            transcript = await Transcript.load(self._host, await self._host.records.located(reference))
            session, store = transcript.session, self._host.store
            if reference["messages"] and not session.version:
                # Nothing was answered yet, and the messages need a session.
                writer = {"workflow_id": activity.info().workflow_id, "journal_key": f"{transcript.reference['run']}/0"}
                made = session.model_copy(update=writer)
                with contextlib.suppress(SessionConflictError):  # it was created in the meantime
                    create = partial(store.append_messages_atomic, session.id, [], made, expected_version=0)
                    await write_at_work(create, store, transcript.reference)
            messages = [KeptMessage(id=str(said_id(one)), message=user_message(one)) for one in reference["messages"]]
            written = await store.load_messages(session.id)
            refused = await _refused_before(transcript.reference["run"], messages, session, store, written)
            messages = [one for one in messages if one.id not in refused]
            kept = await _keep_once(store, session, messages, written)
            if refused:
                kept = {**kept, "refused": {**kept.get("refused", {}), **refused}}
            unheard = await unheard_by(store, session, written) if "again" in reference else None
            return receipted(reference, kept or unheard)

    @json_activity(names.ANSWERED)
    async def answered(self, reference: AnsweredReference) -> dict[str, WrittenOutcome]:
        """Return the outcomes of a turn's calls, as written before the workflow was reset."""
        with Guard(self._host, beats=False):
            transcript = await Transcript.load(self._host, await self._host.records.located(reference))
            return await transcript.answered(reference["after"])


async def _refused_before(
    run: str, messages: Sequence[KeptMessage], session: Session, store: DurableStore, written: Sequence[Message]
) -> dict[str, str]:
    """Return why messages do not count if their senders learned that before the workflow was reset, or may have.

    Those that the session has count.
    """
    has = [*written, *(one.message for one in await Unheard(session, store).load(written))]
    known = {one.message_id for one in has}
    sent = [one for one in messages if one.message.message_id not in known]
    found = [(one.id, await refusal_before(run, one.message.message_id, names.MESSAGE)) for one in sent]
    return {sent_id: why for sent_id, why in found if why is not None}


async def _keep_once(
    store: DurableStore, session: Session, messages: Sequence[KeptMessage], written: Sequence[Message]
) -> Kept:
    """Keep messages, except those whose sender ids the session already has; return these."""
    repeated: dict[str, str | None] = {}
    if session.last_seq > len(written):
        for one in [one for one in messages if one.message.message_id is not None]:
            try:
                if await was_pruned(one.message, session, store):
                    repeated[one.id] = None
            except InputError as error:
                repeated[one.id] = str(error)
    new = [one for one in messages if one.id not in repeated]
    repeated |= await Unheard(session, store).keep(new, written)
    has = [one for one, why in repeated.items() if why is None]
    refused = {one: f"message: {why}" for one, why in repeated.items() if why is not None}
    return {**({"has": has} if has else {}), **({"refused": refused} if refused else {})}


async def unheard_by(store: DurableStore, session: Session, transcript: Sequence[Message]) -> list[Said]:
    """Return the session's unread messages, from earlier runs or from before a reset."""
    unheard = await Unheard(session, store).take(transcript)
    return [_as_said(one) for one in unheard[:_UNHEARD]]


def _as_said(kept: KeptMessage) -> Said:
    message = kept.message
    return with_id(
        said_by_user(message.content, message.images, message.by, message.context, message.message_id), kept.id
    )
