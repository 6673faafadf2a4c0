"""Tenants share no sessions, and strangers join no run: every door checks the owner."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.temporal_runs import (
    Run,
    Temporal,
    ask_once,
    check_healthy,
    clerk,
    failure,
    pending,
    raw_payload,
    refusals,
    result,
    status,
    until,
)
from temporalio.common import RawValue

from integration.local.test_tool_approvals import posts, world
from integration.temporal.test_temporal_sessions import helper
from standfast import (
    Agent,
    Approval,
    InputError,
    SessionAccessDeniedError,
    SessionConflictError,
    assert_complete,
    is_interrupted,
    pipeline,
    run,
    run_pipeline,
)
from standfast.stores import SQLiteStore, session_key_of
from standfast.temporal import StandfastClient, UserClient, start_agent, start_pipeline
from standfast.testing import ScriptedModel

ADA = {"user_id": "ada", "tenant_id": "acme"}
EVE = {"user_id": "eve", "tenant_id": "evil"}


@contextlib.asynccontextmanager
async def question(temporal: Temporal, **who: Any) -> AsyncIterator[Run]:
    """Give someone's run that waits for the answer to call c1."""
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        handle = await temporal.start(clerk, **who)
        await pending(handle)
        yield handle
        await check_healthy(handle)


# --- sessions of tenants ---


async def test_two_tenants_have_two_sessions_of_one_id(store: SQLiteStore) -> None:
    given: dict[str, Any] = {"store": store, "session_id": "s"}
    await run(helper, message="secret", llm=ScriptedModel(["one"]), **given, **ADA)
    other = await run(helper, message="hi", llm=ScriptedModel(["two"]), **given, **EVE)
    nobody = await run(helper, message="hey", llm=ScriptedModel(["three"]), **given)
    for ended in (other, nobody):
        assert [message.content for message in assert_complete(ended).messages[:1]] != ["secret"]
        assert (ended.session_id, ended.checkpoint.session_id) == ("s", "s")
    again = assert_complete(await run(helper, llm=ScriptedModel([]), **given, **ADA))
    assert (again.response, again.session_id) == ("one", "s")
    assert sorted(session.id for session in await store.list_sessions()) == ["@acme/s", "@evil/s", "s"]
    assert len(await store.load_messages(session_key_of("acme", "s"))) == 2


async def test_two_tenants_have_two_runs_of_one_session_id_on_temporal(temporal: Temporal) -> None:
    async with temporal.worker(helper, llm=ScriptedModel(lambda messages, tools: f"heard {messages[-1].content}")):
        handles = [await temporal.start(helper, text, **who) for text, who in (("one", ADA), ("two", EVE), ("x", {}))]
        ended = [await result(handle) for handle in handles]
        assert [one["response"] for one in ended] == ["heard one", "heard two", "heard x"]
        assert {one["session_id"] for one in ended} == {temporal.session()}
        assert [handle.id for handle in handles] == [
            f"helper/{session_key_of(tenant, temporal.session())}" for tenant in ("acme", "evil", None)
        ]
        for handle in handles:
            await check_healthy(handle)
    here = await run(helper, llm=ScriptedModel([]), store=temporal.store, session_id=temporal.session(), **ADA)
    assert assert_complete(here).response == "heard one"


async def test_the_id_of_a_workflow_names_no_session_of_another_tenant(temporal: Temporal) -> None:
    async with temporal.worker(helper, llm=ScriptedModel(["one", "two"])):
        await result(await temporal.start(helper, "secret", **ADA))
        for given in ({"message": "x"}, {"message": "x", **EVE}):
            squat = await temporal.start_raw("helper", given, id=f"helper/@acme/{temporal.session('other')}")
            assert "names a session of a different tenant" in (await failure(squat)).message
        own = await temporal.start_raw("helper", {"message": "x", **ADA}, id=f"helper/@acme/{temporal.session()}")
        assert (await result(own))["session_id"] == temporal.session()


