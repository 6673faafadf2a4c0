"""The same agent on any provider: only an environment variable changes.

    export ANTHROPIC_API_KEY=…   && MODEL=anthropic:claude-sonnet-4-6 python examples/any_model.py
    export OPENAI_API_KEY=…      && MODEL=openai:gpt-5                python examples/any_model.py
    export MINIMAX_API_KEY=…     && MODEL=minimax:MiniMax-M2          python examples/any_model.py
    export CLOUDFLARE_ACCOUNT_ID=… CLOUDFLARE_API_TOKEN=… \\
        && MODEL=cloudflare:@cf/meta/llama-3.3-70b-instruct-fp8-fast  python examples/any_model.py

Your own server, such as Ollama or vLLM:

    OPENAI_COMPATIBLE_BASE_URL=http://localhost:11434/v1 MODEL=openai-compatible:qwen3:8b python examples/any_model.py
"""

import asyncio
import os
import sys

from standfast import Agent, run, tool


@tool(safe_to_retry=True)
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"rain in {city}, 9 degrees"


async def main() -> None:
    model = os.environ.get("MODEL", "anthropic:claude-sonnet-4-6")
    agent = Agent("guide", model=model, instructions="Use your tools.", tools=[weather])
    result = await run(agent, message="What should I wear in Oslo?")
    for message in result.messages:
        calls = ", ".join(f"{call.name}({call.arguments})" for call in message.tool_calls or ())
        print(f"{message.role:>9}: {message.content or calls}")
    if result.status != "complete":
        sys.exit(f"{result.status}: {getattr(result, 'error', None)}")
    print(result.usage)


if __name__ == "__main__":
    asyncio.run(main())
