"""Models behind OpenAI's Chat Completions: vLLM, llama.cpp, Ollama, gateways, OpenAI itself.

One request per call. The driver decides, by the `ModelError`, whether a failed request is made again.
"""

import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from standfast.errors import DefinitionError, InputError, ModelError
from standfast.events import ReasoningDelta
from standfast.extras import MissingExtraError, install
from standfast.llm.answer_limits import ENCODINGS, AnswerLimits, PastLimitError, events, in_time, read_bounded
from standfast.llm.chat_completions import (
    Answer,
    AnswerSoFar,
    mended,
    request_messages,
    request_tools,
    with_tool_choice,
)
from standfast.llm.json_tool_calls import plain_messages, read_reply, response_format
from standfast.llm.prices import Meter, Price, check_price, priced
from standfast.llm.protocol import ToolDescription
from standfast.llm.provider_errors import check_key, connection_advice, hidden, refusal
from standfast.llm.reasoning import keeper_of, renamed, server_of, spoken
from standfast.messages import JSONObject, LLMResponse, Message, error_text
from standfast.tools import Duration, seconds

if TYPE_CHECKING:
    import httpx
    import httpx2


_REFUSED = re.compile(r"answered with status (400|422)\b")
_CONNECT_TIMEOUT = 10.0  # seconds; a server that is up accepts a connection at once