@pytest.mark.parametrize("tenant", ["", "a/b", "@acme", "x" * 101, "a b", "ä"])
async def test_a_tenant_id_is_short_and_safe_in_ids(temporal: Temporal, tenant: str) -> None:
    with pytest.raises(InputError, match="tenant_id must be 1 to 100 characters"):
        await run(helper, message="hi", llm=ScriptedModel([]), store=temporal.store, tenant_id=tenant)
    with pytest.raises(InputError, match="tenant_id must be 1 to 100 characters"):
        await temporal.start(helper, "hi", tenant_id=tenant)
    with pytest.raises(InputError, match="tenant_id must be 1 to 100 characters"):
        await start_pipeline(temporal.client, "w", tenant_id=tenant)


async def test_agents_that_a_tenants_agent_calls_keep_their_sessions_with_it(temporal: Temporal) -> None:
    inner = Agent("inner", description="Helps.")
    outer = Agent("outer", tools=[inner])
    asks = {"tool_calls": [{"id": "c1", "name": "inner", "arguments": {"message": "please"}}]}
    async with temporal.worker(inner, outer, llm=ScriptedModel([asks, "helped", "done"])):
        handle = await temporal.start(outer, "go", **ADA)
        assert (await result(handle))["response"] == "done"
        await check_healthy(handle)
    messages = await temporal.store.load_messages(session_key_of("acme", temporal.session()))
    assert "helped" in messages[2].content
    assert all(session.id.startswith("@acme/") for session in await temporal.store.list_sessions())


async def test_two_tenants_have_two_runs_of_a_pipeline_of_one_key(store: SQLiteStore, temporal: Temporal) -> None:
    flow = pipeline("w").step("say", agent=helper, input=lambda ctx: ctx.input).build()
    for who in (ADA, EVE):
        model = ScriptedModel([str(who["user_id"])])
        went = await run_pipeline(flow, input="hi", llm=model, store=store, run_key="k", **who)
        assert (went.run_key, went.outputs["say"]) == ("k", {"response": who["user_id"]})
    async with temporal.worker(helper, pipelines=[flow], llm=ScriptedModel(["one", "two"])):
        for who, said in ((ADA, "one"), (EVE, "two")):
            given: Any = {"input": "hi", "run_key": temporal.name, "task_queue": temporal.name, **who}
            handle = await start_pipeline(temporal.client, flow, **given)
            assert handle.id == f"w/@{who['tenant_id']}/{temporal.name}"
            assert (await result(handle))["outputs"]["say"] == {"response": said}


# --- joining a run ---


async def test_a_stranger_neither_speaks_into_a_run_nor_reads_its_answer(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel([question_of(), "the secret"])):
        mine = await temporal.start(clerk, "mine", user_id="ada")
        await pending(mine)
        for stranger in ({"user_id": "eve"}, {}):
            with pytest.raises(SessionAccessDeniedError) as denied:
                await temporal.start(clerk, "what is it?", if_running="message", **stranger)
            assert str(denied.value) == f"Session not found or access denied: {temporal.session()}"
        same = await temporal.start(clerk, "by the way", if_running="message", user_id="ada")
        await mine.execute_update("answer", {"text": "yes"})
        assert (await result(same))["response"] == (await result(mine))["response"] == "the secret"
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == ["mine", "by the way"]


def question_of() -> Any:
    return {"tool_calls": [{"id": "c1", "name": "ask", "arguments": {"question": "ok?"}}]}


@pytest.mark.parametrize("who", [{"user_id": "bob", "tenant_id": "acme"}, {"tenant_id": "acme"}], ids=str)
async def test_a_person_who_starts_where_somebody_elses_run_is_in_flight_does_not_learn_of_it(
    temporal: Temporal, who: dict[str, Any]
) -> None:
    flow = pipeline("w").step("ok", approval=Approval()).build()
    keyed: Any = {"run_key": temporal.name, "task_queue": temporal.name}
    async with question(temporal, **ADA):
        with pytest.raises(SessionAccessDeniedError, match=f"denied: {temporal.session()}"):
            await temporal.start(clerk, "and I?", **who)
        with pytest.raises(SessionConflictError, match="has a run in flight"):
            await temporal.start(clerk, "and I?", **ADA)
    run = await start_pipeline(temporal.client, flow, **keyed, **ADA)
    with pytest.raises(SessionAccessDeniedError, match=f"denied: {temporal.name}"):
        await start_pipeline(temporal.client, flow, **keyed, **who)
    assert (await start_pipeline(temporal.client, flow, **keyed, **ADA)).result_run_id == run.result_run_id
    with pytest.raises(SessionConflictError, match="with another input"):
        await start_pipeline(temporal.client, flow, input={"other": 1}, **keyed, **ADA)


