"""Chat messages show decisions made elsewhere, and by whom, without a press of a button."""

from collections import Counter
from typing import Any

import pytest
from starlette.responses import Response
from support.chats import clerk, line, start_line
from support.pages import CHARGES
from support.resets import reset
from support.slack import Slack, buttons, texts
from support.teams import Teams
from support.teams import texts as card_texts
from support.temporal_runs import Temporal, pending, result, until

from standfast.temporal import StandfastClient
from standfast.temporal.activities.gates import posted_messages
from standfast.testing import Reply, ScriptedModel


async def events(run: Any) -> Counter[str]:
    """Return the names of the activities in a history, and how often they were asked for."""
    found = Counter[str]()
    async for event in run.fetch_history_events():
        if name := event.activity_task_scheduled_event_attributes.activity_type.name:
            found[name] += 1
    return found


async def test_both_chats_say_who_has_decided_elsewhere_with_their_words_and_changes(
    temporal: Temporal, slack: Slack, teams: Teams
) -> None:
    model, hooks = ScriptedModel([CHARGES, "done"]), [slack.webhook(), teams.webhook()]
    async with temporal.worker(agent := clerk(), llm=model, webhooks=hooks):
        run = await temporal.start(agent)
        await until(lambda: slack.messages and teams.messages)
        (item,) = await pending(run)
        edited: dict[str, Any] = {"by": "ada", "digest": item["digest"], "edit": {"amount": 7}}
        await temporal.people.decide(run.id, "c1", "approve", comment="<!here> less", **edited)
        await result(run)
        await until(lambda: buttons(slack.message) == {} and not teams.card["actions"])
    for text in (texts(slack.message), card_texts(teams.card)):
        for part in (
            "Charge the customer?",
            "Approved by ada, 20",
            'Instead with: {"amount": 7}',
            "Comment: <!here> less",
        ):
            assert part in text
    assert "<!here>" not in slack.message["text"]
    assert (await events(run))["standfast.notify"] == 1  # nothing more in the history


async def test_a_message_says_so_far_who_has_approved_elsewhere(temporal: Temporal, slack: Slack) -> None:
    of = line(quorum=2, approvers=["ada", "olga"])
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        await temporal.people.decide(run.id, "ok", "approve", by="ada")
        await until(lambda: "Approved by ada, 1 of 2" in texts(slack.message))
        assert "Approve" in buttons(slack.message)
        await temporal.people.decide(run.id, "ok", "approve", by="olga")
        await result(run)
        await until(lambda: "Approved by ada, olga, 20" in texts(slack.message))
    assert buttons(slack.message) == {}


async def test_every_reminder_says_so_too(temporal: Temporal, slack: Slack) -> None:
    of = line(remind_every="1s", on_reject="end")
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: len(slack.messages) >= 2)
        await temporal.people.decide(run.id, "ok", "reject", by="ada")
        await result(run)
        await until(lambda: all("Rejected by ada" in texts(one) for one in slack.messages.values()))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("end", ["deadline", "cancel"])
async def test_a_gate_that_nobody_decided_loses_its_buttons(temporal: Temporal, slack: Slack, end: str) -> None:
    of = line(timeout="1s", on_timeout="reject") if end == "deadline" else line()
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        if end == "cancel":
            await run.cancel()
        await until(lambda: buttons(slack.message) == {})
    assert "This is no longer waiting" in texts(slack.message)


async def test_what_a_dead_worker_could_not_say_is_said_by_the_next_one(temporal: Temporal, slack: Slack) -> None:
    decided, ended = line(), line()
    async with temporal.worker(pipelines=[decided], webhooks=[slack.webhook()]):
        run = await start_line(temporal, decided)
        other = await start_line(temporal, ended, "other")
        await until(lambda: len(slack.messages) == 2)
        people = StandfastClient(temporal.client, store=temporal.store, timeout="60s")
        await until(lambda: noted(temporal, run))
        await until(lambda: noted(temporal, other))
    await other.terminate()
    async with temporal.worker(pipelines=[decided]):  # without a bot
        await people.decide(run.id, "ok", "approve", by="ada")
        await result(run)
    assert all("Approve" in buttons(one) for one in slack.messages.values())
    async with temporal.worker(pipelines=[decided], webhooks=[slack.webhook()]):
        await until(lambda: all(buttons(one) == {} for one in slack.messages.values()))
    said = sorted("Approved by ada" in texts(one) for one in slack.messages.values())
    assert said == [False, True]


async def noted(temporal: Temporal, run: Any) -> bool:
    return await temporal.store.load_reply(f"{run.first_execution_run_id}/posted", 0) is not None


async def test_a_message_is_changed_again_and_again_while_its_chat_is_away(
    temporal: Temporal, slack: Slack, teams: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posted_messages, "_PAUSES", (0.0, 0.01, 0.01, 0.01))
    of = line()
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook(), teams.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages and teams.messages)
        slack.faults = [Reply(b"oh", 503), Reply(end="reset"), Reply({"ok": False, "error": "ratelimited"})]
        teams.faults = [Response(status_code=502)]
        await temporal.people.decide(run.id, "ok", "approve", by="ada")
        await result(run)
        await until(lambda: "Approved by ada" in texts(slack.message) and "Approved by ada" in card_texts(teams.card))


async def test_a_run_that_is_reset_while_it_waits_keeps_its_buttons(temporal: Temporal, slack: Slack) -> None:
    of = line(on_reject="end")
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        await pending(run)
        again = await reset(temporal, run, 0)
        await pending(again)
        assert "Approve" in buttons(slack.message)
        await temporal.people.decide(run.id, "ok", "reject", by="ada")
        await result(again)
        await until(lambda: all(buttons(one) == {} for one in slack.messages.values()))
    assert "Rejected by ada" in texts(slack.message)
