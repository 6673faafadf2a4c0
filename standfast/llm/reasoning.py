"""Keeps a model's thoughts in their place among its words and calls, because providers want them back unchanged.

Most answers are thoughts, then words, then calls, and only the thoughts are kept. For an answer in another order, the
thoughts are kept with markers between them: `{"standfast": "text", "length": n}` and `{"standfast": "call"}`. Nothing
here does I/O.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic_core import to_json

from standfast.events import ReasoningDelta
from standfast.messages import BREAK, HostedCall, JSONObject, LLMResponse, Message, Reasoning, clean_text

Part = tuple[Literal["thought", "text", "call"], Any]
"""A thought as its provider has it; a text; the index of a call."""

_ORDER = ("thought", "text", "call")


def keeper_of(provider: str, url: Any, model: str) -> str:
    """Return the name under which a provider's thoughts are kept, so that they go back to it and to no other.

    Several providers may share a server: a gateway gives each its own path, or names models "vendor/model".

    Args:
        url: the provider's address, as a URL of httpx or httpx2.
    """
    vendor, _, rest = model.partition("/")
    return f"{server_of(provider, url)}{url.path.rstrip('/')}" + (f":{vendor}" if rest else "")


def server_of(provider: str, url: Any) -> str:
    """Return a provider's name with its server."""
    return f"{provider}:{url.host}" + (f":{url.port}" if url.port else "")


def renamed(messages: Sequence[Message], before: str, now: str) -> list[Message]:
    """Return messages whose thoughts of one keeper have the name of another."""
    return [
        message.model_copy(update={"reasoning": message.reasoning.model_copy(update={"provider": now})})
        if message.reasoning is not None and message.reasoning.provider == before
        else message
        for message in messages
    ]


def within(messages: Sequence[Message], limit: int) -> list[Message]:
    """Return messages with at most `limit` bytes of thoughts of each provider: whole ones, the newest.

    Providers that require thoughts require those since the user's last message, which are the newest.
    """
    shown, size = list(messages), dict[str, int]()
    thoughts = [(place, kept) for place, message in enumerate(shown) if (kept := message.reasoning) is not None]
    for place, kept in reversed(thoughts):
        size[kept.provider] = size.get(kept.provider, 0) + len(to_json(kept.blocks))
        if size[kept.provider] > limit:  # and for all before it, so that no gap is sent
            shown[place] = shown[place].model_copy(update={"reasoning": None})
    return shown


def reasoning_of(provider: str, parts: Sequence[Part]) -> Reasoning | None:
    """Return the thoughts to keep from an answer with these parts; None if it has none."""
    kinds = [kind for kind, _ in parts]
    if "thought" not in kinds:
        return None
    in_order = kinds == sorted(kinds, key=_ORDER.index)
    written = [part if kind == "thought" else _marker(kind, part) for kind, part in parts]
    kept = [one for one, kind in zip(written, kinds, strict=True) if kind == "thought" or not in_order]
    return Reasoning(provider=provider, blocks=tuple(kept))


class ThoughtPieces:
    """The pieces of an answer's thoughts, separated as in `Reasoning.text`."""

    def __init__(self) -> None:
        self._last: Any = None

    def piece(self, text: str, of: Any = "") -> Iterator[ReasoningDelta]:
        """Yield the event of a piece, unless it is empty.

        Args:
            of: identifies the thought.
        """
        if text:
            begins = self._last is not None and self._last != of
            self._last = of
            yield ReasoningDelta(f"{BREAK}{text}" if begins else text)


def spoken(answer: LLMResponse) -> Iterator[str | ReasoningDelta]:
    """Yield the thoughts and the text of an answer that was not streamed."""
    if answer.reasoning is not None and (thoughts := answer.reasoning.text):
        yield ReasoningDelta(thoughts)
    if answer.text:
        yield answer.text


def details(of: str, block: Mapping[str, Any], known: Sequence[str]) -> Iterator[Part]:
    """Yield the other fields of a text, a call or a message that must be kept, as a thought placed before it."""
    more = {name: value for name, value in block.items() if name not in known and value not in (None, [], {}, "")}
    if more:
        yield "thought", {"with": of, "details": more}


def details_in(thought: Any, of: str) -> JSONObject | None:
    """Return the fields that `details` yielded for a text, a call or a message; None for any other thought."""
    match thought:
        case {"with": kind, "details": dict(more)} if kind == of:
            return more
    return None


_INPUT = 1_000  # characters of a hosted tool's input that people see


def hosted_call(name: Any, given: Any, outcome: Literal["ran", "failed", "unknown"], error: Any = None) -> HostedCall:
    """Return the record of a call that a provider made itself."""
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False) if given else ""
    why = None if error is None else clean_text(str(error))[:_INPUT]
    return HostedCall(name=str(name or "unknown"), input=clean_text(text)[:_INPUT], outcome=outcome, error=why)


def _marker(kind: str, part: Any) -> JSONObject:
    return {"standfast": kind, "length": len(part)} if kind == "text" else {"standfast": kind}


def parts_of(message: Message, provider: str) -> Iterator[Part]:
    """Yield the parts of an answer as its provider wants them back, without thoughts of other providers."""
    mine = message.reasoning is not None and message.reasoning.provider == provider
    blocks = message.reasoning.blocks if mine and message.reasoning is not None else ()
    text, calls = message.content, list(range(len(message.tool_calls or ())))
    markers = [block for block in blocks if "standfast" in block]
    lengths = [block.get("length") for block in markers if block["standfast"] == "text"]
    known = [block for block in markers if block["standfast"] in ("text", "call")]
    fits = (
        len(known) == len(markers)
        and all(type(length) is int and length >= 0 for length in lengths)
        and sum(length or 0 for length in lengths) == len(text)
        and len(known) - len(lengths) == len(calls)
    )
    if not markers or not fits:
        # As in most answers; or the stored text differs from the answer, since it was cut or cleaned.
        yield from (("thought", block) for block in blocks if "standfast" not in block)
        yield ("text", text)
        yield from (("call", index) for index in calls)
        return
    for block in blocks:
        match block.get("standfast"):
            case "text":
                yield ("text", text[: block["length"]])
                text = text[block["length"] :]
            case "call":
                yield ("call", calls.pop(0))
            case _:
                yield ("thought", block)
