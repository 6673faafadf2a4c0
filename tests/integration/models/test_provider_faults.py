"""Providers' faults through their own SDKs: none becomes a shortened answer or an error without a reason."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from integration.models.test_providers import CALLS, ECHO, PATHS, USAGE, ask, provider, served, way
from standfast import LLMResponse, ModelError
from standfast.testing import Fault, ModelServer, Reply
from standfast.testing.wire_formats import FORMATS

__all__ = ["provider", "way"]  # fixtures


@pytest.mark.parametrize(
    ("fault", "transient", "says"),
    [
        (Fault(429, retry_after=7, words="slow down"), True, "status 429: slow down"),
        (Fault(500), True, "status 500"),
        (Fault(503), True, "status 503"),
        (Fault(529), True, "status 529"),
        (Fault(401, words="invalid x-api-key"), False, r"status 401 \(check the API key\): invalid x-api-key"),
        (Fault(403), False, "status 403"),
        (Fault(404, words="no such model"), False, r"status 404 \(check model and base_url\): no such model"),
        (Fault(400, words="prompt is too long: 210000 tokens"), False, "show the model less"),
        (Fault(400, words="bad request"), False, "status 400: bad request"),
        (Fault(end="reset"), True, "gave no answer"),
    ],
    ids=["429", "500", "503", "529", "401", "403", "404", "too long", "400", "reset"],
)
async def test_what_a_fault_means(provider: str, way: str, fault: Fault, transient: bool, says: str) -> None:
    async with served(provider, fault) as (server, model):
        with pytest.raises(ModelError, match=says) as raised:
            await ask(model, way)
    assert raised.value.transient is transient
    assert raised.value.retry_after == fault.retry_after
    assert len(server.requests) == 1  # the caller decides whether to call it again


async def test_a_cut_answer_may_be_asked_for_again(provider: str, way: str) -> None:
    async with served(provider, Fault(answer="Hello, it is me.", end="cut")) as (_, model):
        with pytest.raises(ModelError, match="gave no answer") as raised:
            await ask(model, way)
    assert raised.value.transient


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"output": 1, "content": 1, "choices": 1}'],
                         ids=["html", "list", "another object"])  # fmt: skip
async def test_an_answer_that_is_none_may_be_asked_for_again(provider: str, body: bytes) -> None:
    async with served(provider, Reply(body, headers={"Content-Type": "application/json"})) as (_, model):
        with pytest.raises(
            ModelError, match=r"gave no answer: (its answer is|the stream ended before the answer was complete)"
        ) as raised:
            await ask(model, "chat")
    assert raised.value.transient


SAID = LLMResponse(text="Hello, it is me.", tool_calls=CALLS[:1], usage=USAGE)


async def test_a_stream_that_is_cut_after_any_event_is_not_an_answer(provider: str) -> None:
    path = PATHS.get(provider, "/v1/chat/completions").removeprefix("/v1")
    events = list(FORMATS[path][1](SAID, "m"))
    headers = {"Content-Type": "text/event-stream"}
    # The last events of Chat Completions bring the usage and [DONE]: a server may leave them out.
    for count in range(len(events) - (2 if path == "/chat/completions" else 0)):
        async with served(provider, Reply(events[:count], headers=headers, end="closed")) as (_, model):
            with pytest.raises(ModelError) as raised:
                await ask(model, "stream", tools=[ECHO])
        assert raised.value.transient, count


JUNK = [
    b"[]",
    b"5",
    b"null",
    b"{",
    b'{"type": "message_start"}',
    b'{"type": "response.completed", "response": {"output": [1]}}',
    b'{"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta", "text": "x"}}',
    b'{"output": [{"type": "message", "content": 5}], "usage": 5}',
    b'{"output": [], "incomplete_details": {"reason": 5}}',
    b'{"content": [], "stop_reason": 5}',
    b'{"choices": [{"message": {"content": 5}}]}',
]


@pytest.mark.parametrize("junk", JUNK)
async def test_whatever_a_server_sends_it_is_an_answer_or_none(provider: str, way: str, junk: bytes) -> None:
    """And never an internal error of ours, or of an SDK's."""
    name = json.loads(junk).get("type") if b'"type"' in junk and junk != b"{" else "message_start"
    body: Any = [(name, junk)] if way == "stream" else junk
    kind = "text/event-stream" if way == "stream" else "application/json"
    async with served(provider, Reply(body, headers={"Content-Type": kind})) as (_, model):
        (came,) = await asyncio.gather(ask(model, way, tools=[ECHO]), return_exceptions=True)
    if isinstance(came, BaseException):
        assert isinstance(came, ModelError), came
        assert "gave no answer" in str(came)
    else:
        assert (came[0].text, came[0].tool_calls) == ("", ())


async def test_a_server_that_says_nothing_is_given_up(provider: str) -> None:
    async with served(provider, Fault(end="silent"), timeout=0.2) as (_, model):
        with pytest.raises(ModelError, match="gave no answer") as raised:
            await ask(model, "chat")
    assert raised.value.transient


async def test_a_request_that_says_nothing_takes_no_answer_of_the_script() -> None:
    async with ModelServer("hi") as server, httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/models")).status_code == 411
        told = await client.post("/chat/completions", json={"model": "m", "messages": []})
    assert told.json()["choices"][0]["message"]["content"] == "hi"
    assert len(server.requests) == 1
