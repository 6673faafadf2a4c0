"""One waiting item, opened: the asking agent, the session, the conversation so far, and the usage."""

import re

import httpx
from support.pages import CHARGES, browser, charge
from support.temporal_runs import Temporal, pending, until
from support.transcripts import asks_for, call

from standfast import Agent, Approval, tool
from standfast.testing import ScriptedModel


def words(page: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", page).split())


async def test_a_person_who_asks_what_was_said_before_and_what_it_cost_is_shown_with_no_worker(
    temporal: Temporal,
) -> None:
    agent = Agent("clerk", tools=[charge])
    async with browser(temporal) as client:
        async with temporal.worker(agent, llm=ScriptedModel([CHARGES])):
            run = await temporal.start(agent, "charge the lady from Leeds", user_id="grace")
            await pending(run)
            await until(lambda: temporal.people_who_wait(1).pending(run.id))
        seen = words((await client.get(f"/items/{run.id}?name=c1")).text)
        assert "Charge the customer?" in seen
        assert "asked for by grace" in seen
        assert "its session" in seen
        assert "charge the lady from Leeds" in seen
        assert "The run has used 1,200 tokens in" in seen
        assert "All runs of the session" in seen
        gone = await client.get(f"/items/{run.id}?name=c9")
        assert (gone.status_code, "No item of this name waits" in gone.text) == (404, True)


async def test_what_others_decide_is_a_line_that_leads_to_all_of_it(temporal: Temporal) -> None:
    @tool(approval=Approval(message="Pay?", approvers=["bob"]))
    async def pay(amount: int) -> str:
        return "paid"

    agent = Agent("payer", tools=[pay])
    model = ScriptedModel([asks_for(call("pay", "c1", amount=4711))])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        leads = f'href="/items/{run.id}?name=c1">Pay?</a>'
        page = await until(lambda: shown(client, leads))
        assert "4711" not in page
        opened = (await client.get(f"/items/{run.id}?name=c1")).text
        assert "4711" in opened
        assert 'value="approve"' not in opened


async def shown(client: httpx.AsyncClient, text: str) -> str | None:
    page: str = (await client.get("/")).text
    return page if text in page else None