class OpenAICompatible:
    """Calls one model of one server. Settings, such as `temperature=0`, go into the request unchanged.

    Args:
        base_url: the part before `/chat/completions`, such as "http://localhost:8080/v1".
        api_key: sent as a bearer token. It is never read from the environment, which may have another server's key.
        tool_mode: "native" uses the server's own tool calls. "json" describes the tools in the system prompt and has
            the server enforce a JSON schema on the answer (`response_format`), one call at a time: for small models.
        timeout: seconds of silence after which a call fails. An answer that is not streamed is silent until it is
            complete.
        limits: how much of an answer is read, and for how long.
        price: the price of its tokens; by default the price of the `provider`, if the library `genai-prices` has it.
        client: an httpx or httpx2 client that makes the requests; its creator closes it. Without one, every call opens
            a connection, so that the adapter works in several event loops and does not need closing.

    Raises:
        DefinitionError: these settings do not allow a request.
        ImportError: httpx is not installed, and no httpx2 client was given.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str,
        api_key: str | None = None,
        tool_mode: Literal["native", "json"] = "native",
        timeout: Duration = 600,
        price: Price | None = None,
        provider: str = "openai-compatible",
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008  # it is frozen
        client: "httpx.AsyncClient | httpx2.AsyncClient | None" = None,
    ) -> None:
        self._http = http = _library_of(client)
        try:
            url = http.URL(base_url.strip().rstrip("/") + "/chat/completions")
        except http.InvalidURL as error:
            raise DefinitionError(f"OpenAICompatible: base_url {base_url!r}: {error}") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise DefinitionError(
                f"OpenAICompatible: base_url must be like 'http://localhost:8080/v1', got {base_url!r}"
            )
        if tool_mode not in ("native", "json"):
            raise DefinitionError(f"OpenAICompatible: tool_mode must be 'native' or 'json', got {tool_mode!r}")
        key = check_key("OpenAICompatible", api_key)
        check_price(price)
        self.model, self.provider = model, provider
        self._price = price
        self._url = url
        # Earlier versions kept thoughts by server alone.
        self._kept_before = server_of(provider, url)
        self._keeper = keeper_of(provider, url.copy_with(path=url.path.removesuffix("/chat/completions")), model)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._tool_mode = tool_mode
        patience = seconds(timeout, "OpenAICompatible: timeout")
        self._timeout = http.Timeout(patience, connect=min(patience, _CONNECT_TIMEOUT))
        self._client, self._limits = client, limits
        given = "" if client is None else client.headers.get("Authorization", "").removeprefix("Bearer ")
        self._secrets = tuple(secret for secret in (key, given, url.password) if secret)
        self._certificates = http.create_ssl_context() if client is None else None  # 17 ms: once, not for every call

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any) -> LLMResponse:
        """Answer a conversation.

        Raises:
            ModelError: the server could not be reached, refused, or sent something that is not an answer.
        """
        answer = AnswerSoFar()
        async with self._asked(self._request(messages, tools, settings)) as body:
            answer.add(self._read(b"".join([piece async for piece in body])))
        response = self._priced(answer.response(self._keeper))
        return read_reply(response) if self._in_json(tools) else response

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> AsyncIterator[str | ReasoningDelta | LLMResponse]:
        """Yield pieces of thoughts and text, and the whole answer as the last value; raises as `chat` does.

        An answer that is a JSON object is not worth showing in pieces and is yielded whole.
        """
        if self._in_json(tools):
            response = await self.chat(messages, tools, **settings)
            for part in spoken(response):
                yield part
            yield response
            return
        # A setting may remove the options: some servers refuse them.
        streamed = {
            "stream_options": {"include_usage": True},
            **self._request(messages, tools, settings),
            "stream": True,
        }
        answer, is_whole = AnswerSoFar(), False
        with Meter(self._priced) as meter:
            async with self._asked(streamed) as body, aclosing(events(body, self._limits)) as found:
                async for data in found:
                    if data == b"[DONE]":
                        is_whole = True
                        break
                    said = answer.add(self._read(data))
                    meter.note(answer.usage)
                    for part in said:
                        yield part
                # Not every server sends [DONE], but a stream with neither was cut off.
                if not (is_whole or answer.stop_reason):
                    raise InputError("the stream ended before the answer was complete")
        yield self._priced(answer.response(self._keeper))

    def _priced(self, answer: LLMResponse) -> LLMResponse:
        return priced(answer, provider=self.provider, model=self.model, price=self._price)

    def _in_json(self, tools: Sequence[ToolDescription]) -> bool:
        return self._tool_mode == "json" and bool(tools)

    def _request(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], settings: Mapping[str, Any]
    ) -> JSONObject:
        has_tools = bool(tools) and self._tool_mode == "native"
        request: dict[str, Any] = {"model": self.model, **with_tool_choice(settings, has_tools=has_tools)}
        if self._tool_mode == "native":
            written = request_messages(renamed(messages, self._kept_before, self._keeper), self._keeper)
            return {**request, "messages": written, **request_tools(tools)}
        form = response_format(tools) if tools else {}
        return {**request, "messages": request_messages(plain_messages(messages, tools)), **form}

    @property
    def _who(self) -> str:
        # Not the whole address, which may hold a password.
        return f"Model '{self.model}' at {self._url.netloc.decode()}"

    @asynccontextmanager
    async def _asked(self, request: JSONObject) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Make a request. If the server refuses data from earlier answers, repeat it once, changed; see `mended`.

        A refused request costs nothing.
        """
        async with AsyncExitStack() as opened:
            try:
                body = await opened.enter_async_context(self._post(request))
            except ModelError as error:
                refused = _REFUSED.search(str(error))
                messages = mended(request["messages"], str(error)) if refused else None
                if messages is None:
                    raise
                body = await opened.enter_async_context(self._post({**request, "messages": messages}))
            yield body

    def _connect(self) -> AbstractAsyncContextManager[Any]:
        return self._http.AsyncClient(verify=self._certificates) if self._client is None else nullcontext(self._client)

    @asynccontextmanager
    async def _post(self, request: Mapping[str, Any]) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Make a request, and yield the body of its answer.

        Any error that prevents reading it, even in the body of the `with`, is raised as a ModelError.
        """
        with hidden(self._secrets):
            try:
                async with self._connect() as client, self._opened(client, request) as response:
                    encoding = response.headers.get("Content-Encoding", "")
                    streamed = bool(request.get("stream")) and response.is_success
                    pieces = read_bounded(response.aiter_raw(), encoding, self._limits, streamed=streamed)
                    async with aclosing(pieces) as body:
                        if not response.is_success:
                            said = b"".join([piece async for piece in body])
                            raise self._refusal(response.status_code, said, response.headers)
                        yield body
            except self._http.ConnectError as error:
                text = f"{_reason(error)} ({connection_advice(str(error))})"
                raise ModelError(f"{self._who} gave no answer: {text}", transient=True) from error
            except (self._http.RequestError, InputError) as error:
                raise ModelError(f"{self._who} gave no answer: {_reason(error)}", transient=True) from error
            except PastLimitError as error:
                raise ModelError(f"{self._who} gave no answer: {error}") from error

    @asynccontextmanager
    async def _opened(self, client: Any, request: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Make a request; the head of its answer may take no longer than a whole answer."""
        headers = {"Accept-Encoding": ENCODINGS, **self._headers}
        sent = client.build_request("POST", self._url, json=request, headers=headers, timeout=self._timeout)
        async with in_time(self._limits):
            response = await client.send(sent, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    def _refusal(self, status: int | None, body: bytes, headers: Mapping[str, str]) -> ModelError:
        text, codes = _words(body)
        return refusal(self._who, status, text, headers.get("Retry-After"), codes=codes, secrets=self._secrets)

    def _read(self, body: bytes) -> Answer:
        answer = Answer.read(body)
        if answer.error:
            code = answer.error.get("code") if isinstance(answer.error, dict) else None
            # Any other number is the provider's own.
            status = code if isinstance(code, int) and 400 <= code <= 599 else None
            raise self._refusal(status, body, {})
        return answer


def _library_of(client: object) -> Any:
    """Return the library of a client; httpx for the built-in one."""
    httpx2 = sys.modules.get("httpx2")  # it is loaded if a client of it exists
    if httpx2 is not None and isinstance(client, httpx2.AsyncClient):
        return httpx2
    try:
        import httpx
    except ImportError as error:
        raise MissingExtraError(f"OpenAICompatible needs httpx: {install('httpx')}") from error
    return httpx


def _reason(error: Exception) -> str:
    name = type(error).__name__
    text = error_text(error)
    return text if isinstance(error, InputError) or text == name else f"{name}: {text}"


def _words(body: bytes) -> tuple[str, tuple[str, ...]]:
    """Return a server's text of an error (the whole body if its form is unknown), and its names for the error."""
    try:
        error = Answer.read(body).error
    except InputError:
        error = None
    said = error if isinstance(error, dict) else {}
    message = said.get("message")
    codes = tuple(name for name in (said.get("code"), said.get("type")) if isinstance(name, str))
    return (message if isinstance(message, str) else body.decode(errors="replace")), codes
