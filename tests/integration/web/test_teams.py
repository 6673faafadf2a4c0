"""Microsoft Teams: people decide with card buttons and forms, and the cards show the decision.

The payloads follow Microsoft's documents; see `support.teams`.
"""

import json

import pytest
from starlette.responses import Response
from support.chats import HOSTILE, POSTS, clerk, decisions, line, on_board, page_for, post, start_line
from support.pages import CHARGES
from support.teams import Teams, answered, buttons, card_of, texts
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call

from standfast import Approval, Diff, Image, Markdown, Table, tool
from standfast.temporal import StandfastClient
from standfast.testing import ScriptedModel


async def test_a_button_approves_what_the_card_shows_and_everybody_reads_who_did(
    temporal: Temporal, teams: Teams
) -> None:
    hook = teams.webhook(link="https://x.example/runs/{workflow_id}?a=1&b=2")
    model = ScriptedModel([CHARGES, "done"])
    async with (
        temporal.worker(agent := clerk(), llm=model, webhooks=[hook]),
        page_for(temporal, teams=teams.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: teams.messages)
        assert list(buttons(teams.card)) == ["Approve", "Edit…", "Reject…", "Open"]
        for part in ("Charge the customer?", '{\n  "amount": 5\n}', run.id, "Tool: charge", "For: ada"):
            assert part in texts(teams.card)
        seen = await answered(page, teams, teams.press("Approve"))
        assert "Approved by ada, 20" in texts(seen)
        assert list(buttons(seen)) == ["Open"]
        assert (await result(run))["status"] == "complete"
        await until(lambda: "Approved by ada, 20" in texts(teams.card))
    assert list(buttons(teams.card)) == ["Open"]
    assert '{\n  "amount": 5\n}' in texts(teams.card)
    assert await decisions(temporal, run) == [("approve", "ada", None)]
    assert (len(teams.messages), teams.signed_in) == (1, 1)


async def test_a_form_has_a_field_for_each_argument_and_what_was_typed_is_what_runs(
    temporal: Temporal, teams: Teams
) -> None:
    model = ScriptedModel([POSTS, "done"])
    async with (
        temporal.worker(agent := clerk(post), llm=model, webhooks=[teams.webhook()]),
        page_for(temporal, teams=teams.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: teams.messages)
        before = teams.card
        form = await answered(page, teams, teams.press("Edit…"))
        assert teams.card == before  # no one else sees the form
        assert await answered(page, teams, teams.press("Back", card=form)) == before
        for tags, label, why in (
            ("[", "tags (JSON): ", "not valid JSON"),
            ('{"a": 1, "a": 2}', "tags (JSON): ", "a key twice"),
            ('"no list"', "", "tags"),  # the run reports it
        ):
            form = await answered(page, teams, teams.press("Approve", card=form, tags=tags, Comment="louder"))
            assert label in texts(form)
            assert why in texts(form)
            typed = {one["label"]: one.get("value") for one in form["body"] if "label" in one}
            assert (typed["tags (JSON)"], typed["Comment"]) == (tags, "louder")
        assert [item["name"] for item in await pending(run)] == ["p1"]
        press = teams.press("Approve", card=form, times="3", loud="true", tags='["x", "y"]')
        seen = await answered(page, teams, press)
        assert "Approved by ada" in texts(seen)
        await result(run)
        await until(lambda: "Comment: louder" in texts(teams.card))
    assert '"times": 3' in texts(teams.card)
    said = next(one.content for one in await temporal.messages() if one.role == "tool")
    assert json.loads(said)["result"] == ["a < b & c", 3, True, ["x", "y"]]
    assert await decisions(temporal, run) == [("approve", "ada", "louder")]


async def test_a_rejection_has_a_comment_and_while_others_must_approve_too_the_buttons_stay(
    temporal: Temporal, teams: Teams
) -> None:
    of = line(quorum=2, approvers=["ada", "olga"], on_reject="end")
    async with (
        temporal.worker(pipelines=[of], webhooks=[teams.webhook()]),
        page_for(temporal, teams=teams.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: teams.messages)
        seen = await answered(page, teams, teams.press("Approve"))
        assert "Approved by ada, 1 of 2" in texts(seen)
        await until(lambda: "Approved by ada, 1 of 2" in texts(teams.card))  # for all others as well
        assert "Approve" in buttons(teams.card)
        form = await answered(page, teams, teams.press("Reject…", "olga"))
        assert "Rejected by olga" in texts(
            await answered(page, teams, teams.press("Reject", "olga", card=form, Comment="no"))
        )
        await result(run)
        await until(lambda: "Rejected by olga" in texts(teams.card))
    assert buttons(teams.card) == {}
    assert "Comment: no" in texts(teams.card)
    assert await decisions(temporal, run) == [("approve", "ada", None), ("reject", "olga", "no")]


async def test_others_are_asked_about_an_edit_by_their_own_card(temporal: Temporal, teams: Teams) -> None:
    both = Approval(message="Charge?", approvers=["ada", "olga"], quorum=2)

    @tool(approval=both)
    async def charge(amount: int) -> str:
        return f"charged {amount}"

    async with (
        temporal.worker(agent := clerk(charge), llm=ScriptedModel([CHARGES, "done"]), webhooks=[teams.webhook()]),
        page_for(temporal, teams=teams.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: teams.messages)
        form = await answered(page, teams, teams.press("Edit…"))
        seen = await answered(page, teams, teams.press("Approve", card=form, amount="7"))
        assert "Edited by ada. Other people must approve the edit" in texts(seen)
        await until(lambda: len(teams.messages) == 2)
        assert "Edited: by ada: amount: 5 → 7. The message was written before the edit." in texts(teams.card)
        assert "Approved by: ada of 2" in texts(teams.card)
        assert "Approved by ada, olga" in texts(await answered(page, teams, teams.press("Approve", "olga")))
        await result(run)
        first = min(teams.messages)
        await until(lambda: "Other people must approve the edit" in texts(card_of(teams.messages[first])))
        assert "Approve" not in buttons(card_of(teams.messages[first]))


async def test_a_button_that_is_pressed_twice_or_sent_again_counts_once(temporal: Temporal, teams: Teams) -> None:
    of = line()
    async with (
        temporal.worker(pipelines=[of], webhooks=[teams.webhook()]),
        page_for(temporal, teams=teams.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: teams.messages)
        first, again = teams.press("Approve"), teams.press("Approve", "olga")
        for press in (first, first, again):
            assert "Approved by ada" in texts(await answered(page, teams, press))
        await result(run)
    assert await decisions(temporal, run) == [("approve", "ada", None)]


async def test_after_the_deadline_a_button_decides_nothing_and_the_card_says_so_on_its_own(
    temporal: Temporal, teams: Teams
) -> None:
    of = line(timeout="1s", on_timeout="reject")
    async with (
        temporal.worker(pipelines=[of], webhooks=[teams.webhook()]),
        page_for(temporal, teams=teams.app()) as page,
    ):
        run = await start_line(temporal, of)
        await until(lambda: teams.messages)
        press = teams.press("Approve")
        await result(run)
        assert "no longer waiting" in texts(await answered(page, teams, press))
        await until(lambda: buttons(teams.card) == {})
    assert "no longer waiting" in texts(teams.card)
    assert await decisions(temporal, run) == []


@pytest.mark.parametrize("length", [9_100, 26_000, 400_000])
async def test_what_a_card_cannot_show_whole_is_not_approved_from_it(
    temporal: Temporal, teams: Teams, length: int
) -> None:
    long = asks_for(call("post", "p1", text="<&\U0001f600" * (length // 3), times=2, loud=False, tags=[]))
    hook = teams.webhook(link="https://x.example/{workflow_id}")
    async with (
        temporal.worker(agent := clerk(post), llm=ScriptedModel([long, "done"]), webhooks=[hook]),
        page_for(temporal, teams=teams.app()) as page,
    ):
        run = await temporal.start(agent)
        await until(lambda: teams.messages)
        assert list(buttons(teams.card)) == ["Reject…", "Open"]
        assert "cannot be approved from here" in texts(teams.card)
        reject = teams.press("Reject…")
        for other in ("approve", "edit"):  # as only someone with the bot's secret could post it
            forged = {**reject["value"]["action"], "verb": f"standfast.{other}"}
            said = await answered(page, teams, {**reject, "value": {"action": forged}})
            assert "does not show all of this" in said
        assert [item["name"] for item in await pending(run)] == ["p1"]
        form = await answered(page, teams, reject)
        await answered(page, teams, teams.press("Reject", card=form))
        await result(run)
        await until(lambda: "Rejected by ada" in texts(teams.card))
    assert await decisions(temporal, run) == [("reject", "ada", None)]


async def test_a_card_of_many_short_lines_is_shortened_until_teams_takes_it(temporal: Temporal, teams: Teams) -> None:
    of = line(message="Go?", show={"many": [*range(900)]})  # few characters, and an element for each
    async with temporal.worker(pipelines=[of], webhooks=[teams.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: teams.messages)
        assert list(buttons(teams.card)) == ["Reject…"]
        assert "cannot be approved from here" in texts(teams.card)
        await run.cancel()


async def test_what_a_pipelines_gate_shows_is_in_the_card_and_no_picture_is_approved_unseen(
    temporal: Temporal, teams: Teams
) -> None:
    seen = line(show={"a": Markdown(HOSTILE), "b": Table([[1, "x"]], ["n", "s"]), "c": Diff("old", "new"), "d": [1]})
    unseen = line(show={"p": Image(data="aGk=", media_type="image/png")})
    async with temporal.worker(pipelines=[seen], webhooks=[teams.webhook()]):
        run = await start_line(temporal, seen)
        await until(lambda: teams.messages)
        for part in (HOSTILE, '["n", "s"]\n[1, "x"]', "- old\n+ new", "[\n  1\n]"):
            assert part in texts(teams.card)
        assert list(buttons(teams.card)) == ["Approve", "Reject…"]
        await run.cancel()
        await result_or_none(run)
    teams.messages.clear()
    async with temporal.worker(pipelines=[unseen], webhooks=[teams.webhook()]):
        run = await start_line(temporal, unseen, "other")
        await until(lambda: teams.messages)
        assert list(buttons(teams.card)) == ["Reject…"]
        await run.cancel()


async def result_or_none(run: object) -> None:
    try:
        await result(run)  # type: ignore[arg-type]
    except Exception:
        return


@pytest.mark.slow
async def test_without_a_worker_a_decision_is_sent_and_the_card_says_so_when_it_counts(
    temporal: Temporal, teams: Teams
) -> None:
    of = line()
    async with page_for(temporal, teams=teams.app()) as page:
        async with temporal.worker(pipelines=[of], webhooks=[teams.webhook()]):
            run = await start_line(temporal, of)
            await until(lambda: teams.messages)
            people = StandfastClient(temporal.client, store=temporal.store)
            await until(lambda: on_board(people, run))
        assert "takes longer than usual" in await answered(page, teams, teams.press("Approve"))
        assert "Approve" in buttons(teams.card)
        async with temporal.worker(pipelines=[of], webhooks=[teams.webhook()]):
            assert (await result(run))["status"] == "complete"
            await until(lambda: "Approved by ada" in texts(teams.card))
    assert buttons(teams.card) == {}


async def test_a_card_that_teams_does_not_take_is_sent_again(temporal: Temporal, teams: Teams) -> None:
    of = line()
    teams.faults = [Response(status_code=503), Response(status_code=429, headers={"Retry-After": "1"})]
    async with temporal.worker(pipelines=[of], webhooks=[teams.webhook()]):
        run = await start_line(temporal, of)
        await until(lambda: teams.messages)
        teams.faults = [Response(status_code=502)]
        await temporal.people.decide(run.id, "ok", "approve", by="ada")
        await result(run)
        await until(lambda: "Approved by ada" in texts(teams.card))
    assert (len(teams.messages), teams.signed_in) == (1, 1)


async def test_a_workflow_of_teams_gets_cards_that_lead_to_the_page(temporal: Temporal, teams: Teams) -> None:
    of = line(message=HOSTILE, show={HOSTILE: HOSTILE})
    async with temporal.worker(pipelines=[of], webhooks=[teams.workflow()]):
        run = await start_line(temporal, of)
        await until(lambda: teams.messages)
        assert HOSTILE in texts(teams.card)
        assert list(buttons(teams.card)) == ["Open"]
        await run.cancel()
