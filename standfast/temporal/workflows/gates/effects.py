"""Runs guarded functions in users' own workflows: `await execute_effect(…)`."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from standfast.messages import JSONObject, cut, error_text
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import AWAITED_BYTES
from standfast.temporal.workflows.gates.approvals import ask
from standfast.temporal.workflows.run.activity_results import Undecodable, read_result
from standfast.tools.checks import GUARDED
from standfast.tools.signatures import approved_id, bound, hash_of, plain

_ATTRIBUTE = "_standfast_effects"  # of the user's workflow
_TIMEOUT = timedelta(seconds=60)


async def execute_effect(effect: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run a guarded function, which is an activity, after its `approval` was granted.

    The approved arguments are the ones that run. The function runs once for each time that the workflow asks for it,
    even after a reset.

    Args:
        arguments: positional arguments, as for an activity.
        options: those of `workflow.execute_activity`; the timeout is 60 seconds if none is given.

    Raises:
        ApplicationError: of type "approval-rejected" or "approval-timeout", with the approver and the reason; of type
            `DefinitionError` if the function is not an activity or lacks a guard; of type `InputError` if the arguments
            do not fit the function, or an operator completed the activity with an invalid result.
        ActivityError: as from `workflow.execute_activity`.
    """
    guard = getattr(effect, GUARDED, None)
    definition = getattr(effect, "__temporal_activity_definition", None)
    if guard is None or definition is None:
        said = f"execute_effect: {effect!r:.80} is not a function with @activity.defn and @effect(…) below it"
        raise ApplicationError(said, type="DefinitionError", non_retryable=True)
    given = {} if guard.approval is None else _given(effect, definition, arguments)
    instance = workflow.instance()
    known: _Names = getattr(instance, _ATTRIBUTE, None) or _Names()
    setattr(instance, _ATTRIBUTE, known)
    with known.of_call(guard.name) as name:
        if guard.approval is not None:
            await _let_through(name, guard, given)
            options["activity_id"] = approved_id(name, hash_of(given))
        if not options.keys() & {"start_to_close_timeout", "schedule_to_close_timeout"}:
            options["start_to_close_timeout"] = _TIMEOUT
        options |= {"args": list(arguments), "result_type": RawValue}
        found = read_result(await workflow.execute_activity(definition.name, **options), definition.ret_type)
    if isinstance(found, Undecodable):
        said = f"{name} was completed by hand with an invalid result, and may have run: {found.reason}"
        raise ApplicationError(said, type="InputError", non_retryable=True)
    return found


def _given(effect: Callable[..., Any], definition: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments of a call by name, as its activity will read them.

    The guard would reject a value that differs from the approved one: where a `float` is declared, 7 becomes 7.0.

    Raises:
        ApplicationError: of type `InputError`: no activity could read the arguments, so no approver is notified.
    """
    try:
        here, converter = bound(effect, arguments, {}), workflow.payload_converter()
        kinds = definition.arg_types if len(definition.arg_types or ()) == len(arguments) else None
        there = bound(effect, tuple(converter.from_payloads(converter.to_payloads(arguments), kinds)), {})
        if len(json.dumps(plain(there)).encode()) > AWAITED_BYTES:
            raise ValueError(f"they have more than {AWAITED_BYTES:,} bytes, and cannot be shown")
        is_changed = hash_of(there) != hash_of(here)
    except Exception as error:
        said = f"{definition.name} cannot take its arguments, and no one was asked: {cut(error_text(error), 500)}"
        raise ApplicationError(said, type="InputError", non_retryable=True) from None
    return there if is_changed and workflow.patched(names.READ_FIRST) else here


class _Names:
    """The names of a workflow's effect calls; calls in flight have different names."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._taken: set[str] = set()

    @contextmanager
    def of_call(self, effect: str) -> Iterator[str]:
        """Give the next effect call its name, which stays unique until the block ends."""
        while True:
            self._counts[effect] += 1
            name = effect if self._counts[effect] == 1 else f"{effect}-{self._counts[effect]}"
            if name not in self._taken:  # by another effect whose name ends with a number
                break
        self._taken.add(name)
        try:
            yield name
        finally:
            self._taken.discard(name)


async def _let_through(name: str, guard: Any, given: JSONObject) -> None:
    """Wait until people have approved a call.

    Raises:
        ApplicationError: it was not approved.
    """
    shown = json.dumps(plain(given), ensure_ascii=False, indent=2)
    decided = await ask(
        name, guard.approval, [f"{one.message or f'Run {guard.name}?'}\n{shown}" for one in guard.approval.chain]
    )
    if decided["status"] != "approved":
        who = f" by {', '.join(decided['by'])}" if decided["by"] else ""
        why = f": {decided['comment']}" if decided["comment"] else ""
        kind = "approval-rejected" if decided["status"] == "rejected" else "approval-timeout"
        raise ApplicationError(f"{name} was {decided['status']}{who}{why}", type=kind, non_retryable=True)
