"""Making an adapter for OpenAI's Chat Completions: its options, its client, and the late import of httpx."""

import asyncio
import subprocess
import sys
from typing import Any

import httpx
import httpx2
import pytest
from support.model_server import ModelServer, Reply, says

from standfast import DefinitionError, Message, ModelError
from standfast.llm.openai_compatible import OpenAICompatible

HI = [Message(role="user", content="hi")]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"base_url": "localhost:8080/v1"}, "base_url must be like"),
        ({"base_url": "/v1"}, "base_url must be like"),
        ({"base_url": "http://localhost:many/v1"}, "base_url 'http://localhost:many/v1': Invalid port"),
        ({"tool_mode": "text"}, "tool_mode must be 'native' or 'json'"),
        ({"api_key": "sk-\u2011"}, "the API key has characters that no header may have"),
        ({"api_key": "a\nb"}, "the API key has characters that no header may have"),
    ],
)
def test_what_no_request_can_be_made_with_is_refused_at_once(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError, match=f"^OpenAICompatible: {text}"):
        OpenAICompatible(**{"model": "m", "base_url": "http://localhost/v1", **options})


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_a_client_of_ones_own_makes_the_requests_and_stays_open(library: Any) -> None:
    async with ModelServer(says("one"), says("two")) as server, library.AsyncClient(headers={"X-Team": "a"}) as client:
        model = OpenAICompatible(model="m", base_url=server.url, client=client)
        assert [(await model.chat(HI, [])).text, (await model.chat(HI, [])).text] == ["one", "two"]
        assert not client.is_closed
    assert [request.headers["x-team"] for request in server.requests] == ["a", "a"]


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_what_keeps_a_client_of_ones_own_from_an_answer_is_a_model_error(library: Any) -> None:
    async with library.AsyncClient() as client:
        model = OpenAICompatible(model="m", base_url="http://127.0.0.1:1/v1", client=client)
        with pytest.raises(ModelError, match=r"gave no answer: ConnectError: .* \(check base_url, and the network\)"):
            await model.chat(HI, [])
        async with ModelServer(Reply({"error": {"message": "busy"}}, 503)) as server:
            model = OpenAICompatible(model="m", base_url=server.url, client=client)
            with pytest.raises(ModelError, match="503"):
                await model.chat(HI, [])


def test_a_client_of_httpx2_needs_no_httpx() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "import httpx2\n"
        "from standfast.llm.openai_compatible import OpenAICompatible\n"
        "print(OpenAICompatible(model='m', base_url='http://localhost/v1', client=httpx2.AsyncClient()).model)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("m\n", "")


async def test_one_adapter_serves_several_event_loops() -> None:
    async with ModelServer(says("one"), says("two")) as server:
        model = OpenAICompatible(model="m", base_url=server.url)
        answers = [await asyncio.to_thread(asyncio.run, model.chat(HI, [])) for _ in range(2)]
    assert [answer.text for answer in answers] == ["one", "two"]


def test_the_modules_load_httpx_only_when_an_adapter_is_made() -> None:
    code = "import sys, standfast.llm.openai_compatible; print('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_without_httpx_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "from standfast.llm.openai_compatible import OpenAICompatible\n"
        "try: OpenAICompatible(model='m', base_url='http://localhost/v1')\n"
        "except ImportError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "OpenAICompatible needs httpx: pip install 'standfast[httpx]'\n"
