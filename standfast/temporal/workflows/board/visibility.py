"""Shows a run to people: search attributes, and the details that Temporal Web renders as Markdown."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from standfast.messages import Usage, cut, edited_in_words, visible, visible_json
from standfast.temporal.wire import names
from standfast.temporal.wire.run_state import RunLoop
from standfast.temporal.workflows.run.agent_run_state import RunState

if TYPE_CHECKING:
    from standfast.pipeline_loop import Done
    from standfast.temporal.workflows.board.waiting_items import Waiting

_GROUP_BYTES = 1_800  # the server's limit is 2,048
# Temporal Web puts what it shows into a URL, whose length is limited.
_ROWS = 40  # of a pipeline's steps, the last
_ITEMS = 10  # of the waiting items, the first
_MESSAGE_BYTES = 2_000
_CODE = 200  # characters of a name
_ARGUMENTS_BYTES = 4_000
_WHAT = {
    "approval": "the approval of",
    "question": "an answer to",
    "unknown": "what became of",
    "pause": "somebody who resumes it:",
    "worker": "a worker that has",
    "store": "the",
}
_MARKUP = re.compile(r"[\\`*_~<>&|:.#!\[\]]")  # these can be escaped in Web's Markdown; other characters cannot
_LEADING = re.compile(r"^([-+]+|[0-9]+\))(?: |$)")  # would be rendered as a bullet, a rule or another number
Refused = Sequence[Mapping[str, str]]  # messages that changed nothing, and the reasons
STATUS = SearchAttributeKey.for_keyword(names.STATUS_ATTRIBUTE)
WAITING = SearchAttributeKey.for_keyword_list(names.WAITING_ATTRIBUTE)
DEADLINE = SearchAttributeKey.for_datetime(names.DEADLINE_ATTRIBUTE)
SESSION = SearchAttributeKey.for_keyword(names.SESSION_ATTRIBUTE)
GROUP = SearchAttributeKey.for_keyword_list(names.GROUP_ATTRIBUTE)
TENANT = SearchAttributeKey.for_keyword(names.TENANT_ATTRIBUTE)


def show_started(session: str | None, tenant: str | None) -> None:
    """Set the search attributes for a run's session and tenant."""
    updates: list[Any] = [STATUS.value_set("running")]
    if session is not None:
        updates.append(SESSION.value_set(session))
    if tenant is not None:
        updates.append(TENANT.value_set(tenant))
    workflow.upsert_search_attributes(updates)


def show_waiting(status: str, waiting: "Sequence[Waiting]", *, groups: bool) -> None:
    """Set the search attributes for a run's waiting items, if any, and for the `groups` that it asks."""
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
    """Return as many groups as fit into the value of a search attribute."""
    size, fitting = 0, []
    for group in groups:
        size += len(group.encode()) + 8
        if size <= _GROUP_BYTES:
            fitting.append(group)
    return fitting


def show_ended(status: str) -> None:
    workflow.upsert_search_attributes([STATUS.value_set(status)])


def details(run: RunState, status: str, waiting: "Sequence[Waiting]", refused: Refused) -> str:
    """Return the Markdown for a run's page."""
    turns = _turns(run.loop) if run.is_open else []
    first = " · ".join([f"**{status}**", *turns, f"session {_code(run.progress.session_id)}"])
    return "\n".join([first, *_waits(waiting), *_last(refused)]) if waiting or refused else first


def pipeline_details(
    done: "Mapping[str, Done]", running: Sequence[str], status: str, waiting: "Sequence[Waiting]", refused: Refused
) -> str:
    """Return the Markdown for the page of a pipeline's run."""
    steps = {key: "failed" if came.reason else "done" for key, came in done.items()} | dict.fromkeys(running, "runs")
    steps |= {item.name: "waits" for item in waiting if item.name in steps}
    rows = [f"- {_code(key)} {state}" for key, state in steps.items() if "?" not in key]
    return "\n".join([f"**{status}**", "", *rows[-_ROWS:], *_waits(waiting), *_last(refused)])


def _turns(state: RunLoop) -> list[str]:
    turns, usage = f"turn {state.iterations} of at most {state.loop.max_iterations}", state.used
    return [turns] if usage is None else [turns, usage.in_words]


def _waits(waiting: "Sequence[Waiting]") -> list[str]:
    lines = [line for item in waiting[:_ITEMS] for line in ("", *_shown(item))]
    more = len(waiting) - _ITEMS
    return lines if more <= 0 else [*lines, "", f"{more:,} more are waiting; the query `pending` has all."]


def _shown(item: "Waiting") -> list[str]:
    """Return a waiting item with all that a person should see before ending it, and how to end it."""
    lines = [f"#### Waits for {_WHAT[item.kind]}{f' {_code(item.name)}' if item.name else ''}", *_quote(item.message)]
    if item.tool is not None:
        lines += [f"The tool {_code(item.tool)} with", *_block(cut(_arguments(item), _ARGUMENTS_BYTES))]
    if item.edited_by is not None:
        lines += [_plain(edited_in_words(item.edited_by, item.changes)), ""]
    if item.shown:
        lines += _block(cut(_values(item), _ARGUMENTS_BYTES))
    until = "no deadline" if item.deadline is None else f"until {_time(item.deadline)}"
    until = until if item.then is None else f"{until}, then {_plain(item.then)}"
    lines += [" · ".join([f"since {_time(item.since)}", until, *_who(item)]), ""]
    return [*lines, *_how(item)]


