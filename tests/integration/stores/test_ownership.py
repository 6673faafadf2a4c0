"""Only its owner can continue a session, and others cannot see that it exists."""

from typing import Any

import pytest
from support.stores import contents

from standfast import (
    Agent,
    InputError,
    SessionAccessDeniedError,
    SessionNotFoundError,
    assert_complete,
    memory_store,
    run,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


@pytest.mark.parametrize(
    ("caller", "is_allowed"),
    [
        ({"user_id": "ann", "tenant_id": "acme"}, True),
        ({"user_id": "bob", "tenant_id": "acme"}, False),
        ({"tenant_id": "acme"}, False),
        ({"user_id": "ANN", "tenant_id": "acme"}, False),
        ({"user_id": "ann ", "tenant_id": "acme"}, False),
    ],
)
async def test_only_its_owner_continues_with_a_session(
    store: SQLiteStore, caller: dict[str, Any], is_allowed: bool
) -> None:
    agent = Agent("greeter")
    await run(
        agent,
        message="secret",
        llm=ScriptedModel(["yes"]),
        store=store,
        session_id="s",
        user_id="ann",
        tenant_id="acme",
    )
    before = await store.load_session("@acme/s")
    model = ScriptedModel(["more"])
    if is_allowed:
        await run(agent, message="hi", llm=model, store=store, session_id="s", **caller)
        assert await contents(store, "@acme/s") == ["secret", "yes", "hi", "more"]
        return
    with pytest.raises(SessionAccessDeniedError) as caught:
        await run(agent, message="hi", llm=model, store=store, session_id="s", **caller)
    assert caught.value.code == "SESSION_ACCESS_DENIED"
    assert (model.calls, await store.load_session("@acme/s"), await contents(store, "@acme/s")) == (
        [],
        before,
        ["secret", "yes"],
    )


async def test_a_stranger_cannot_tell_a_foreign_session_from_none(store: SQLiteStore) -> None:
    await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s", user_id="ann")
    texts = []
    for session_id in ("s", "t"):
        with pytest.raises((SessionAccessDeniedError, SessionNotFoundError)) as caught:
            await run(
                Agent("other"),
                message="hi",
                llm=ScriptedModel([]),
                store=store,
                session_id=session_id,
                user_id="bob",
                create_session=False,
            )
        texts.append(str(caught.value).replace(f": {session_id}", ""))
    assert texts == ["Session not found or access denied"] * 2


async def test_the_owner_of_a_new_session_is_who_runs(store: SQLiteStore) -> None:
    await run(
        Agent("greeter"),
        message="hi",
        llm=ScriptedModel(["yes"]),
        store=store,
        session_id="s",
        user_id="ann",
        tenant_id="acme",
    )
    listed = await store.list_sessions(user_id="ann")
    assert [(session.user_id, session.tenant_id) for session in listed] == [("ann", "acme")]


async def test_an_ownerless_session_is_anybodys_and_stays_so(store: SQLiteStore) -> None:
    await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    for user in ("ann", "bob"):
        await run(Agent("greeter"), message=user, llm=ScriptedModel(["ok"]), store=store, session_id="s", user_id=user)
    session = await store.load_session("s")
    assert session is not None
    assert (session.user_id, await contents(store)) == (None, ["hi", "yes", "ann", "ok", "bob", "ok"])


async def test_a_memory_store_checks_the_owner_too() -> None:
    memory = memory_store()
    first = assert_complete(
        await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=memory, user_id="ann")
    )
    with pytest.raises(SessionAccessDeniedError):
        await run(
            Agent("greeter"),
            message="hi",
            llm=ScriptedModel([]),
            store=memory,
            session_id=first.session_id,
            user_id="bob",
        )


@pytest.mark.parametrize("field", ["user_id", "tenant_id"])
@pytest.mark.parametrize("value", ["", 7, b"ann", ["ann"], "\ud800", "ann\0"])
async def test_an_owner_that_is_not_a_clean_text_is_refused_before_the_model_is_called(
    store: SQLiteStore, field: str, value: Any
) -> None:
    model = ScriptedModel(["yes"])
    options: dict[str, Any] = {field: value}
    with pytest.raises(InputError, match=field):
        await run(Agent("greeter"), message="hi", llm=model, store=store, session_id="s", **options)
    assert (model.calls, await store.list_sessions()) == ([], [])


async def test_an_owner_full_of_sql_is_plain_text(store: SQLiteStore) -> None:
    name = "x'; DROP TABLE agent_sessions; --"
    await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s", user_id=name)
    assert [session.id for session in await store.list_sessions(user_id=name)] == ["s"]
