"""Describes whom a gate asks and for how long: the numbers and names of an `Approval`, which a history can keep."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

from standfast.tools import Approval

Holds = Literal["message", "answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """The numbers and names of an `Approval`, without its functions; see there.

    Args:
        timeout, remind_every: seconds.
        users: the people who may decide, with groups expanded; an empty list means anyone.
        groups: those that are asked, for people to search by.
        message, digest: for people who are asked later, and read something else.
        by_digest: a decision must carry the digest of the version shown.
        remember: the widest scope of a standing approval that may be given; "" if none may.
        guardrail: which one has tripped, so that these people are asked; "" if the tool, or the step, asks them.
        holds: what that guardrail has stopped, if not a call: what the user has said, or an answer.
    """

    timeout: float | None = None
    on_timeout: str = "fail"
    remind_every: float | None = None
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    quorum: int = 1
    exclude_requester: bool = False
    escalate_to: "GateRule | None" = None
    message: str = ""
    digest: str = ""
    by_digest: bool = False
    remember: str = ""
    guardrail: str = ""
    holds: Holds | Literal[""] = ""

    @classmethod
    def of(
        cls,
        approval: Approval,
        *,
        patience: float | None = None,
        guardrail: str = "",
        holds: Holds | Literal[""] = "",
    ) -> "GateRule":
        """Return the rule of an approval.

        Args:
            patience: how long the gate waits without a timeout.
            guardrail: whose approval it is, if not a tool's; `holds` is what it has stopped, if not a call.
        """
        to = approval.escalate_to
        return cls(
            timeout=patience if approval.timeout is None else approval.timeout,  # type: ignore[arg-type]  # seconds by now
            on_timeout=approval.on_timeout,
            remind_every=approval.remind_every,  # type: ignore[arg-type]
            users=approval.users,
            groups=approval.asked_groups,
            quorum=approval.quorum or 1,
            exclude_requester=bool(approval.exclude_requester),
            escalate_to=None if to is None else cls.of(to, patience=patience, guardrail=guardrail, holds=holds),
            by_digest=approval.edit is not None or (approval.show is not None and approval.show != {}),
            remember=approval.remember or "",
            guardrail=guardrail,
            holds=holds,
        )

    @property
    def escalates(self) -> bool:
        """Whether another rule replaces it when its time is over."""
        return self.on_timeout == "escalate" and self.escalate_to is not None

    @property
    def chain(self) -> "tuple[GateRule, ...]":
        """This rule and the rules that replace it, one after the other, when time is over."""
        return (self,) if self.escalate_to is None else (self, *self.escalate_to.chain)

    def asking(self, shown: Sequence[Mapping[str, str]]) -> "GateRule":
        """Return the rule with the `message` and `digest` of each escalation, in their order."""
        if self.escalate_to is None or not shown:
            return self
        first, *rest = shown
        asked = replace(self.escalate_to, message=first["message"], digest=first["digest"])
        return replace(self, escalate_to=asked.asking(rest))

    @property
    def opens_by_time(self) -> bool:
        """Whether time alone may let something through, or have other people decide."""
        return any(one.on_timeout in ("approve", "escalate") for one in self.chain)

    def bare(self) -> "GateRule":
        """Return the rule without its message and digest."""
        to = None if self.escalate_to is None else self.escalate_to.bare()
        return replace(self, message="", digest="", escalate_to=to)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON."""
        data: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data |= {"users": list(self.users), "groups": list(self.groups)}
        data["escalate_to"] = None if self.escalate_to is None else self.escalate_to.plain()
        usual = GateRule()
        return {name: value for name, value in data.items() if value != getattr(usual, name) and value != []}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> "GateRule":
        """Read what `plain` returned."""
        given = {**data, "users": tuple(data.get("users", ())), "groups": tuple(data.get("groups", ()))}
        if data.get("escalate_to") is not None:
            given["escalate_to"] = cls.read(data["escalate_to"])
        return cls(**given)


def in_turn(
    rules: Iterable[GateRule], texts: Iterable[Sequence[str]], digest: Callable[[str, int], str]
) -> list[GateRule]:
    """Return rules that ask one after the other, each and its escalations with message and digest.

    Args:
        texts: of each rule, its message and its escalations' messages.
        digest: returns the digest of the contents shown with a message, given the message and its number.
    """
    asking, number = list[GateRule](), count()
    for rule, said in zip(rules, texts, strict=True):
        first, *later = [{"message": text, "digest": digest(text, next(number))} for text in said]
        asking.append(replace(rule.asking(later), message=first["message"], digest=first["digest"]))
    return asking