def _values(item: "Waiting") -> str:
    return "\n\n".join(visible(f"{one.get('label') or 'Shown'}: {_value(one)}") for one in item.shown or ())


def _value(one: Mapping[str, Any]) -> str:
    """Return a value that a gate shows as text; the page renders it."""
    if one["kind"] == "left-out":
        return f"{one['size']:,} bytes, which the page and `standfast pending --full` show"
    if one["kind"] == "image":
        return f"{one['media_type']}, which the page shows"
    if "text" in one:
        return str(one["text"])
    return visible_json({name: value for name, value in one.items() if name not in ("kind", "label")})


def _who(item: "Waiting") -> list[str]:
    asked, given = (_plain(", ".join(users)) for users in (item.approvers, item.approved_by))
    said = {f"asks {asked}": asked, f"{item.quorum} must approve": item.quorum > 1, f"approved by {given}": given}
    return [text for text, holds in said.items() if holds]


def _how(item: "Waiting") -> list[str]:
    match item.kind:
        case "question":
            named = {"tool_call_id": item.name} if item.name else {}
            return ["Send the signal or update `answer` with", *_json({"text": "your answer", **named})]
        case "unknown":
            happened = {"tool_call_id": item.name, "decision": "happened", "result": "what it returned"}
            return [
                "Send the update `resolve` with",
                *_json(happened),
                'or with `"not-happened"`: it is run; or `"leave"`: the model reads that the outcome is unknown.',
            ]
        case "worker" if item.can_skip:
            skip = {"action": "skip", "name": item.name, "reason": "why; the model reads it"}
            return ["Start a worker that has it; or send the signal or update `resume` with", *_json(skip)]
        case "approval":
            left = [user for user in item.approvers if user not in item.approved_by]
            by = {"by": left[0] if len(left) == 1 else "your name"}
            if _is_cut(item):
                return [_ELSEWHERE]
            if (item.tool is not None or item.shown) and item.digest is not None:
                by["digest"] = item.digest
            return [
                "Send the update `decide`, which returns whether it counts, with",
                *_json({"gate": item.name, "decision": "approve", **by}),
                'or `"reject"`; or the signal `approve` or `reject` with',
                *_json({"gate": item.name, **by}),
            ]
        case "worker":
            return ["Start a worker that has it, and the run continues; or cancel the run."]
        case "store":
            return ["It continues automatically when its workers can use the store again."]
        case _:
            retry = _json({"action": "retry"})
            return [*_again(item), "Send the signal or update `resume` with", *retry, 'or `"abort"`.']


def _again(item: "Waiting") -> list[str]:
    if item.retry_at is None:
        return []
    often = f"at least every {max(1, round(item.retry_every / 60))} min"
    return [f"It is retried automatically, first at {_time(item.retry_at)}, later at growing intervals, {often}.", ""]


_ELSEWHERE = (
    "This is the beginning: `standfast pending --full` and the page show everything that is decided on, with the "
    "digest that a decision on a call needs."
)


def _is_cut(item: "Waiting") -> bool:
    if item.size is not None or any(one["kind"] in ("image", "left-out") for one in item.shown or ()):
        return True
    values = (_arguments(item) if item.tool is not None else "", _values(item))
    return len(item.message.encode()) > _MESSAGE_BYTES or any(len(one.encode()) > _ARGUMENTS_BYTES for one in values)


def _arguments(item: "Waiting") -> str:
    return visible(item.arguments) if isinstance(item.arguments, str) else visible_json(item.arguments)


def _last(refused: Refused) -> list[str]:
    """Return the reason why the last message changed nothing. The sender of a signal has no other way to learn it."""
    if not refused:
        return []
    last = refused[-1]
    at = _time(datetime.fromisoformat(last["at"]))
    return ["", f"Last refused, {at}: {_plain(last['reason'])}"]


# --- texts of people and models, which Temporal Web shows verbatim and not as markup ---


def _plain(text: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", visible(" ".join(text.split())))


def _quote(text: str) -> list[str]:
    lines = [_plain(line) for line in cut(text, _MESSAGE_BYTES).splitlines() if line.strip()]
    return ["", "> " + "\n>\n> ".join(_LEADING.sub("\\1\u00a0", line) for line in lines), ""]


def _code(text: str) -> str:
    shown = visible(" ".join(text.split())).replace("`", "'")
    more = f" ({len(shown) - _CODE:,} more characters)" if len(shown) > _CODE else ""
    return f"`{shown[:_CODE]}`{more}"


def _json(value: object) -> list[str]:
    # Laid out as by Web's own editor: a field that grows when it loses focus moves the button that is being clicked.
    return _block(visible_json(value))


def _block(text: str) -> list[str]:
    # Indented, since a text could break out of a fence of backticks.
    return ["", *(f"    {line}" for line in text.split("\n")), ""]


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def shown_usage(whose: str, usage: Usage | None) -> str:
    """Return a usage as text."""
    used = usage or Usage()
    cost = "" if used.cost is None else f" and {used.cost:.4f} US dollars"
    return f"{used.total_tokens:,} tokens{cost} by {whose}"
