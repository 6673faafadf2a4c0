"""Webhooks that deploys add and remove: none gets another webhook's notice."""

from functools import partial

import pytest
from support.temporal_runs import Run, Temporal, check_healthy, pending, result, until
from support.transcripts import asks_for, call

from integration.temporal.test_webhooks import OK, asked, clerk
from standfast import DefinitionError
from standfast.temporal import Webhook
from standfast.temporal.activities.gates.webhooks import check_webhooks
from standfast.testing import ModelServer, Reply, ScriptedModel

CHARGE = asks_for(call("charge", "c1", amount=5))


def hook(name: str, server: ModelServer, *kinds: str) -> Webhook:
    return Webhook(name=name, url=server.url, kinds=kinds)


async def test_an_approval_is_not_told_to_a_webhook_that_has_taken_the_place_of_the_one_it_was_for(
    temporal: Temporal,
) -> None:
    agent = clerk()
    down = ModelServer(lambda request: Reply(b"no", status=503))
    async with down as security, ModelServer(lambda request: OK) as helpdesk:
        both = [hook("security", security, "approval"), hook("helpdesk", helpdesk, "question")]
        async with temporal.worker(agent, llm=ScriptedModel([CHARGE]), webhooks=both):
            run = await temporal.start(agent)
            await until(lambda: security.requests)
        later = ScriptedModel([asks_for(call("ask_user", "c2", question="Which?")), "done"])
        async with temporal.worker(agent, llm=later, webhooks=both[1:]):
            await temporal.people.decide(run.id, "c1", "approve", by="ada")
            await until(lambda: helpdesk.requests)
            await temporal.people.answer(run.id, "this")
            await result(run)
            await check_healthy(run)
    assert asked(helpdesk) == [("question", "c2")]


async def test_a_webhook_that_a_deploy_adds_is_told_of_what_opens_later_in_runs_that_began_before(
    temporal: Temporal,
) -> None:
    agent = clerk()
    async with ModelServer(lambda request: OK) as security, ModelServer(lambda request: OK) as helpdesk:
        first = [hook("helpdesk", helpdesk, "question")]
        script = [asks_for(call("ask_user", "c0", question="Which?"))]
        async with temporal.worker(agent, llm=ScriptedModel(script), webhooks=first):
            run = await temporal.start(agent)
            await until(lambda: helpdesk.requests)
            await until(partial(_is_idle, run))
        both = [hook("security", security, "approval"), *first]
        async with temporal.worker(agent, llm=ScriptedModel([CHARGE, "done"]), webhooks=both):
            await temporal.people.answer(run.id, "this")
            await until(lambda: security.requests)
            await temporal.people.decide(run.id, "c1", "approve", by="ada")
            await result(run)
    assert asked(security)[0] == ("approval", "c1")
    assert asked(helpdesk) == [("question", "c0")]


async def test_a_webhook_that_fails_has_the_others_told_once(temporal: Temporal) -> None:
    agent, fails = clerk(), [Reply(b"no", status=503), Reply(b"no", status=503)]
    async with (
        ModelServer(lambda request: OK) as one,
        ModelServer(lambda request: fails.pop() if fails else OK) as two,
        ModelServer(lambda request: Reply(b"gone", status=404)) as gone,
    ):
        hooks = [hook(name, server, "question") for name, server in (("one", one), ("gone", gone), ("two", two))]
        script = [asks_for(call("ask_user", "c1", question="Which?")), "done"]
        async with temporal.worker(agent, llm=ScriptedModel(script), webhooks=hooks):
            run = await temporal.start(agent)
            await pending(run)
            await until(lambda: len(two.requests) == 3)
            await temporal.people.answer(run.id, "this")
            await result(run)
    assert (len(one.requests), len(gone.requests)) == (1, 1)


async def _is_idle(run: Run) -> bool:
    """Whether nothing of a run is with the worker, which else takes it along when it stops, for ten seconds."""
    described = (await run.describe()).raw_description
    return not described.pending_activities and not described.HasField("pending_workflow_task")


def test_a_webhook_is_named_by_its_host_and_two_of_one_host_need_names() -> None:
    one, two = Webhook(url="https://hooks.example.com/a"), Webhook(url="https://hooks.example.com/b")
    assert one.name == "hooks.example.com"
    with pytest.raises(DefinitionError, match=r"two are named 'hooks\.example\.com'"):
        check_webhooks([one, two])
    assert len(check_webhooks([one, Webhook(name="other", url=two.url)])) == 2
