"""Makes pydantic-ai's agents durable in this process, or guards their tools alone, in its Temporal integration too."""

from standfast.integrations._guards import check_version

check_version("pydantic-ai-slim", "2.68", "3", extra="pydantic-ai")

from standfast.integrations.pydantic_ai.durability import StandfastDurability  # noqa: E402 - only in a version that has it
from standfast.integrations.pydantic_ai.toolsets import guarded  # noqa: E402

__all__ = ["StandfastDurability", "guarded"]
