"""Says where in the ledger the calls of a turn stand, and what has become of one that is not going to run any more."""

from typing import Any

from pydantic_ai.messages import ToolCallPart, ToolReturnPart

from standfast.effects.kept import Raised, read_kept
from standfast.effects.keys import EffectKey
from standfast.errors import ToolDurabilityError
from standfast.integrations.pydantic_ai.toolsets import read_result
from standfast.runtime.dispatches import last_dispatch
from standfast.stores.protocol import DurableStore, LedgerEntry
from standfast.tools import Failed, Returned
from standfast.tools.attempts import call_key

_PER_STEP = 1000  # calls of one response


def key_of_call(scope: str, step: int, place: int, name: str, *, approved: bool = False) -> EffectKey:
    """Return the key of a call: the run's step that makes it, its place in the model's response, and its tool.

    One that people have approved has another, since the tool may have asked for that itself, with other arguments.
    """
    entry = f"{name} approved" if approved else name
    return EffectKey(scope, entry, f"{scope}/{step}.{place}", step * _PER_STEP + place)


async def settled_result(store: DurableStore, scope: str, step: int, place: int, call: ToolCallPart) -> ToolReturnPart:
    """Return what a call has come to, and let it not begin any more; only the holder of its conversation may ask."""
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
    if entry.state == "abandoned":  # given back, or never begun: fence off the next claim, too
        entry = await store.settle(key.scope, call_key(key.place, key.name, dispatch + 1))
    return entry