async def test_a_person_who_runs_a_pipeline_by_somebody_elses_key_does_not_learn_that_it_runs(
    store: SQLiteStore,
) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def answer(messages: Any, tools: Any) -> str:
        inside.set()
        await go_on.wait()
        return "done"

    flow = pipeline("w").step("say", agent=helper, input=lambda ctx: "hi").build()
    given: Any = {"llm": ScriptedModel(answer), "store": store, "run_key": "k"}
    running = asyncio.create_task(run_pipeline(flow, **given, **ADA))
    await inside.wait()
    with pytest.raises(SessionAccessDeniedError, match="denied: w/@acme/k"):
        await run_pipeline(flow, **given, user_id="bob", tenant_id="acme")
    with pytest.raises(SessionConflictError, match="in flight"):
        await run_pipeline(flow, **given, **ADA)
    go_on.set()
    assert (await running).status == "complete"


async def test_a_person_who_restarts_from_a_run_of_another_tenant_reads_what_they_read_if_there_is_none(
    temporal: Temporal,
) -> None:
    flow = pipeline("w").step("ok", approval=Approval()).step("say", agent=helper, input=lambda ctx: "hi").build()
    async with temporal.worker(helper, pipelines=[flow], llm=ScriptedModel([])):
        first = await start_pipeline(temporal.client, flow, task_queue=temporal.name, **ADA)
        await pending(first)
        told = []
        for key in ((await status(first))["run_key"], "nope"):
            again: Any = {"restart_of": key, "restart_from": "say", "task_queue": temporal.name}
            denied = await failure(await start_pipeline(temporal.client, flow, **again, **EVE))
            told.append((denied.type, denied.message.replace(key, "KEY")))
    there_is_none = (
        "restart_of: pipeline 'w' has no earlier run with the run_key 'KEY' that was started for user_id 'eve', "
        "tenant_id 'evil'; there is none at all"
    )
    assert told == [("InputError", there_is_none)] * 2


async def test_a_run_refuses_who_says_to_speak_for_another(temporal: Temporal) -> None:
    """Also where the sender did not look whose it is, and before the run has begun."""
    handle = await temporal.start(clerk, "mine", **ADA)
    for speaker in ({"user_id": "ada", "tenant_id": "evil"}, {"user_id": "eve", "tenant_id": "acme"}, {}):
        await handle.signal("message", {"text": "pay me", "from": speaker})
    await handle.signal("message", {"text": "and this", "from": ADA})
    async with temporal.worker(clerk, llm=ScriptedModel([question_of(), "done"])):
        await pending(handle)
        assert (await refusals(handle)) == ["message: the run belongs to another user"] * 3
        await handle.execute_update("answer", {"text": "yes"})
        await result(handle)
        await check_healthy(handle)
    said = [one.content for one in await temporal.store.load_messages(session_key_of("acme", temporal.session()))]
    assert ("pay me" in said, "and this" in said) == (False, True)


async def test_messages_to_a_run_need_no_worker(temporal: Temporal) -> None:
    first = await temporal.start(helper, "one", if_running="message", user_id="ada")
    second = await temporal.start(helper, "two", if_running="message", user_id="ada")
    with pytest.raises(SessionAccessDeniedError):
        await temporal.start(helper, "three", if_running="message", user_id="eve")
    model = ScriptedModel(["both"])
    async with temporal.worker(helper, llm=model):
        assert (await result(first)) == (await result(second))
    assert [message.content for message in model.calls[0].messages if message.role == "user"] == ["one", "two"]


