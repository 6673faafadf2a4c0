"""What is sent to each provider for each feature, and what comes back, as recorded in `tests/recorded`.

A change of a format shows as a change of these files: `RECORD=1 pytest
tests/integration/models/test_recorded_pairs.py`.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from integration.models.test_providers import CALLS, ECHO, HI, adapter, ask, provider
from standfast import Image, LLMResponse, Message, Usage
from standfast.llm import ToolDescription
from standfast.messages import Reasoning
from standfast.testing import ModelServer
from standfast.testing.wire_formats import FORMATS

__all__ = ["provider"]  # a fixture

RECORDED = Path(__file__).parents[2] / "recorded"
SYSTEM = Message(role="system", content="Be brief.")
ASKED = Message(role="assistant", content="I look.", tool_calls=CALLS)
RESULTS = [
    Message(role="tool", content="A", tool_call_id="c1", tool_name="echo", status="completed"),
    Message(role="tool", content='{"error": "no"}', tool_call_id="c2", tool_name="echo", status="failed"),
]
PICTURES = (Image(url="https://example.com/cat.png"), Image(data=b"\x89PNG", media_type="image/png"))
THOUGHTS = {
    "openai": {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    "anthropic": {"type": "thinking", "thinking": "Hm.", "signature": "Eo8C"},
}
FULL = Usage(input_tokens=100, output_tokens=20, cached_tokens=60, reasoning_tokens=8)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CUT = {"openai": "max_output_tokens", "anthropic": "max_tokens"}


def thought(name: str) -> Reasoning | None:
    return Reasoning(provider=name, blocks=(THOUGHTS[name],)) if name in THOUGHTS else None


def feature_of(name: str, feature: str) -> tuple[Sequence[Message], Sequence[ToolDescription], dict[str, Any], Any]:
    """Return messages, tools, settings, and the answer."""
    match feature:
        case "a text":
            return [SYSTEM, *HI], [], {}, LLMResponse(text="Hello.", usage=FULL)
        case "several calls":
            return HI, [ECHO], {}, LLMResponse(text="I look.", tool_calls=CALLS, usage=FULL)
        case "results":
            return [*HI, ASKED, *RESULTS], [ECHO], {}, LLMResponse(text="Done.")
        case "images":
            return [Message(role="user", content="What is it?", images=PICTURES)], [], {}, LLMResponse(text="A cat.")
        case "thoughts":
            said = ASKED.model_copy(update={"reasoning": thought(name)})
            return [*HI, said, *RESULTS], [ECHO], {}, LLMResponse(text="Done.", reasoning=thought(name))
        case "an output":
            return HI, [], {"output_schema": SCHEMA}, LLMResponse(text='{"n": 1}')
        case "settings":
            settings = {"temperature": 0.5, "max_tokens": 50, "tool_choice": {"name": "echo"}}
            return HI, [ECHO], settings, LLMResponse(tool_calls=CALLS[:1])
        case "calls in JSON":
            return HI, [ECHO], {}, LLMResponse(text='{"tool": "echo", "arguments": {"text": "a"}}')
    return HI, [], {}, LLMResponse(text="I", stop_reason=CUT.get(name, "length"))


FEATURES = [
    "a text", "several calls", "results", "images", "thoughts", "an output", "settings", "calls in JSON", "cut off",
]  # fmt: skip


@pytest.mark.parametrize("way", ["chat", "stream"])
@pytest.mark.parametrize("feature", FEATURES)
async def test_requests_and_responses_are_those_that_are_recorded(provider: str, feature: str, way: str) -> None:
    messages, tools, settings, answer = feature_of(provider, feature)
    options = {"tool_mode": "json"} if feature == "calls in JSON" else {}
    async with ModelServer(answer) as server:
        read, _ = await ask(adapter(provider, server, **options), way, messages, tools, **settings)
    (request,) = server.requests
    whole, events = next(form for path, form in FORMATS.items() if request.path.endswith(path))
    sent_back = list(events(answer, "m")) if request.body.get("stream") else whole(answer, "m")
    pair = {"request": request.body, "response": sent_back, "read": read.model_dump(mode="json")}
    pair = json.loads(json.dumps(pair))
    if (kept_as := pair["read"].get("reasoning")) is not None:  # under the address, which is of this server
        kept_as["provider"] = kept_as["provider"].partition(":")[0]
    file, key = RECORDED / f"{provider}.json", f"{feature}, {way}"
    kept = json.loads(file.read_text()) if file.exists() else {}
    if os.environ.get("RECORD"):
        kept[key] = pair
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    assert pair == kept[key]


def test_nothing_is_recorded_that_is_not_compared() -> None:
    compared = sorted(f"{feature}, {way}" for feature in FEATURES for way in ("chat", "stream"))
    for file in RECORDED.iterdir():
        assert sorted(json.loads(file.read_text())) == compared
