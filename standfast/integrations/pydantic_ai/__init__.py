"""Makes pydantic-ai agents durable in this process, runs them on our loop, or guards only their tools."""

from standfast.integrations._guards import check_version

check_version("pydantic-ai-slim", "2.68", "3", extra="pydantic-ai")

from standfast.integrations.pydantic_ai.agents import as_agent  # noqa: E402 - only in a version that has it
from standfast.integrations.pydantic_ai.durability import StandfastDurability  # noqa: E402
from standfast.integrations.pydantic_ai.toolsets import guarded  # noqa: E402

__all__ = ["StandfastDurability", "as_agent", "guarded"]
