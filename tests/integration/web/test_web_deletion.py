"""Operators delete an ended run's session on its page, and the audit trail names them."""

from support.pages import BOB, PEOPLE, TOKENS, browser, send
from support.questions import ask_user
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call

from standfast import Agent
from standfast.testing import ScriptedModel
from standfast.web import Access

SECRET = "Ada Lovelace"


async def test_the_session_of_an_ended_run_is_deleted_on_its_page(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    model = ScriptedModel([asks_for(call("ask_user", "c1", question=f"Is it {SECRET}?")), "done"])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent, f"find {SECRET}")
        await pending(run)
        page = f"/runs/{run.id}"
        assert "Delete the session" not in (await client.get(page)).text
        await send(client, page, run.id, "answer", text="The red one")
        await result(run)
        shown = await send(client, page, run.id, "delete")
        assert (shown.status_code, "Deleted" in shown.text, SECRET in shown.text) == (200, True, False)
        assert "<td>ada</td><td>delete</td>" in shown.text
        assert "Delete the session" not in shown.text
        assert await temporal.store.list_sessions() == []
        rows = await temporal.store.load_decisions(str(run.first_execution_run_id))
        assert [(row.decision, row.outcome) for row in rows] == [("delete", "intended"), ("delete", "done")]


async def test_a_person_who_may_not_delete_is_not_offered_it_and_a_session_in_flight_stays(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    script = [asks_for(call("ask_user", "c1", question="Which?")), "done"]
    async with temporal.worker(agent, llm=ScriptedModel(script)), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        form = {"csrf": (await client.get(f"/runs/{run.id}")).text.split('name="csrf" value="')[1].split('"')[0]}
        refused = await client.post(f"/runs/{run.id}/delete", data=form)
        assert (refused.status_code, "run in flight" in refused.text) == (409, True)
        await send(client, f"/runs/{run.id}", run.id, "answer", text="x")
        await result(run)
        async with browser(temporal, Access(people=[*PEOPLE, BOB], secret="s" * 40)) as others:
            others.headers["Authorization"] = f"Bearer {TOKENS['ada']}"  # an approver
            assert "Delete the session" not in (await others.get(f"/runs/{run.id}")).text
            assert (await others.post(f"/runs/{run.id}/delete", data={})).status_code == 403
    assert len(await temporal.store.list_sessions()) == 1
