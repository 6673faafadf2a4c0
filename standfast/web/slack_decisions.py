"""Decides by people's presses in Slack, and puts the decision and its author into the message."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from standfast.errors import InputError
from standfast.temporal.activities.chat_messages import Decided, Mark
from standfast.temporal.activities.slack_messages import approval_message, closed_message, draw
from standfast.web.access import Person
from standfast.web.chat_decisions import Came, Chat, ChatDecisions
from standfast.web.slack_api import Place, SlackApi
from standfast.web.slack_forms import Sent, Values, form, typed_in

SLACK = Chat("Slack", "slack", lambda run, item: draw(run, item).is_whole)


@dataclass(frozen=True, slots=True)
class Press:
    """A press on a button: the person, the item, the place, and the address of the run in the message."""

    person: Person
    mark: Mark
    place: Place
    link: str | None


class SlackDecisions:
    """Decides for people, and reports the outcome in Slack."""

    def __init__(self, api: SlackApi, decisions: ChatDecisions) -> None:
        self._api, self._decisions = api, decisions

    async def ask(self, press: Press, decision: Decided, trigger: str, blocks: Sequence[dict[str, Any]]) -> None:
        """Open a form: to edit and approve, or to reject with a comment.

        Raises:
            StandfastError: it cannot be opened.
        """
        if not self._api.has_token:
            raise InputError("The page lacks the Slack app's token, which a form needs: edit on the page")
        if (item := await self._decisions.waiting(press.mark)) is None:
            await self._over(press, blocks)
            return
        fields = self._decisions.fields(press.person, press.mark, item, decision)
        await self._api.open(trigger, form(decision, Sent(press.mark, press.place, press.link), fields))

    async def decide(
        self,
        press: Press,
        decision: Decided,
        *,
        id: str,  # noqa: A002
        blocks: Sequence[dict[str, Any]],
    ) -> None:
        """Decide on the message's item.

        Raises:
            StandfastError: the decision does not count, or nothing could be sent.
        """
        if (item := await self._decisions.waiting(press.mark)) is None:
            await self._over(press, blocks)
            return
        try:
            await self._show(press, await self._decisions.decide(press.person, press.mark, item, decision, id=id))
        except InputError:
            if await self._decisions.waiting(press.mark) is None:  # another person was quicker
                await self._over(press, blocks)
            raise

    async def decide_by_form(self, press: Press, decision: Decided, values: Values, *, id: str) -> None:  # noqa: A002
        """Decide by a completed form.

        Raises:
            FormError: an entry is invalid.
            StandfastError: the decision does not count, or nothing could be sent.
        """
        if (item := await self._decisions.waiting(press.mark)) is None:
            raise InputError(await self._decisions.outcome(press.mark))
        typed = typed_in(values)
        came = await self._decisions.decide(press.person, press.mark, item, decision, id=id, form=typed)
        await self._show(press, came)

    async def _show(self, press: Press, came: Came) -> None:
        """Show the outcome of a decision in the message."""
        run = press.mark.workflow_id
        if came.is_open:
            now = approval_message(run, came.item, press.link, came.said)
        else:
            now = closed_message(draw(run, came.item).blocks, came.said)
        await self._api.replace(press.place, now)

    async def _over(self, press: Press, blocks: Sequence[dict[str, Any]]) -> None:
        """Remove the buttons from a message whose item no longer waits."""
        await self._api.replace(press.place, closed_message(blocks, await self._decisions.outcome(press.mark)))
