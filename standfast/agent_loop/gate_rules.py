"""The records of gates' rules and of decisions at them; `Gate.problem` judges whether a decision counts.

A rule is the numbers and names of an `Approval`, which a history can keep.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from standfast.agent_loop.argument_patterns import Remember
from standfast.messages import JSONObject, Record, check_whole, clean_text, cut, error_text, json_problem
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

    def plain(self) -> JSONObject:
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


class Decision(Record):
    """What a person decided at a gate.

    Args:
        gate: its name: the path of the step, or the id of the tool call.
        by: who; needed where not everybody may decide.
        digest: of the version that the person saw, if known; a decision with another digest than the gate's is refused.
        edit: replaces the value shown.
        remember: also approves later calls like this one, where the tool's `Approval` allows it.
        standing: the id of the standing approval that made it in advance. Senders cannot set this.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gate: Annotated[str, Field(max_length=1_000)]
    decision: Literal["approve", "reject"]
    by: Annotated[str, Field(max_length=256)] | None = None
    comment: Annotated[str, Field(max_length=4_096)] | None = None
    digest: Annotated[str, Field(max_length=256)] | None = None
    edit: Any = None
    remember: Remember | None = None
    standing: Annotated[str, Field(max_length=64)] | None = None

    @field_validator("gate", "by", "digest")
    @classmethod
    def _check(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if value is None else check_whole(value, str(info.field_name))

    @field_validator("comment")
    @classmethod
    def _clean(cls, value: str | None) -> str | None:
        return value if value is None else clean_text(value)

    @field_validator("edit", mode="before")
    @classmethod
    def _is_json(cls, value: Any) -> Any:
        if problem := json_problem(value):
            raise ValueError(problem)
        return value


def access_problem(rule: Callable[[str | None], object] | None, user: str | None) -> str | None:
    """Return why an access rule of an agent or a pipeline refuses somebody, or None if it does not."""
    if rule is None:
        return None
    try:
        verdict = rule(user)
    except (Exception, SystemExit) as error:
        return f"the access rule raised {type(error).__name__} for {user}: {cut(error_text(error), 500)}"
    if not isinstance(verdict, bool):
        return f"the access rule gave {verdict!r:.80} for {user}, not True or False"
    return None if verdict else f"{user} may not"


def decider_problem(rule: Callable[[str | None], object] | None, decision: Decision) -> str | None:
    """Return why an access rule keeps a person from deciding at a gate; None if it does not."""
    denied = access_problem(rule, decision.by)
    return None if denied is None else f"gate {decision.gate}: {denied} decide it"