# --- the client of a user ---


async def test_a_user_has_the_doors_of_their_own_runs(temporal: Temporal) -> None:
    async with question(temporal, **ADA) as handle:
        me = UserClient(temporal.client, **ADA)
        assert [item["kind"] for item in await me.pending(handle.id)] == ["question"]
        assert (await me.status(handle.id))["status"] == "waiting"
        await me.message(handle.id, "by the way")
        assert (await me.export(handle.id)).messages
        await me.answer(handle.id, "yes")
        assert (await me.result(handle.id))["status"] == "complete"


@pytest.mark.parametrize("who", [EVE, {"user_id": "ada"}, {"tenant_id": "acme"}, {**ADA, "user_id": "bob"}], ids=str)
async def test_no_door_of_a_run_opens_to_a_stranger(temporal: Temporal, who: dict[str, str]) -> None:
    async with question(temporal, **ADA) as handle:
        stranger = UserClient(temporal.client, user_id=who.get("user_id"), tenant_id=who.get("tenant_id"))
        doors: list[Any] = [
            stranger.result(handle.id),
            stranger.status(handle.id),
            stranger.pending(handle.id),
            stranger.message(handle.id, "hi"),
            stranger.answer(handle.id, "yes"),
            stranger.export(handle.id),
            stranger.cancel(handle.id),
        ]
        for work in doors:
            with pytest.raises(SessionAccessDeniedError, match=f"Run not found or access denied: {handle.id}"):
                await work
        for other in ("nothing", f"{handle.id}\n", handle.id.upper(), "", "x" * 2_000, "\0", "\ud800"):
            with pytest.raises(SessionAccessDeniedError, match="access denied: "):
                await stranger.status(other)
        assert (await status(handle))["status"] == "waiting"


async def test_a_person_who_is_refused_in_a_session_takes_no_door_from_its_owner(temporal: Temporal) -> None:
    bob = {**ADA, "user_id": "bob"}
    async with temporal.worker(helper, llm=ScriptedModel(["the secret"])):
        handle = await temporal.start(helper, "mine", **ADA)
        await result(handle)
        for _ in range(2):
            denied = await failure(await temporal.start(helper, "and I?", **bob))
            assert denied.type == "SessionAccessDeniedError"
        me, other = UserClient(temporal.client, **ADA), UserClient(temporal.client, **bob)

        async def finds() -> dict[str, Any] | None:
            with contextlib.suppress(SessionAccessDeniedError):  # the server's list of runs is a little behind
                return await me.result(handle.id)
            return None

        assert (await until(finds, 10))["response"] == "the secret"
        assert ((await me.status(handle.id))["status"], await me.pending(handle.id)) == ("complete", [])
        with pytest.raises(InputError):
            await me.message(handle.id, "more")
        with pytest.raises(SessionAccessDeniedError):
            await other.result(handle.id)


@pytest.mark.parametrize("memo", [{}, {"standfast.agent": "clerk"}], ids=["another program's", "ours"])
async def test_a_run_whose_input_nobody_can_read_is_nobodys_to_a_user(temporal: Temporal, memo: dict[str, str]) -> None:
    sealed = RawValue(raw_payload(b"?", "binary/sealed"))
    handle = await temporal.start_raw("clerk", sealed, memo=memo)
    with pytest.raises(SessionAccessDeniedError, match=f"denied: {handle.id}"):
        await UserClient(temporal.client, **ADA).status(handle.id)
    with pytest.raises(InputError, match="its input cannot be decoded"):
        await start_agent(
            temporal.client, clerk, message="hi", id=handle.id, if_running="message", task_queue=temporal.name
        )


