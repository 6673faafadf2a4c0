"""Runs guarded functions in users' own workflows: `await execute_effect(…)`."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from standfast.temporal.workflows.approvals import ask
from standfast.tools.checks import GUARDED
from standfast.tools.given_arguments import approved_id, bound, hash_of, plain

_ATTRIBUTE = "_standfast_effects"  # of the user's workflow
_TIMEOUT = timedelta(seconds=60)


async def execute_effect(effect: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run a guarded function, which is an activity, once people have let it through: by its `approval`.

    What is run is what they have seen. It runs once for each time that the workflow asks for it, also after a reset.

    Args:
        arguments: positional ones, as an activity takes them.
        options: those of `workflow.execute_activity`; it may take 60 seconds if no timeout is given.

    Raises:
        ApplicationError: of type "approval-rejected" or "approval-timeout", with who has decided and why; of type
            `DefinitionError` if the function is no activity, or has no guard.
        ActivityError: as from `workflow.execute_activity`.
    """
    guard = getattr(effect, GUARDED, None)
    definition = getattr(effect, "__temporal_activity_definition", None)
    if guard is None or definition is None:
        said = f"execute_effect: {effect!r:.80} is not a function with @activity.defn and @effect(…) below it"
        raise ApplicationError(said, type="DefinitionError", non_retryable=True)
    given = bound(effect, arguments, {})
    instance = workflow.instance()
    counts: Counter[str] = getattr(instance, _ATTRIBUTE, None) or Counter()
    setattr(instance, _ATTRIBUTE, counts)
    counts[guard.name] += 1
    name = guard.name if counts[guard.name] == 1 else f"{guard.name}-{counts[guard.name]}"
    if guard.approval is not None:
        shown = json.dumps(plain(given), ensure_ascii=False, indent=2)
        message = f"{guard.approval.message or f'Run {guard.name}?'}\n{shown}"
        decided = await ask(name, guard.approval, message)
        if decided["status"] != "approved":
            who = f" by {', '.join(decided['by'])}" if decided["by"] else ""
            why = f": {decided['comment']}" if decided["comment"] else ""
            kind = "approval-rejected" if decided["status"] == "rejected" else "approval-timeout"
            raise ApplicationError(f"{name} was {decided['status']}{who}{why}", type=kind, non_retryable=True)
        options["activity_id"] = approved_id(name, hash_of(given))
    if not options.keys() & {"start_to_close_timeout", "schedule_to_close_timeout"}:
        options["start_to_close_timeout"] = _TIMEOUT
    return await workflow.execute_activity(effect, args=list(arguments), **options)
