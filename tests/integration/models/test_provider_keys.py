"""Keys and addresses of providers: keys go only to the right address, and are never shown."""

import anthropic
import httpx
import openai
import pytest

from integration.models.test_providers import ask, provider
from standfast import DefinitionError, ModelError
from standfast.llm import (
    AnthropicMessages,
    LLMAdapter,
    OpenAICompatible,
    OpenAIResponses,
    create_adapter,
)
from standfast.testing import Fault, ModelServer, Reply

__all__ = ["provider"]  # a fixture

SECRET = "sk-very-secret-0123456789"


def adapter_with_key(provider: str, server: ModelServer, key: str) -> LLMAdapter:
    base_url = f"http://{server.address}" if provider == "anthropic" else server.url
    return create_adapter(provider=provider, model="m", api_key=key, base_url=base_url)


async def test_a_key_that_the_provider_repeats_is_not_in_the_error(provider: str) -> None:
    async with ModelServer(Fault(401, words=f"Incorrect API key provided: {SECRET}.")) as server:
        with pytest.raises(ModelError, match=r"provided: \[the API key\]\.") as raised:
            await ask(adapter_with_key(provider, server, SECRET), "chat")
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
    assert not raised.value.transient


async def test_a_key_is_not_in_an_error_where_the_providers_words_are_cut(provider: str) -> None:
    async with ModelServer(Fault(401, words=f"{'x' * 570}{SECRET} and more {'y' * 600}")) as server:
        with pytest.raises(ModelError) as raised:
            await ask(adapter_with_key(provider, server, SECRET), "chat")
    assert SECRET[:12] not in str(raised.value)
    assert raised.value.__cause__ is None


async def test_the_key_of_a_client_that_was_given_is_not_in_an_error() -> None:
    async with (
        ModelServer(*[Fault(401, words=f"no: {SECRET}")] * 3) as server,
        openai.AsyncOpenAI(api_key=SECRET, base_url=server.url) as for_openai,
        anthropic.AsyncAnthropic(api_key=SECRET, base_url=f"http://{server.address}") as for_anthropic,
        httpx.AsyncClient(headers={"Authorization": f"Bearer {SECRET}"}) as for_others,
    ):
        models = [
            OpenAIResponses(model="m", client=for_openai),
            AnthropicMessages(model="m", client=for_anthropic),
            OpenAICompatible(model="m", base_url=server.url, client=for_others),
        ]
        for model in models:
            with pytest.raises(ModelError, match=r"no: \[the API key\]"):
                await ask(model, "chat")


@pytest.mark.parametrize("address", ["localhost:1", "ftp://x/v1", "https://", "https://x/\nv1"])
@pytest.mark.parametrize("name", ["openai", "anthropic", "minimax", "openai-compatible"])
def test_an_address_where_nothing_can_be_asked_is_refused_at_once(
    name: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{name.upper().replace('-', '_')}_BASE_URL", address)
    with pytest.raises(DefinitionError, match="base_url"):
        create_adapter(provider=name, model="m", api_key="key")


@pytest.mark.parametrize("name", ["openai", "anthropic", "minimax"])
def test_an_empty_address_is_the_usual_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{name.upper()}_BASE_URL", " ")
    create_adapter(provider=name, model="m", api_key="key")


@pytest.mark.parametrize("key", [f"{SECRET}\nX", f"{SECRET}\0", f"{SECRET}…"])
async def test_a_key_that_no_header_takes_is_refused_without_being_shown(provider: str, key: str) -> None:
    async with ModelServer() as server:
        with pytest.raises(Exception, match="the API key has characters that no header may have") as raised:
            adapter_with_key(provider, server, key)
    assert SECRET not in str(raised.value)


async def test_a_redirect_is_not_followed_with_the_key(provider: str) -> None:
    async with ModelServer() as elsewhere:
        there = Reply(b"", 307, {"Location": f"http://{elsewhere.address}/v1/messages"})
        async with ModelServer(there) as server:
            with pytest.raises(ModelError, match=r"status 307 \(check base_url"):
                await ask(adapter_with_key(provider, server, SECRET), "chat")
        assert elsewhere.requests == []
