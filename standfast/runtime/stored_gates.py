"""Shows gates that wait in a store without a workflow, so that people see them although nothing runs.

An in-process run ends when it waits: its gates are in its session, or in the journal of its pipeline. They are shown on
the board beside those of workflows, under a namespace that Temporal does not have, so that they are not mistaken for
workflows. `outside_decisions` records the decisions on them.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from standfast.agent_loop import Gate
from standfast.checkpoints import Question
from standfast.messages import JSONObject, edit_in_words, person
from standfast.stores.protocol import Session, has_waits
from standfast.stores.waits import Board, Wait, searchable
from standfast.tools import shown_with_edit

IN_PROCESS = "/in-process"
"""The namespace on the board; no name of a namespace has a slash."""
RECORDED = "It is recorded, and takes effect when the run continues"

_PREFIX = "in-process:"
_SHOWN_BYTES = 16 * 1024  # of the contents of the item itself
_CUT = 40  # characters of arguments that are larger
_SEARCHED = 2_000  # characters of arguments


@dataclass(frozen=True, slots=True)
class Whose:
    """The owner of shown gates.

    Args:
        journal_key: of the run: `<agent or pipeline>/<key of the session or the run>`, under which its decisions are
            stored.
        session: the key of the session that has the gates; None for a pipeline's own.
    """

    journal_key: str
    session: str | None = None
    user_id: str | None = None
    tenant_id: str | None = None

    @classmethod
    def of_session(cls, session: Session) -> "Whose":
        key = f"{session.agent_name}/{session.id}"
        return cls(key, session=session.id, user_id=session.user_id, tenant_id=session.tenant_id)


@dataclass(frozen=True, slots=True)
class AskedGate:
    """A waiting gate, as people see it.

    Args:
        tool: of a call.
        shown: the contents beside the message at a pipeline's gate, or where a guardrail has stopped something.
        place: the journal's place of the contents of a pipeline's gate.
    """

    gate: Gate
    message: str
    tool: str | None = None
    shown: Sequence[Any] = ()
    place: str = ""

    @classmethod
    def of(cls, question: Question, tool: str | None) -> "AskedGate":
        """Return a gate of a session; `tool` is its call's tool."""
        gate = Gate.read(question.gate or {})
        if gate.holds:
            return cls(gate, question.question, shown=gate.arguments)
        return cls(gate, question.question, tool or "")


def address_of(journal_key: str) -> str:
    """Return the name of an in-process run, used where a workflow id is expected."""
    return f"{_PREFIX}{journal_key}"


def is_in_process(workflow_id: str) -> bool:
    return workflow_id.startswith(_PREFIX)


async def show_gates(store: object, whose: Whose, asked: Sequence[AskedGate]) -> None:
    """Show exactly these gates of a run. Only the holder of its session, or of its pipeline's run, may do so.

    Raises:
        StoreError: the database refuses.
    """
    if not has_waits(store) or not getattr(store, "durable", False):
        return
    address = address_of(whose.journal_key)
    known = await store.load_board(IN_PROCESS, address)
    if known is None and not asked:
        return
    board = Board(
        namespace=IN_PROCESS,
        workflow_id=address,
        run_id="",
        first_run_id=whose.journal_key,
        journal_key=whose.journal_key,
        agent=whose.journal_key.partition("/")[0],
        task_queue="",
        at=_now_after(known),
        session=whose.session,
        tenant_id=whose.tenant_id,
        user_id=whose.user_id,
    )
    await store.show_waits(board, [_wait(board, _item(address, one), one.gate) for one in asked])


def _now_after(known: Board | None) -> datetime:
    """Return the current time, or the last write's if another machine's clock is ahead: writes stay in order."""
    return max([datetime.now(UTC), *([] if known is None else [known.at])])


def _item(address: str, asked: AskedGate) -> JSONObject:
    """Return an item in the form of `pending`."""
    gate, rule = asked.gate, asked.gate.rule
    item: JSONObject = {
        "kind": "approval",
        "name": gate.name,
        "message": rule.message or asked.message,
        "since": gate.since.isoformat(),
        "deadline": None if gate.deadline is None else gate.deadline.isoformat(),
        "then": gate.then,
        "digest": gate.shown_digest,
        "approvers": list(rule.users),
        "groups": list(rule.groups) or None,
        "requesters": list(gate.barred) or None,
    }
    if gate.changed is not None:
        before = next((one.get("value") for one in asked.shown if "edit" in one), None)
        changes = gate.changes if gate.is_call else edit_in_words(before, gate.changed)
        item |= {"edited_by": gate.editor or "", "changes": changes}
    if rule.quorum > 1:
        item |= {"quorum": rule.quorum, "approved_by": list(gate.approved_by)}
    if asked.tool is not None:
        item |= {"tool": asked.tool, "arguments": gate.asked_arguments}
        item["edit"] = None if gate.schema is None else dict(gate.schema)
        if (size := len(to_json(gate.asked_arguments))) > _SHOWN_BYTES:
            text = json.dumps(gate.asked_arguments, ensure_ascii=False)[:_CUT]
            item |= {"arguments": f"{text}…", "size": size, "reference": {"in_process": address, "gate": gate.name}}
    elif asked.shown:
        item["shown"] = list(asked.shown) if gate.changed is None else shown_with_edit(asked.shown, gate.changed)
        if (size := len(to_json(item["shown"]))) > _SHOWN_BYTES:
            sizes = [
                {"label": one.get("label", ""), "kind": "left-out", "size": len(to_json(one))} for one in item["shown"]
            ]
            journal = {"journal_key": address.removeprefix(_PREFIX), "gate": asked.place or gate.name}
            reference = {"in_process": address, "gate": gate.name} if gate.holds else journal
            if gate.changed is not None:
                reference["edit"] = gate.changed
            item |= {"shown": sizes, "size": size, "reference": reference}
    return {name: value for name, value in item.items() if value is not None}


def _wait(board: Board, item: JSONObject, gate: Gate) -> Wait:
    arguments = item.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    text = json.dumps(item)
    return Wait(
        key=hashlib.blake2b(text.encode(), digest_size=12).hexdigest(),
        kind="approval",
        name=gate.name,
        since=gate.since,
        deadline=gate.deadline,
        people=tuple(person(name) for name in gate.rule.users) or None,
        groups=gate.rule.groups,
        words=searchable(
            gate.name,
            item.get("tool", ""),
            board.workflow_id,
            *filter(None, (board.user_id, board.tenant_id)),
            *gate.rule.groups,
            *gate.rule.users,
            item["message"],
            written[:_SEARCHED],
        ),
        item=text,
    )
