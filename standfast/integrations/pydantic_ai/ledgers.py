"""Locates the calls of a turn in the ledger, and determines the outcome of a call that will not run any more."""

from typing import Any

from pydantic_ai.messages import ToolCallPart, ToolReturnPart

from standfast.effects.kept_outcomes import Raised, read_kept
from standfast.effects.keys import EffectKey
from standfast.errors import ToolDurabilityError
from standfast.integrations.pydantic_ai.toolsets import read_result
from standfast.runtime.call_ledger import last_dispatch
from standfast.stores.protocol import DurableStore, LedgerEntry
from standfast.tools import Failed, Returned
from standfast.tools.calls import call_key

_PER_STEP = 1000  # calls of one response


def key_of_call(scope: str, step: int, place: int, name: str, *, approved: bool = False) -> EffectKey:
    """Return the key of a call: the run's step that makes it, its position in the model's response, and its tool.

    An approved call has a different key, since the tool may have asked for approval itself, with other arguments.
    """
    entry = f"{name} approved" if approved else name
    return EffectKey(scope, entry, f"{scope}/{step}.{place}", step * _PER_STEP + place)


async def settled_result(store: DurableStore, scope: str, step: int, place: int, call: ToolCallPart) -> ToolReturnPart:
    """Return the outcome of a call, and keep it from beginning later; only the holder of its conversation may ask."""
    entries = [
        await _settled(store, key_of_call(scope, step, place, call.tool_name, approved=approved))
        for approved in (True, False)
    ]
    entry = next((one for one in entries if one.state != "abandoned"), entries[0])
    content: Any = None
    match None if entry.result is None else read_kept(entry.result):
        case Returned(kept):
            content = read_result(kept)
        case Raised(error) as raised:
            content = {"error": f"{raised.kind}: {error}"}
        case Failed(error):
            content = {"error": error}
        case _ if entry.state == "abandoned":
            content = {"error": "Not run: the next message came first"}
        case _:
            content = ToolDurabilityError(call.tool_name, call.tool_call_id).payload()
    return ToolReturnPart(call.tool_name, getattr(content, "return_value", content), call.tool_call_id)


async def _settled(store: DurableStore, key: EffectKey) -> LedgerEntry:
    dispatch = max(1, await last_dispatch(store, key.scope, key.place, key.name))
    entry = await store.settle(key.scope, call_key(key.place, key.name, dispatch))
    if entry.state == "abandoned":  # released, or never begun: also fence off the next claim
        entry = await store.settle(key.scope, call_key(key.place, key.name, dispatch + 1))
    return entry
