"""The guard around any function with effects: it runs at most once, in any framework, activity, request or job."""

from standfast.effects.effect import Block, Effect, effect
from standfast.errors import EffectFailedError, ToolDurabilityError
from standfast.tools import Happened, NotHappened

__all__ = ["Block", "Effect", "EffectFailedError", "Happened", "NotHappened", "ToolDurabilityError", "effect"]
