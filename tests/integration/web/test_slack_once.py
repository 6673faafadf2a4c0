"""Slack: a button decides once, in time, and only on content that its message shows completely."""

import json

import pytest
from support.chats import HOSTILE, clerk, decisions, line, page_for, post, start_line
from support.pages import CHARGES
from support.slack import Slack, buttons, send, texts
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call

from standfast import Approval, Markdown, pipeline
from standfast.testing import ScriptedModel


async def test_a_button_that_is_pressed_twice_or_sent_again_counts_once(temporal: Temporal, slack: Slack) -> None:
    of = pipeline("line").step("ok", approval=Approval(message="1?")).step("sure", approval=Approval(message="2?"))
    built = of.build()
    async with (
        temporal.worker(pipelines=[built], webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await start_line(temporal, built)
        await until(lambda: slack.messages)
        first, again = slack.press("Approve"), slack.press("Approve", "U0OLGA")
        await send(page, first)
        await until(lambda: len(slack.messages) == 2)  # of the next gate
        (ts, _), _ = sorted(slack.messages.items())
        for press in (first, first, again):
            await send(page, press)
            await until(lambda: "no longer waiting: Approved by ada" in texts(slack.messages[ts]))
        assert buttons(slack.messages[ts]) == {}
        assert await decisions(temporal, run) == [("approve", "ada", None)]
        assert [item["name"] for item in await pending(run)] == ["sure"]
        await run.cancel()


async def test_a_message_says_what_was_decided_elsewhere_when_its_button_is_pressed(
    temporal: Temporal, slack: Slack
) -> None:
    model = ScriptedModel([CHARGES, "done"])
    async with (
        temporal.worker(agent := clerk(), llm=model, webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        await send(page, slack.press("Edit…"))
        presses = [slack.press(button) for button in ("Approve", "Edit…", "Reject")]
        await temporal.people.decide(run.id, "c1", "reject", by="ada")
        await result(run)
        for press in presses:
            await send(page, press)
            await until(lambda: "no longer waiting: Rejected by ada" in texts(slack.message))
        answer = (await send(page, slack.fill(amount="7"))).json()
        assert "no longer waiting: Rejected by ada" in answer["errors"]["comment"]


async def test_after_the_deadline_a_button_decides_nothing(temporal: Temporal, slack: Slack) -> None:
    of = line(timeout="1s", on_timeout="reject")
    async with (
        temporal.worker(pipelines=[of], webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        press = slack.press("Approve")
        await result(run)
        await send(page, press)
        await until(lambda: "no longer waiting" in texts(slack.message))
    assert buttons(slack.message) == {}
    assert await decisions(temporal, run) == []


async def test_a_button_is_not_for_what_a_gate_asks_another_time(temporal: Temporal, slack: Slack) -> None:
    from standfast.notices.chat_messages import Mark

    of = line()
    async with (
        temporal.worker(pipelines=[of], webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        press, before = slack.press("Approve"), slack.message
        mark = Mark.read(press["actions"][0]["value"])
        others = [
            mark._replace(since="2020-01-01T00:00:00+00:00"), mark._replace(digest="0" * 64),
            mark._replace(gate="other"), mark._replace(workflow_id="line/nobody"),
        ]  # fmt: skip
        for other in others:
            slack.messages[max(slack.messages)] = before
            await send(page, {**press, "actions": [{**press["actions"][0], "value": other.write()}]})
            await until(lambda: "no longer waiting" in texts(slack.message))
        for value in ("", "none", "W10=", mark.write()[:-8]):
            await send(page, {**press, "actions": [{**press["actions"][0], "value": value}]})
        await until(
            lambda: [text for _, text in slack.told] == ["Nothing was decided: This button is not from standfast"] * 4
        )
        assert [item["name"] for item in await pending(run)] == ["ok"]
        await run.cancel()


@pytest.mark.parametrize("length", [9_100, 20_000, 400_000])
async def test_what_a_message_cannot_show_whole_is_not_approved_from_it(
    temporal: Temporal, slack: Slack, length: int
) -> None:
    long = asks_for(call("post", "p1", text="<&\U0001f600" * (length // 3), times=2, loud=False, tags=[]))
    hook = slack.webhook(link="https://x.example/{workflow_id}")
    async with (
        temporal.worker(agent := clerk(post), llm=ScriptedModel([long, "done"]), webhooks=[hook]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        assert list(buttons(slack.message)) == ["Reject", "Open"]
        assert "cannot be approved from here" in texts(slack.message)
        reject = slack.press("Reject")
        for other in ("approve", "edit"):  # as only someone with the app's token could post it
            forged = {**reject["actions"][0], "action_id": f"standfast.{other}"}
            await send(page, {**reject, "actions": [forged]})
        await until(lambda: len(slack.told) == 2)
        assert all("does not show all of this" in text for _, text in slack.told)
        assert [item["name"] for item in await pending(run)] == ["p1"]
        await send(page, slack.press("Reject"))
        await send(page, slack.fill())
        await result(run)
    assert await decisions(temporal, run) == [("reject", "ada", None)]


async def test_what_a_pipelines_gate_shows_is_in_the_message_and_no_picture_is_approved_unseen(
    temporal: Temporal, slack: Slack
) -> None:
    from standfast import Diff, Image, Table

    seen = line(show={"a": Markdown(HOSTILE), "b": Table([[1, "x"]], ["n", "s"]), "c": Diff("old", "new"), "d": [1]})
    picture = Image(data="aGk=", media_type="image/png")
    unseen = pipeline("unseen").step("ok", approval=Approval(message="Go?", show={"p": picture})).build()
    async with temporal.worker(pipelines=[seen, unseen], webhooks=[slack.webhook()]):
        run = await start_line(temporal, seen)
        await until(lambda: slack.messages)
        for part in (HOSTILE, '["n", "s"]\n[1, "x"]', "- old\n+ new", "[\n  1\n]"):
            assert part in texts(slack.message)
        assert list(buttons(slack.message)) == ["Approve", "Reject"]
        other = await start_line(temporal, unseen)
        await until(lambda: len(slack.messages) == 2)
        assert list(buttons(slack.message)) == ["Reject"]
        await run.cancel()
        await other.cancel()


async def test_hostile_words_call_nobody_and_follow_no_link(temporal: Temporal, slack: Slack) -> None:
    of = line(message=HOSTILE, show={HOSTILE: HOSTILE})
    async with temporal.worker(pipelines=[of], webhooks=[slack.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        await run.cancel()
    sent = json.dumps(slack.message["blocks"])
    assert '"mrkdwn"' not in sent
    assert '"emoji": true' not in sent
    assert "<" not in slack.message["text"]
    assert (slack.message["unfurl_links"], slack.message["unfurl_media"]) == (False, False)
