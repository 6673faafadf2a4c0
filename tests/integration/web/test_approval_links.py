"""Signed links: an approver decides from a message, without signing in, on exactly the shown content."""

from typing import Any

import httpx
import pytest
from support.pages import PEOPLE, browser
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call

from standfast import Agent, Approval, DefinitionError, pipeline, tool
from standfast.temporal import ApprovalLinks, Webhook, start_pipeline
from standfast.testing import ModelServer, Reply, ScriptedModel
from standfast.web import Access

SECRET = "a secret of workers and the page"
PAGE = "http://127.0.0.1"
LINKED = Access(people=PEOPLE, link_secret=SECRET)


def links(**options: Any) -> ApprovalLinks:
    return ApprovalLinks(**{"page": PAGE, "secret": SECRET, "by": "ada"} | options)


@tool(approval=Approval(message="Charge the customer?", approvers=["ada"]))
async def charge(amount: int) -> str:
    return f"charged {amount}"


gated = (
    pipeline("gated")
    .step("ok", approval=Approval(message="Go?"))
    .step("sure", approval=Approval(message="Really?"))
    .build()
)


async def start_gated(temporal: Temporal) -> Any:
    return await start_pipeline(temporal.client, gated, task_queue=temporal.name, run_key=temporal.session())


async def test_whom_a_webhook_sends_a_link_decides_with_it_and_looking_does_not(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    model = ScriptedModel([asks_for(call("charge", "c1", amount=5)), "done"])
    async with ModelServer(lambda request: Reply(b"ok")) as server, browser(temporal, LINKED) as client:
        hooks = [
            Webhook(url=server.url, approval_links=links()),
            Webhook(url=server.url, approval_links=links(), format="slack", name="slack"),
        ]
        async with temporal.worker(agent, llm=model, webhooks=hooks):
            run = await temporal.start(agent)
            await until(lambda: len(server.requests) == 2)
            told = sorted((request.body for request in server.requests), key=lambda body: "blocks" in body)
            link = told[0]["data"]["decide_url"]
            assert "|approve or reject>" in told[1]["blocks"][1]["text"]["text"]

            shown = await client.get(link)
            assert "Decide as ada" in shown.text
            assert "Charge the customer?" in shown.text
            assert (await pending(run))[0]["name"] == "c1"

            done = await client.post(link, data={"decision": "approve", "comment": "by mail", "edit": '{"amount": 4}'})
            assert done.headers["Location"] == f"{link.removeprefix(PAGE)}?said=approve"
            await result(run)
            assert "is no longer waiting" in (await client.get(link)).text
            assert (await client.post(link, data={"decision": "reject"})).status_code == 409
            (decision,) = await temporal.store.load_decisions(run.first_execution_run_id or "")
            assert (decision.by, decision.comment, decision.edit) == ("ada", "by mail", {"amount": 4})


async def test_a_link_decides_at_its_own_gate_whatever_is_sent_with_it(temporal: Temporal) -> None:
    async with temporal.worker(pipelines=[gated]), browser(temporal, LINKED) as client:
        run = await start_gated(temporal)
        (first,) = await pending(run)
        link = links().to(run.id, first)
        await client.post(link, data={"decision": "approve", "gate": "sure", "digest": "another"})
        await until(lambda: _waits_for(temporal, run.id, "sure"))
        again = await client.post(link, data={"decision": "approve", "gate": "sure"})
        assert again.status_code == 409
        assert [item["name"] for item in await temporal.people.pending(run.id)] == ["sure"]
        await run.cancel()


async def _waits_for(temporal: Temporal, run: str, gate: str) -> bool:
    return [item["name"] for item in await temporal.people.pending(run)] == [gate]


async def test_a_link_that_is_forged_old_or_of_nobody_here_is_refused(temporal: Temporal) -> None:
    async with temporal.worker(pipelines=[gated]), browser(temporal, LINKED) as client:
        run = await start_gated(temporal)
        (item,) = await pending(run)
        good = links().to(run.id, item)

        async def refused(link: str, by: httpx.AsyncClient = client) -> tuple[int, int]:
            return (await by.get(link)).status_code, (await by.post(link, data={"decision": "approve"})).status_code

        assert (await client.get(good)).status_code == 200
        assert await refused(good[:-2] + ("A" if good[-2] != "A" else "B") + good[-1]) == (403, 403)
        assert await refused(links(secret="of somebody else entirely").to(run.id, item)) == (403, 403)
        assert await refused(links(valid=0.001).to(run.id, item)) == (403, 403)
        assert await refused(links().to(run.id, item | {"deadline": "2020-01-01T00:00:00+00:00"})) == (403, 403)
        assert await refused(links(by="vera").to(run.id, item)) == (403, 403)  # she may only look
        assert await refused(links(by="mallory").to(run.id, item)) == (403, 403)
        foreign = await client.post(good, data={"decision": "approve"}, headers={"Sec-Fetch-Site": "cross-site"})
        assert foreign.status_code == 403
        async with browser(temporal, Access(people=PEOPLE)) as without:
            assert await refused(good, without) == (403, 403)
        assert (await pending(run))[0]["name"] == "ok"
        await run.cancel()


async def test_a_link_is_not_for_what_the_gate_asks_another_time(temporal: Temporal) -> None:
    async with temporal.worker(pipelines=[gated]), browser(temporal, LINKED) as client:
        run = await start_gated(temporal)
        (item,) = await pending(run)
        earlier = links().to(run.id, item | {"since": "2020-01-01T00:00:00+00:00"})
        other = links().to(run.id, item | {"digest": "0" * 64})
        for link in (earlier, other):
            assert "is no longer waiting" in (await client.get(link)).text
            assert (await client.post(link, data={"decision": "approve"})).status_code == 409
        await run.cancel()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"page": "runs.example.com"}, "page must be like"),
        ({"page": "https://runs.example.com?x=1"}, "page must be like"),
        ({"secret": "short"}, "secret must have at least 20"),
        ({"by": ""}, "by must be a name"),
    ],
    ids=str,
)
def test_links_that_could_not_be_used_are_refused(options: Any, rule: str) -> None:
    with pytest.raises(DefinitionError, match=rule):
        links(**options)
