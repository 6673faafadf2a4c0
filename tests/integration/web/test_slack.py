"""Slack: people decide with message buttons and forms, and the messages show the decision.

The payloads follow Slack's reference; see `support.slack`.
"""

import json
from collections.abc import Sequence
from typing import Any

from support.chats import POSTS, clerk, decisions, line, page_for, post, start_line
from support.pages import CHARGES
from support.slack import Slack, buttons, send, texts
from support.temporal_runs import Temporal, pending, result, until

from standfast.temporal import StandfastClient
from standfast.testing import ScriptedModel


async def test_a_button_approves_what_the_message_shows_and_the_message_says_who_did(
    temporal: Temporal, slack: Slack
) -> None:
    hook = slack.webhook(link="https://x.example/runs/{workflow_id}?a=1&b=2")
    model = ScriptedModel([CHARGES, "done"])
    async with (
        temporal.worker(agent := clerk(), llm=model, webhooks=[hook]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        assert list(buttons(slack.message)) == ["Approve", "Edit…", "Reject", "Open"]
        for part in ("Charge the customer?", '{\n  "amount": 5\n}', run.id, "Tool: charge", "For: ada"):
            assert part in texts(slack.message)
        assert (await send(page, slack.press("Open"))).status_code == 200  # Slack also reports links
        assert (await send(page, slack.press("Approve"))).content == b""
        assert (await result(run))["status"] == "complete"
        await until(lambda: buttons(slack.message) == {})
    assert "Approved by ada, 20" in texts(slack.message)
    assert '{\n  "amount": 5\n}' in texts(slack.message)
    assert await decisions(temporal, run) == [("approve", "ada", None)]
    assert slack.told == []


async def test_without_a_token_messages_of_an_incoming_webhook_decide_too(temporal: Temporal, slack: Slack) -> None:
    of = line(on_reject="end")
    async with (
        temporal.worker(pipelines=[of], webhooks=[slack.incoming()]),
        page_for(temporal, slack=slack.app(None)) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        assert list(buttons(slack.message)) == ["Approve", "Reject"]
        await send(page, slack.press("Reject"))
        await until(lambda: "Rejected by ada" in texts(slack.message))
        assert await decisions(temporal, run) == [("reject", "ada", None)]


async def test_a_form_has_a_field_for_each_argument_and_what_was_typed_is_what_runs(
    temporal: Temporal, slack: Slack
) -> None:
    model = ScriptedModel([POSTS, "done"])
    async with (
        temporal.worker(agent := clerk(post), llm=model, webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        await send(page, slack.press("Edit…"))
        kinds = [block["element"]["type"] for block in slack.views[0]["blocks"]]
        assert kinds == ["plain_text_input", "number_input", "static_select", *["plain_text_input"] * 2]
        typed = slack.fill(times="3", loud="true", tags='["x", "y"]', Comment="louder")
        assert (await send(page, typed)).content == b""
        await result(run)
    said = next(one.content for one in await temporal.messages() if one.role == "tool")
    assert json.loads(said)["result"] == ["a < b & c", 3, True, ["x", "y"]]
    (row,) = await temporal.store.load_decisions(run.first_execution_run_id or "")
    assert row.edit == {"text": "a < b & c", "times": 3, "loud": True, "tags": ["x", "y"]}
    assert await decisions(temporal, run) == [("approve", "ada", "louder")]
    assert '"times": 3' in texts(slack.message)
    assert "Comment: louder" in texts(slack.message)


async def test_a_form_that_was_not_changed_edits_nothing(temporal: Temporal, slack: Slack) -> None:
    async with (
        temporal.worker(agent := clerk(post), llm=ScriptedModel([POSTS, "done"]), webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        await send(page, slack.press("Edit…"))
        await send(page, slack.fill())
        await result(run)
    (row,) = await temporal.store.load_decisions(run.first_execution_run_id or "")
    assert row.edit is None


async def test_what_cannot_be_used_stays_in_the_form_with_the_reason(temporal: Temporal, slack: Slack) -> None:
    async with (
        temporal.worker(agent := clerk(post), llm=ScriptedModel([POSTS, "done"]), webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        await send(page, slack.press("Edit…"))
        for tags, block, why in (
            ("[", "field-3", "not valid JSON"),
            ('{"a": 1, "a": 2}', "field-3", "a key twice"),
            ('"no list"', "comment", "tags"),  # the run reports it
        ):
            answer = (await send(page, slack.fill(tags=tags))).json()
            assert answer["response_action"] == "errors"
            assert why in answer["errors"][block]
        assert [item["name"] for item in await pending(run)] == ["p1"]
        assert (await send(page, slack.fill(tags="[]"))).content == b""
        await result(run)


async def test_a_rejection_has_a_comment_which_the_model_reads(temporal: Temporal, slack: Slack) -> None:
    model = ScriptedModel([CHARGES, "done"])
    async with (
        temporal.worker(agent := clerk(), llm=model, webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: slack.messages)
        await send(page, slack.press("Reject"))
        assert (await send(page, slack.fill(Comment="too much"))).content == b""
        await result(run)
        assert any("too much" in one.content for one in await temporal.messages())
    assert "Rejected by ada" in texts(slack.message)


async def test_while_others_must_approve_too_the_buttons_stay(temporal: Temporal, slack: Slack) -> None:
    of = line(quorum=2, approvers=["ada", "olga"])
    async with (
        temporal.worker(pipelines=[of], webhooks=[slack.webhook()]),
        page_for(temporal, slack=slack.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: slack.messages)
        await send(page, slack.press("Approve"))
        await until(lambda: "Approved by ada, 1 of 2" in texts(slack.message))
        assert "Approve" in buttons(slack.message)
        await until(lambda: approved(temporal, run, ["ada"]))
        await send(page, slack.press("Approve", "U0OLGA"))
        await result(run)
        await until(lambda: "Approved by ada, olga, 20" in texts(slack.message))
    assert buttons(slack.message) == {}


async def approved(temporal: Temporal, run: Any, by: Sequence[str]) -> bool:
    people = StandfastClient(temporal.client, store=temporal.store)
    return [item["approved_by"] for item in await people.pending(run.id)] == [by]