async def test_a_user_of_another_tenant_decides_nothing(temporal: Temporal) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start(agent, **ADA)
        (item,) = await pending(handle)
        with pytest.raises(SessionAccessDeniedError):
            await UserClient(temporal.client, **EVE).decide(handle.id, "c1", "approve", digest=item["digest"])
        boss = UserClient(temporal.client, user_id="boss", tenant_id="acme")
        await boss.decide(handle.id, "c1", "approve", digest=item["digest"])
        await result(handle)
    assert posted == ["hi"]
    assert [row.by for row in await temporal.store.load_decisions(handle.result_run_id or "")] == ["boss"]


async def test_a_client_without_a_user_is_not_a_users_client() -> None:
    with pytest.raises(InputError, match="StandfastClient accesses all runs"):
        UserClient(None, user_id=None)  # type: ignore[arg-type]


# --- who may start, who may approve ---


def only(*users: str) -> Any:
    return lambda user: user in users


async def test_an_agent_says_who_may_start_it(temporal: Temporal) -> None:
    agent = Agent("a", access={"start": only("ada")})
    for who in ({}, {"user_id": "eve"}):
        with pytest.raises(InputError, match=r"Agent 'a': (eve|None) may not start it"):
            await run(agent, message="hi", llm=ScriptedModel([]), store=temporal.store, session_id="s", **who)
    ended = await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=temporal.store, user_id="ada")
    assert assert_complete(ended).response == "yes"
    async with temporal.worker(agent, llm=ScriptedModel(["yes"])):
        denied = await temporal.start(agent, "hi", user_id="eve")
        assert (await failure(denied)).message == "Agent 'a': eve may not start it"
        await check_healthy(denied)
        allowed = await temporal.start(agent, "hi", user_id="ada")
        assert (await result(allowed))["response"] == "yes"
    assert await temporal.store.load_session("s") is None


async def test_an_agent_says_who_may_approve_its_calls(temporal: Temporal) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post], access={"approve": only("boss")})
    given: Any = {"store": temporal.store, "session_id": "here"}
    waiting = await run(agent, message="go", llm=posts("hi"), **given)
    assert is_interrupted(waiting)
    approve = {"gate": "c1", "decision": "approve", "digest": waiting.approvals[0].digest}
    words = "gate c1: eve may not decide it"
    with pytest.raises(InputError, match=words):
        await run(agent, llm=posts(), decisions=[{**approve, "by": "eve"}], **given)
    await run(agent, llm=ScriptedModel(["done"]), decisions=[{**approve, "by": "boss"}], **given)
    async with temporal.worker(agent, llm=posts("ho")):
        handle = await temporal.start(agent)
        await pending(handle)
        with pytest.raises(InputError, match=words):
            await temporal.people.decide(handle.id, "c1", "approve", by="eve")
        assert posted == ["hi"]
        await temporal.people.decide(handle.id, "c1", "approve", by="boss")
        await result(handle)
        await check_healthy(handle)
    assert posted == ["hi", "ho"]


async def test_an_agent_that_a_tool_invokes_asks_as_well(temporal: Temporal) -> None:
    inner = Agent("inner", access={"start": only("ada")}, description="Helps.")
    outer = Agent("outer", tools=[inner])
    asks = {"tool_calls": [{"id": "c1", "name": "inner", "arguments": {"message": "please"}}]}
    ended = await run(outer, message="go", llm=ScriptedModel([asks, "done"]), user_id="eve")
    assert "may not start it" in assert_complete(ended).messages[2].content
    async with temporal.worker(inner, outer, llm=ScriptedModel([asks, "done"])):
        handle = await temporal.start(outer, "go", user_id="eve")
        await result(handle)
    assert "may not start it" in (await temporal.messages())[2].content


async def test_a_conversation_on_temporal_is_kept_apart_from_who_looks_on(temporal: Temporal) -> None:
    """The operator's client still speaks to all runs: it belongs to those who run them."""
    async with question(temporal, **ADA) as handle:
        people = StandfastClient(temporal.client)
        await people.message(handle.id, "from the operator", by="olga")
        await people.answer(handle.id, "yes", by="olga")
        await result(handle)
    messages = await temporal.store.load_messages(session_key_of("acme", temporal.session()))
    assert [message.by for message in messages if message.by is not None] == ["ada", "olga", "olga"]
