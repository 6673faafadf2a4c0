"""Describes what a run waits for: as a person sees it, and as JSON."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that a person can end; most of it nobody else can.

    Args:
        kind: "question", "unknown" (a call whose outcome nobody knows), "approval", "pause", "worker" (none has what
            the run needs), or "store" (none can use it; this ends by itself).
        name: the call or gate it is about; for a pause, what could not be done; for a worker, the agent, tool or step.
        digest, approvers, groups: of an approval: of what is shown, and who may decide; nobody means anybody.
        then: what happens to an approval at its deadline, in words.
        remember: of a call, the widest scope of a standing approval that may be given with it; "" if none may.
        retry_at, retry_every: of a pause that passes by itself, when that is tried first, and the longest interval
            later, in seconds.
        can_skip: a person may have the run go on without it.
        quorum, approved_by: how many must approve, and who has.
        tool, arguments: of the call that is to be approved; large arguments as a text that is cut.
        edit: the schema of these arguments, by which people change them.
        requesters: who asks for an approval: everybody who spoke to the run, or the one that a workflow names.
        shown: of a pipeline's gate, what people see beside the message; of what is large, only the sizes.
        size, reference: of what is cut, the bytes of all of it, and where the store has it; see `load_arguments` and
            `load_shown`.
        edited_by, changes: of an edit, the editor, "" for an unnamed one, and the changes in words.
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
    reference: dict[str, Any] | None = None
    requesters: tuple[str, ...] = ()
    shown: list[dict[str, Any]] | None = None
    then: str | None = None
    edit: dict[str, Any] | None = None
    remember: str = ""
    edited_by: str | None = None
    changes: str | None = None

    def is_gate(self, name: str) -> bool:
        """Whether it is the gate of this name."""
        return self.kind == "approval" and self.name == name

    def plain(self) -> dict[str, Any]:
        data: dict[str, Any] = {
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
