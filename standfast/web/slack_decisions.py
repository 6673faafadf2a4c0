"""Decides by what people press in Slack, and puts into the message what was decided, by whom, or why it does not count.

A button decides on what its message shows whole, and on nothing that the gate asks at another time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from standfast.errors import InputError, NotConfirmedError
from standfast.messages import distinct_people, visible, visible_json
from standfast.stores.capabilities import has_ledger
from standfast.stores.protocol import AgentStore
from standfast.temporal import StandfastClient
from standfast.temporal.activities.slack_messages import Mark, approval_message, draw, line, message, mrkdwn
from standfast.temporal.client.runs import our_run
from standfast.web.access import Person
from standfast.web.actions import may_act
from standfast.web.slack_api import Place, SlackApi
from standfast.web.slack_forms import Field, Sent, Values, comment_of, fields_of, form

Decided = Literal["approve", "reject"]
_WORDS = {"approve": "Approved", "reject": "Rejected"}
_TYPED = 1_000  # characters of a comment or an edit that a message shows


@dataclass(frozen=True, slots=True)
class Press:
    """A press on a button: who, on what, where, and the address of the run that the message has."""

    person: Person
    mark: Mark
    place: Place
    link: str | None


class SlackDecisions:
    """Decides for people, and says in Slack what became of it."""

    def __init__(self, api: SlackApi, people: StandfastClient, store: AgentStore | None) -> None:
        self._api, self._people, self._store = api, people, store
        self._asking = StandfastClient(people.client)  # asks the runs themselves

    async def ask(self, press: Press, decision: Decided, trigger: str, blocks: Sequence[dict[str, Any]]) -> None:
        """Open a form: to edit and approve, or to reject with a comment.

        Raises:
            StandfastError: it cannot be opened.
        """
        if not self._api.has_token:
            raise InputError("The page has no token of the Slack app, which a form needs: edit on the page")
        if (item := await self._waiting(press.mark)) is None:
            await self._over(press, blocks)
            return
        if not may_act(press.person, item):
            raise InputError(f"{press.person.name} may not decide this; it asks {', '.join(item['approvers'])}")
        fields = _fields(press.mark, item) if decision == "approve" else []
        await self._api.open(trigger, form(decision, Sent(press.mark, press.place, press.link), fields))

    async def decide(
        self,
        press: Press,
        decision: Decided,
        *,
        id: str,  # noqa: A002
        blocks: Sequence[dict[str, Any]],
    ) -> None:
        """Decide on what the message shows.

        Raises:
            StandfastError: it does not count, or nothing could be sent.
        """
        if (item := await self._waiting(press.mark)) is None:
            await self._over(press, blocks)
            return
        _check_whole(press.mark, item, decision)
        try:
            await self._sent(press, item, decision, id=id)
        except InputError:
            if await self._waiting(press.mark) is None:  # somebody else was quicker
                await self._over(press, blocks)
            raise

    async def decide_by_form(self, press: Press, decision: Decided, values: Values, *, id: str) -> None:  # noqa: A002
        """Decide by a form that was filled in.

        Raises:
            FormError: something was typed that cannot be used.
            StandfastError: it does not count, or nothing could be sent.
        """
        if (item := await self._waiting(press.mark)) is None:
            raise InputError(await self._what_was_decided(press.mark))
        edit = None
        if decision == "approve":
            typed = {field.key: field.read(values) for field in _fields(press.mark, item)}
            edit = None if visible_json(typed) == visible_json(item["arguments"]) else typed
        await self._sent(press, item, decision, id=id, edit=edit, comment=comment_of(values))

    async def _waiting(self, mark: Mark) -> dict[str, Any] | None:
        """Return the item that a button is for, if it still waits."""
        try:
            run = await our_run(self._people.client, mark.workflow_id)
            if run.close_time is not None:  # of which only a worker could say more
                return None
            # The board may not have it yet, or not any more: a message loses its buttons only if the run says so.
            for people in (self._people, self._asking):
                for item in await people.pending(mark.workflow_id):
                    if mark.is_for(item):
                        return item
        except InputError:  # there is no such run any more
            return None
        return None

    async def _sent(
        self,
        press: Press,
        item: dict[str, Any],
        decision: Decided,
        *,
        id: str,  # noqa: A002
        edit: dict[str, Any] | None = None,
        comment: str | None = None,
    ) -> None:
        """Send a decision, and say in the message what became of it."""
        run, gate, digest = press.mark.workflow_id, press.mark.gate, press.mark.digest
        by, typed = press.person.name, _typed(edit, comment)
        given: dict[str, Any] = {"by": by, "comment": comment, "digest": digest, "edit": edit, "id": id}
        try:
            await self._people.decide(run, gate, decision, **given)
        except NotConfirmedError:
            said = f"{_WORDS[decision]} by {by}: sent, not confirmed, since no worker has answered. It may count later."
            shown = approval_message(run, item, press.link, f"{said}{typed}")
        else:
            shown = _after(press, item, decision, typed)
        await self._api.replace(press.place, shown)

    async def _over(self, press: Press, blocks: Sequence[dict[str, Any]]) -> None:
        """Take the buttons from a message about what does not wait any more."""
        said = await self._what_was_decided(press.mark)
        left = [block for block in blocks if block.get("type") != "actions"]
        await self._api.replace(press.place, _closed(left, said, said))

    async def _what_was_decided(self, mark: Mark) -> str:
        """Return in words what became of a gate, as far as the audit trail says it."""
        words = "This is not waiting any more"
        if not has_ledger(self._store):
            return words
        try:
            run = await our_run(self._people.client, mark.workflow_id)
        except InputError:
            return words
        keys = dict.fromkeys([run.raw_info.first_run_id or run.run_id, run.run_id])
        since = datetime.fromisoformat(mark.since)
        for row in reversed([row for key in keys for row in await self._store.load_decisions(key)]):
            if (row.gate, row.refused) == (mark.gate, None) and row.decision in _WORDS and row.at >= since:
                edited = ", with changes" if row.edit is not None else ""
                return f"{words}: {_WORDS[row.decision]} by {row.by or 'somebody'}{edited}, {_at(row.at)}"
        return words


def _fields(mark: Mark, item: dict[str, Any]) -> list[Field]:
    _check_whole(mark, item, "approve")
    return fields_of(item.get("arguments"))


def _check_whole(mark: Mark, item: dict[str, Any], decision: Decided) -> None:
    if decision == "approve" and not draw(mark.workflow_id, item).is_whole:
        raise InputError(
            "a message in Slack does not show all of this, so it cannot be approved from one: use the page"
        )


def _after(press: Press, item: dict[str, Any], decision: Decided, typed: str) -> dict[str, Any]:
    """Return the message after a decision that counts; while others must approve, too, it keeps its buttons."""
    run, by, quorum = press.mark.workflow_id, press.person.name, item.get("quorum", 1)
    approved = distinct_people([*item.get("approved_by", ()), by]) if decision == "approve" else ()
    if decision == "approve" and len(approved) < quorum:
        said = f"Approved by {', '.join(approved)}, {len(approved)} of {quorum}{typed}"
        return approval_message(run, {**item, "approved_by": list(approved)}, press.link, said)
    said = f"{_WORDS[decision]} by {', '.join(approved) or by}, {_at(datetime.now(UTC))}{typed}"
    return _closed(draw(run, item).blocks, item["message"], said)


def _closed(blocks: Sequence[dict[str, Any]], head: str, said: str) -> dict[str, Any]:
    """Return a message without buttons, with a line that says what was decided."""
    return message(f"{mrkdwn(said)}: {mrkdwn(head)}" if head != said else mrkdwn(said), [*blocks, line(said)])


def _typed(edit: dict[str, Any] | None, comment: str | None) -> str:
    """Return what somebody has changed and said, as far as a line of a message shows it."""
    changed = "" if edit is None else f"\nInstead with: {_short(visible_json(edit, indent=None))}"
    return changed + ("" if comment is None else f"\nComment: {_short(visible(comment))}")


def _short(text: str) -> str:
    return text if len(text) <= _TYPED else f"{text[:_TYPED]}… [{len(text) - _TYPED:,} more characters on the page]"


def _at(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
