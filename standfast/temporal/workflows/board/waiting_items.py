"""Describes the items that a run waits for, for people and as JSON."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from temporalio import workflow

from standfast.messages import JSONObject
from standfast.temporal.wire.boards import Whose


@dataclass(frozen=True, slots=True)
class Waiting:
    """An item that a person can end; most items can end in no other way.

    Args:
        kind: "question", "unknown" (a call whose outcome is unknown), "approval", "pause", "worker" (no worker has what
            the run needs), or "store" (no worker can use it; the item ends automatically).
        name: the call or gate of the item; for a pause, the action that failed; for a worker, the agent, tool or step.
        digest, approvers, groups: of an approval: the digest of the shown value, and the people who may decide; none
        means anyone.
        then: the effect of the deadline on an approval, as text.
        remember: of a call, the widest scope of a standing approval that may be given with it; "" if none is allowed.
        retry_at, retry_every: of a pause that ends automatically, the time of the first attempt, and the longest later
            interval, in seconds.
        can_skip: a person may let the run continue without it.
        quorum, approved_by: the number of approvals needed, and the people who have approved. tool, arguments: of the
        call that needs approval; large arguments as a shortened text.
        edit: the schema of these arguments, for people who edit them.
        requesters: the people who ask for an approval: everyone who sent the run a message, or the person a workflow
            names.
        shown: of a pipeline's gate, what people see besides the message; for large values, only the sizes.
        size, reference: of a shortened value, its full size in bytes and its place in the store; see `load_arguments`
        and
            `load_shown`.
        edited_by, changes: of an edit, the editor, "" if unnamed, and the changes as text.
    """

    kind: str
    name: str
    message: str
    since: datetime
    deadline: datetime | None = None
    digest: str | None = None
    approvers: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    quorum: int = 1
    approved_by: tuple[str, ...] = ()
    tool: str | None = None
    arguments: Any = None
    retry_at: datetime | None = None
    retry_every: float = 0
    can_skip: bool = False
    size: int | None = None
    reference: JSONObject | None = None
    requesters: tuple[str, ...] = ()
    shown: list[JSONObject] | None = None
    then: str | None = None
    edit: JSONObject | None = None
    remember: str = ""
    edited_by: str | None = None
    changes: str | None = None

    def is_gate(self, name: str) -> bool:
        """Whether the item is the gate of this name."""
        return self.kind == "approval" and self.name == name

    def plain(self) -> JSONObject:
        data: JSONObject = {
            "kind": self.kind,
            "name": self.name,
            "message": self.message,
            "since": self.since.isoformat(),
        }
        if self.deadline is not None:
            data["deadline"] = self.deadline.isoformat()
        if self.digest is not None:
            data |= {"digest": self.digest, "approvers": list(self.approvers)}
        if self.retry_at is not None:
            data |= {"retry_at": self.retry_at.isoformat(), "retry_every": self.retry_every}
        if self.tool is not None:
            data |= {"tool": self.tool, "arguments": self.arguments}
        if self.can_skip:
            data["can_skip"] = True
        if self.size is not None:
            data |= {"size": self.size, "reference": self.reference}
        if self.quorum > 1:
            data |= {"quorum": self.quorum, "approved_by": list(self.approved_by)}
        optional = {"edit": self.edit, "shown": self.shown, "then": self.then, "remember": self.remember or None}
        optional |= {"edited_by": self.edited_by, "changes": self.changes}
        return data | {name: value for name, value in optional.items() if value is not None}


def whose(run: str, session: str | None, tenant_id: str | None, user_id: str | None) -> Whose:
    """Return the run's owner, for its board, without unknown values."""
    parent = workflow.info().parent
    known = {"session": session, "tenant_id": tenant_id, "user_id": user_id, "parent": parent and parent.workflow_id}
    return cast(Whose, {"run": run, **{name: value for name, value in known.items() if value}})
