"""Checks of objects of a durable store: opened again, in other event loops, with large or odd values."""

import asyncio
import hashlib
from typing import Any

from standfast.errors import StandfastError, StoreError
from standfast.messages import Message, ToolCall
from standfast.testing.expectations import contents, expect, expect_same, say, session
from standfast.testing.rivals import Rivals
from standfast.testing.store_processes import close

_LARGE = 1_000_000
_MANY = 10_000


async def _identity(store: Any, who: int, number: int) -> str:
    identity: str = await store.identity()
    return identity


async def a_store_has_one_identity_for_all_also_if_many_make_it_at_once(store: Any, rivals: Rivals) -> None:
    async def check(number: int, heard: list[str]) -> None:
        expect_same(heard, "the identity, as each of those heard it who made the store at once")
        await close(store)
        expect(await store.identity(), heard[0], "the identity, when it is opened again")

    await rivals.race(_identity, check, most=2)


async def a_store_that_was_closed_opens_again(store: Any, rivals: Rivals) -> None:
    await store.append_messages_atomic("s1", say("a"), session(), expected_seq=0)
    await close(store)
    await close(store)
    expect(await contents(store), ["a"], "load_messages after close")
    await close(store)
    await store.append_messages_atomic("s1", say("b"), session(), expected_seq=1)
    await close(store)
    expect(await contents(rivals.other), ["a", "b"], "load_messages by another object")


async def a_store_serves_event_loops_that_end(store: Any, rivals: Rivals) -> None:
    for number in range(3):
        last = await asyncio.to_thread(asyncio.run, _append(store, number))
        expect(last, number + 1, "the number of the last message")
    expect(await contents(store), ["m0", "m1", "m2"], "load_messages in the loop that goes on")


async def _append(store: Any, number: int) -> int:
    last: int = await store.append_messages_atomic("s1", say(f"m{number}"), session(), expected_seq=number)
    return last


async def large_texts_and_many_messages_are_kept_whole(store: Any, rivals: Rivals) -> None:
    text = "ä🙂" * (_LARGE // 6)
    large = [
        Message(role="user", content=text),
        Message(role="assistant", tool_calls=(ToolCall(id="c1", name="look", arguments={"text": text}),)),
        Message(role="tool", content=text, tool_call_id="c1", tool_name="look", status="completed"),
    ]
    await store.append_messages_atomic("s1", large, session(state=f'"{text}"'), expected_seq=0)
    expect(await store.load_messages("s1") == large, True, "whether messages of a megabyte are loaded as they were")
    expect((await store.load_session("s1")).state == f'"{text}"', True, "whether a state of a megabyte is")
    many = [f"m{number}" for number in range(_MANY)]
    expect(
        await store.append_messages_atomic("s2", say(*many), session("s2"), expected_seq=0), _MANY, "the last number"
    )
    expect(await contents(store, "s2") == many, True, f"whether {_MANY:,} messages are loaded as they were")


async def large_results_and_replies_are_kept_whole(store: Any, rivals: Rivals) -> None:
    text = "ä🙂" * (_LARGE // 6)
    await store.claim("run", "1", owner="me", arguments_hash="h")
    await store.finish("run", "1", owner="me", state="done", result=text)
    expect((await store.settle("run", "1")).result == text, True, "whether a result of a megabyte is loaded as it was")
    await store.save_reply("run", 1, text)
    expect(await store.load_reply("run", 1) == text, True, "whether a reply of a megabyte is loaded as it was")


async def long_keys_are_kept_whole_or_refused(store: Any, rivals: Rivals) -> None:
    for length in (600, 20_000):
        keys = [_hard_to_shorten(f"{length} {number}", length) for number in range(2)]
        for key in (keys[0], keys[0][:-1] + "-"):
            try:
                await store.claim(keys[1], key, owner=key, arguments_hash="h")
                await store.save_reply(key, 1, key)
            except StoreError:
                expect(length > 600, True, f"whether a key of {length:,} characters is refused")
                continue
            entry = (await store.load_entries(keys[1], [key]))[key]
            expect((entry.owner == key, await store.load_reply(key, 1) == key), (True, True), "what the key is of")


def _hard_to_shorten(seed: str, length: int) -> str:
    parts = (hashlib.sha256(f"{seed} {number}".encode()).hexdigest() for number in range(length // 64 + 1))
    return "".join(parts)[:length]


async def a_text_that_no_database_keeps_is_kept_or_refused_and_harms_no_other(store: Any, rivals: Rivals) -> None:
    await store.append_messages_atomic("s1", say("before"), session(state="[0]"), expected_seq=0)
    for number, odd in enumerate(("a\0b", "\ud800", "\0", "\udfff\ud800"), 1):
        state = f'"{odd}"'
        writes = [
            store.append_messages_atomic("s1", [], session(state=state), expected_seq=number),
            *(store.append_messages_atomic(f"{number}{n}", say("a"), session(f"{number}{n}")) for n in range(3)),
        ]
        ended = await asyncio.gather(*writes, return_exceptions=True)
        expect(ended[1:], [1] * 3, f"writes beside {odd!r}")
        kept = (await store.load_session("s1")).state
        if isinstance(ended[0], BaseException):
            expect(isinstance(ended[0], StandfastError), True, f"whether {ended[0]!r} is an error of standfast")
            expect(kept, f"[{number - 1}]", f"the state, when {odd!r} was refused")
        else:
            expect(kept, state, "the state")
        await store.append_messages_atomic("s1", say(f"m{number}"), session(state=f"[{number}]"), expected_seq=number)


OBJECTS = [
    a_store_has_one_identity_for_all_also_if_many_make_it_at_once,
    a_store_that_was_closed_opens_again,
    a_store_serves_event_loops_that_end,
    large_texts_and_many_messages_are_kept_whole,
    a_text_that_no_database_keeps_is_kept_or_refused_and_harms_no_other,
]
LARGE_RESULTS = [large_results_and_replies_are_kept_whole, long_keys_are_kept_whole_or_refused]
