"""The activities that keep what a user said, and find what was said and answered before a workflow was reset."""

import contextlib
from collections.abc import Sequence
from typing import Any

from standfast.errors import SessionConflictError
from standfast.messages import Message
from standfast.runtime.unheard import KeptMessage, Unheard
from standfast.stores.protocol import DurableStore, Session
from standfast.temporal.activities.guards import Guard
from standfast.temporal.activities.hosts import AgentHost
from standfast.temporal.activities.json_activities import json_activity
from standfast.temporal.activities.transcripts import Transcript
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import AnsweredReference, KeepReference, WrittenOutcome
from standfast.temporal.wire.inputs import Said, said_by_user, said_id, user_message, with_id
from standfast.temporal.wire.results import receipted

_UNHEARD = 100  # messages of earlier runs that one hears; the others are heard by the next


class SaidActivities:
    """Keeps what is said to the runs of a worker."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.keep, self.answered]

    @json_activity(names.KEEP)
    async def keep(self, reference: KeepReference) -> list[Said] | None:
        """Keep what the user said to the run until somebody has heard it, also if that is another run.

        Returns what nobody has heard, if the workflow was reset and asks.
        """
        with Guard(self._host, beats=False):
            transcript = await Transcript.load(self._host, await self._host.located(reference))
            session, store = transcript.session, self._host.store
            if reference["messages"] and not session.version:
                # Nothing was answered yet, and what was said needs a session to stand in.
                with contextlib.suppress(SessionConflictError):  # it was made meanwhile
                    await store.append_messages_atomic(session.id, [], session, expected_version=0)
            messages = [KeptMessage(id=str(said_id(one)), message=user_message(one)) for one in reference["messages"]]
            written = await store.load_messages(session.id)
            await Unheard(session, store).keep(messages, written)
            unheard = await unheard_by(store, session, written) if "again" in reference else None
            return receipted(reference, unheard)

    @json_activity(names.ANSWERED)
    async def answered(self, reference: AnsweredReference) -> dict[str, WrittenOutcome]:
        """Return what the calls of a turn were answered with, as it was written before the workflow was reset."""
        with Guard(self._host, beats=False):
            transcript = await Transcript.load(self._host, await self._host.located(reference))
            return await transcript.answered(reference["after"])


async def unheard_by(store: DurableStore, session: Session, transcript: Sequence[Message]) -> list[Said]:
    """Return what was said to the session, in earlier runs or before a reset, and nobody has heard."""
    unheard = await Unheard(session, store).take(transcript)
    return [_as_said(one) for one in unheard[:_UNHEARD]]


def _as_said(kept: KeptMessage) -> Said:
    message = kept.message
    return with_id(said_by_user(message.content, message.images, message.by), kept.id)
