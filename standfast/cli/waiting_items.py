"""Writes waiting items in a terminal: everything that is decided on, who may decide, and how."""

import shlex
from collections.abc import Mapping
from typing import Any

from standfast.cli.outputs import Output, ago, shown
from standfast.cli.stores import USUAL, Named, shown_address
from standfast.messages import line_difference, visible_json, waiting_edit_in_words

_HOW = {
    "approval": "standfast approve {run} {name}  or: standfast reject {run} {name}",
    "question": "standfast answer {run} TEXT",
    "unknown": "standfast resolve {run} {name} --happened JSON | --not-happened | --leave",
    "pause": "standfast resume {run}  or: standfast resume {run} --abort",
    "worker": "start a worker that has it, or: standfast cancel {run}",
    "skip": "start a worker that has it, or: standfast resume {run} --skip --name {name} --reason TEXT",
    "store": "fix the store of its workers; the run then continues automatically",
}


def write_waiting(output: Output, item: dict[str, Any], *, how: bool = True, store: Named = USUAL) -> None:
    """Write a waiting item: everything that is decided on, who may decide, until when, and how.

    Args:
        store: the store of an in-process run.
    """
    name = f" {item['name']}" if item["name"] else ""
    given = item.get("approved_by") or ()
    of = f"{len(given)} of {item['quorum']}" if "quorum" in item else ""
    asked = f"Waits for {item['kind']}{name}: {item['message']}"
    output.line(asked.replace("\n", "\n      "), style="bold")  # so that none of its lines looks like a field
    output.fields(
        {
            "  Tool": item.get("tool"),
            "  Arguments": item.get("arguments"),
            "  Edited": waiting_edit_in_words(item["edited_by"], item.get("changes")) if "edited_by" in item else None,
            "  Approvers": ", ".join(item.get("approvers") or ()),
            "  Approved": ": ".join(filter(None, [of, ", ".join(given)])),
            "  Since": item.get("since") and f"{ago(item['since'])} ago",
            "  Until": item.get("deadline") and f"{item['deadline']} ({ago(item['deadline'])})",
            "  Then": item.get("then"),
            "  Again": _again(item),
            "  How": _HOW.get("skip" if item.get("can_skip") else item["kind"], "").format(
                run=shlex.quote(item["workflow_id"]), name=shlex.quote(item["name"]) + _where(item, store)
            )
            if how and item["workflow_id"].isprintable()
            else None,
        }
    )
    for one in item.get("shown", ()):
        label = shown(one.get("label") or "Shown").replace("\n", "\n      ")
        output.line(f"  {label} ({one['kind']}):", style="bold")
        for line in _lines(one):
            output.line(f"    {shown(line)}")


def _where(item: Mapping[str, Any], store: Named) -> str:
    """Return the option that commands need to find an in-process run."""
    from standfast.runtime.stored_gates import is_in_process

    if store == USUAL or not is_in_process(item["workflow_id"]):
        return ""
    return f" --store {shlex.quote(shown_address(store))}"


def _again(item: Mapping[str, Any]) -> str | None:
    """Return when a temporary pause is retried; `standfast show` has the exact time of each attempt."""
    if "retry_at" not in item:
        return None
    soon = ago(item["retry_at"])
    first = f"{soon}, then " if soon.startswith("in ") else ""
    return f"automatically, {first}at growing intervals, at least every {max(1, round(item['retry_every'] / 60))} min"


def _lines(one: Mapping[str, Any]) -> list[str]:
    """Return a value that a gate shows as lines for a terminal."""
    match one["kind"]:
        case "text" | "markdown":
            return str(one["text"]).split("\n")
        case "json":
            return visible_json(one["value"]).split("\n")
        case "table":
            rows = [one["columns"], *one["rows"]] if one["columns"] else one["rows"]
            return [" | ".join(map(_cell, row)) for row in rows]
        case "diff":
            return line_difference(one["before"], one["after"])
        case "image":
            return [f"{one['media_type']}, {len(one['data']) * 3 // 4:,} bytes: see it on the page"]
    return [f"{one['size']:,} bytes: read them with --full"]


def _cell(value: Any) -> str:
    """Return a cell that cannot be mistaken for two cells or two rows."""
    return value if isinstance(value, str) and "|" not in value and value.isprintable() else _json(value)


def _json(value: Any) -> str:
    return visible_json(value, indent=None)
