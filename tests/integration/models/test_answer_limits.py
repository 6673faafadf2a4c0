"""A provider, or an impostor at its address, cannot make a worker read without end."""

import asyncio
import contextlib
import functools
import gzip
import json
import resource
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from integration.models.test_providers import ask, provider, served, way
from standfast import Agent, DefinitionError, ModelError, run
from standfast.llm import AnswerLimits, create_adapter
from standfast.testing import Reply
from standfast.testing.model_server import _as_reply

__all__ = ["provider", "way"]  # fixtures

MEGABYTE = 1_000_000
SMALL = AnswerLimits(max_bytes=MEGABYTE, max_event_bytes=MEGABYTE // 2, max_seconds=60)
STREAM = {"Content-Type": "text/event-stream"}
JSON = {"Content-Type": "application/json"}


@functools.cache
def bomb(megabytes: int, pack: str = "gzip") -> bytes:
    """Return a small body that unpacks to a large one."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if pack == "gzip" else 15)
    packed = [packer.compress(b" " * MEGABYTE) for _ in range(megabytes)]
    return b"".join([*packed, packer.flush()])


async def refused(name: str, way: str, reply: Reply, limits: AnswerLimits = SMALL) -> ModelError:
    async with served(name, reply, limits=limits) as (server, model):
        with pytest.raises(ModelError) as raised:
            await ask(model, way)
        assert len(server.requests) == 1
    return raised.value


@pytest.mark.slow(but=10)
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("pack", ["gzip", "deflate"])
async def test_a_small_body_that_unpacks_to_gigabytes_is_not_unpacked(
    provider: str, way: str, pack: str, status: int
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    headers = {**(STREAM if way == "stream" else JSON), "Content-Encoding": pack}
    error = await refused(provider, way, Reply(bomb(300, pack), status, headers))
    assert "its answer has more than" in str(error)
    assert not error.transient
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.parametrize("status", [200, 400])
async def test_an_answer_that_is_too_large_is_not_asked_for_again(provider: str, way: str, status: int) -> None:
    error = await refused(provider, way, Reply(b"x" * 2 * MEGABYTE, status, STREAM if way == "stream" else JSON))
    assert "bytes; pass limits=AnswerLimits(max_" in str(error)
    assert not error.transient


async def test_many_small_events_are_too_large_together(provider: str) -> None:
    events = b'data: {"type": "ping", "choices": []}\n\n' * (2 * MEGABYTE // 40)
    error = await refused(provider, "stream", Reply(events, headers=STREAM))
    assert "AnswerLimits(max_bytes=" in str(error)


async def test_a_packed_answer_is_read(provider: str, way: str) -> None:
    async with served(provider, "hello") as (server, model):
        await ask(model, way)
        plain = _as_reply("hello", server.requests[0])
    headers = {**plain.headers, "Content-Encoding": "gzip"}
    async with served(provider, Reply(gzip.compress(b"".join(plain.pieces())), headers=headers)) as (_, model):
        answer, _ = await ask(model, way)
    assert answer.text == "hello"


async def test_a_packing_that_nobody_asked_for_is_refused_in_words(provider: str, way: str) -> None:
    error = await refused(provider, way, Reply(b"x", headers={"Content-Encoding": "zstd"}))
    assert "packed as 'zstd'" in str(error)


@contextlib.asynccontextmanager
async def dripping(head: bytes) -> AsyncIterator[str]:
    """Serve an answer that never ends, a byte at a time."""
    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(head)
            while not reader.at_eof() and not ended.is_set():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    tasks: list[asyncio.Task[None]] = []
    server = await asyncio.start_server(lambda *both: tasks.append(asyncio.create_task(drip(*both))), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        ended.set()
        server.close()
        await asyncio.gather(*tasks)  # left open, a connection is warned about in some later test


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ", b"HTTP/1.1 200 OK\r\nX: ",
     b"HTTP/1.1 500 No\r\n\r\n"],
    ids=["body", "head", "error"],
)  # fmt: skip
async def test_an_answer_that_drips_without_end_is_given_up(provider: str, way: str, head: bytes) -> None:
    async with dripping(head) as url:
        limits = AnswerLimits(max_seconds=0.3)
        model = create_adapter(provider=provider, model="m", api_key="key", base_url=url, limits=limits)
        with pytest.raises(ModelError, match=r"took more than 0\.3 s") as raised:
            await ask(model, way)
    assert not raised.value.transient


async def test_a_run_ends_in_words_and_asks_once() -> None:
    async with served("openai", Reply(bomb(100), headers={**JSON, "Content-Encoding": "gzip"})) as (server, model):
        ended = await run(Agent("a", instructions="x"), message="go", llm=model)
        assert ended.status == "error"
        assert "its answer has more than 16,777,216 bytes" in str(ended.error)
        assert len(server.requests) == 1


@pytest.mark.parametrize("value", [0, -1, True, "1", float("nan")])
@pytest.mark.parametrize("name", ["max_bytes", "max_event_bytes", "max_seconds"])
def test_a_limit_is_a_positive_number(name: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=name):
        AnswerLimits(**{name: value})


def _fragments(name: str, text: str) -> Iterator[Any]:
    """Yield the events of an answer of one call, whose arguments come in pieces of four characters."""
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    if name == "anthropic":
        yield "message_start", {"type": "message_start", "message": {"usage": {"input_tokens": 1, "output_tokens": 1}}}
        block = {"type": "tool_use", "id": "c", "name": "echo", "input": {}}
        yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
        for piece in pieces:
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
        yield "message_stop", {"type": "message_stop"}
    else:
        for piece in pieces:
            call = {"index": 0, "function": {"name": "echo", "arguments": piece}}
            yield {"choices": [{"delta": {"tool_calls": [call]}}]}
        yield {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}


@pytest.mark.parametrize("name", ["anthropic", "openai-compatible"])
async def test_long_arguments_in_small_pieces_take_a_time_that_grows_with_their_length_alone(name: str) -> None:
    text = json.dumps({"text": 'a"\\}{' * 20_000})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    async with served(name, Reply(list(_fragments(name, text)), headers=STREAM)) as (_, model):
        answer, _ = await ask(model, "stream")
    assert answer.tool_calls[0].arguments == json.loads(text)
    assert len(answer.tool_calls) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 10  # seconds; it was several minutes
