"""How a run shows itself to people: search attributes, and the details that Temporal Web renders as Markdown."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from holdfast.agent_loop import LoopState
from holdfast.temporal import names

if TYPE_CHECKING:
    from holdfast.pipeline_loop import Done
    from holdfast.temporal.waits import Waiting

_GROUP_BYTES = 1_800  # a server takes 2,048
_ROWS = 40  # of a pipeline's steps, the last
STATUS = SearchAttributeKey.for_keyword(names.STATUS_ATTRIBUTE)
WAITING = SearchAttributeKey.for_keyword_list(names.WAITING_ATTRIBUTE)
DEADLINE = SearchAttributeKey.for_datetime(names.DEADLINE_ATTRIBUTE)
SESSION = SearchAttributeKey.for_keyword(names.SESSION_ATTRIBUTE)
GROUP = SearchAttributeKey.for_keyword_list(names.GROUP_ATTRIBUTE)
TENANT = SearchAttributeKey.for_keyword(names.TENANT_ATTRIBUTE)


def show_started(session: str | None, tenant: str | None) -> None:
    """Make the run findable by its session and tenant."""
    updates: list[Any] = [STATUS.value_set("running")]
    if session is not None:
        updates.append(SESSION.value_set(session))
    if tenant is not None:
        updates.append(TENANT.value_set(tenant))
    workflow.upsert_search_attributes(updates)


def show_waiting(status: str, waiting: "Sequence[Waiting]", *, groups: bool) -> None:
    """Make the run findable by what it waits for, or no longer; and by the `groups` that it asks, if it ever does."""
    asked = _fitting(sorted({group for item in waiting for group in item.groups}))
    group: list[Any] = [GROUP.value_set(asked) if asked else GROUP.value_unset()] if groups else []
    if not waiting:
        updates: list[Any] = [STATUS.value_set(status), WAITING.value_unset(), DEADLINE.value_unset()]
        workflow.upsert_search_attributes([*updates, *group])
        return
    deadline = min((item.deadline for item in waiting if item.deadline is not None), default=None)
    workflow.upsert_search_attributes(
        [
            STATUS.value_set(status),
            WAITING.value_set(sorted({item.kind for item in waiting})),
            DEADLINE.value_unset() if deadline is None else DEADLINE.value_set(deadline),
            *group,
        ]
    )


def _fitting(groups: list[str]) -> list[str]:
    """Return as many groups as the value of a search attribute may have."""
    size, fitting = 0, []
    for group in groups:
        size += len(group.encode()) + 8
        if size <= _GROUP_BYTES:
            fitting.append(group)
    return fitting


def show_ended(status: str) -> None:
    workflow.upsert_search_attributes([STATUS.value_set(status)])


def details(*, status: str, session: str, state: LoopState | None, waiting: "Sequence[Waiting]") -> str:
    """Return the Markdown that stands on a run's page."""
    return "\n".join([" · ".join([f"**{status}**", *_turns(state), f"session `{session}`"]), *_waits(waiting)])


def pipeline_details(
    status: str, done: "Mapping[str, Done]", running: Sequence[str], waiting: "Sequence[Waiting]"
) -> str:
    """Return the Markdown that stands on the page of a pipeline's run."""
    steps = {key: "failed" if came.reason else "done" for key, came in done.items()} | dict.fromkeys(running, "runs")
    rows = [f"| {_cell(key)} | {state} |" for key, state in steps.items() if "?" not in key]
    table = ["", "| step | |", "|---|---|", *rows[-_ROWS:]] if rows else []
    return "\n".join([f"**{status}**", *table, *_waits(waiting)])


def _waits(waiting: "Sequence[Waiting]") -> list[str]:
    lines = []
    if waiting:
        lines += ["", "| waits for | | since | until |", "|---|---|---|---|"]
        lines += [
            f"| {item.kind} `{item.name}` | {_cell(item.message)} | {_time(item.since)} | {_time(item.deadline)} |"
            for item in waiting
        ]
        lines += ["", *(_how(item) for item in waiting)]
    return lines


def _turns(state: LoopState | None) -> list[str]:
    if state is None:
        return []
    turns, usage = f"turn {state.iterations} of at most {state.loop.max_iterations}", state.usage
    return [turns] if usage is None else [turns, f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"]


def _how(item: "Waiting") -> str:
    match item.kind:
        case "question":
            key = f', "tool_call_id": "{item.name}"' if item.name else ""
            return f'Send the signal or update `answer` with `{{"text": "…"{key}}}`.'
        case "unknown":
            return (
                f'Send the update `resolve` with `{{"tool_call_id": "{item.name}", "decision": "happened", '
                '"result": "…"}`, or "not-happened" (it is run), or "leave" (the model is told).'
            )
        case "approval":
            return (
                f'Send the update `decide` with `{{"gate": "{item.name}", "decision": "approve", "by": "…"}}`, or '
                '"reject"; or the signal `approve` or `reject` without the decision.'
            )
        case "worker":
            return "Start a worker that has it, and the run goes on; or cancel the run."
        case _:
            return 'Send the signal or update `resume` with `{"action": "retry"}` or `{"action": "abort"}`.'


def _cell(text: str) -> str:
    return " ".join(text.split())[:200].replace("|", "\\|").replace("<", "&lt;")


def _time(at: datetime | None) -> str:
    return "no deadline" if at is None else f"{at:%Y-%m-%d %H:%M} UTC"
