"""Interprets decisions and deadlines at a gate. Nothing here does I/O or reads a clock: drivers say what time it is."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic_core import to_json

from standfast.agent_loop.decisions import Decision
from standfast.agent_loop.gate_rules import GateRule
from standfast.messages import distinct_people, person
from standfast.tools import is_wider

GateStatus = Literal["open", "approved", "rejected", "timed-out"]


def digest_of(gate: str, message: str, *shown: Any) -> str:
    """Return the digest of what people are shown at a gate: the message, and of a tool call its name and arguments."""
    return hashlib.blake2b(to_json([gate, message, *shown]), digest_size=16).hexdigest()


def edited_digest(digest: str, edit: Any) -> str:
    """Return the digest of what people are shown after somebody has changed the value at a gate."""
    return digest_of(digest, json.dumps(edit, sort_keys=True))  # a store may have put the keys in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A gate that was reached.

    Args:
        rule: whom it asks now; another one after an escalation.
        digest: of what people are shown when it is opened; see `shown_digest`.
        requesters: who has spoken to the run: who started it, said or answered something, or edited a call.
        since: when it began to ask those whom it asks now.
        approvals: so far; the first has the edit that all of them mean.
        last: the decision that ended it; None while it is open, and when its time ended it.
        arguments: of the tool call, as it runs if nobody edits them.
        edits: what it shows has a value that people may change; those who decide later see it as it was changed.
        is_call: of a tool call, on which nobody decides who does not say the digest of what they have looked at.
        fingerprint, schema_digest: of the tool as it was when people were asked; "" if it has none.
        schema: of the arguments of the tool call, by which people change them; None if it is too large to be told.
        policy: the digest of all that a standing approval for the tool rests on; "" if nobody may give one.
        advance: decisions that were made in advance, by standing approvals, and are yet to be judged.
        later: whom it asks next, one after the other, once those whom it asks now have approved; each has its `message`
            and `digest`.
        opened: when it began to ask the first of them, if others have been asked since.
    """

    name: str
    rule: GateRule
    digest: str
    since: datetime
    requesters: tuple[str, ...] = ()
    approvals: tuple[Decision, ...] = ()
    status: GateStatus = "open"
    last: Decision | None = None
    arguments: Any = None
    edits: bool = False
    is_call: bool = False
    fingerprint: str = ""
    schema_digest: str = ""
    schema: Mapping[str, Any] | None = None
    policy: str = ""
    advance: tuple[Decision, ...] = ()
    later: tuple[GateRule, ...] = ()
    opened: datetime | None = None

    @classmethod
    def of_step(
        cls, path: str, rule: GateRule, shown: Mapping[str, Any], *, since: datetime, requesters: Iterable[str | None]
    ) -> "Gate":
        """Return the gate of a pipeline's step.

        Args:
            shown: what people are asked, its digest, and `later` the same for those to whom it escalates; and whether
                it `edits`.
        """
        return cls(
            name=path,
            rule=rule.asking(shown.get("later", ())),
            digest=shown["digest"],
            since=since,
            requesters=distinct_people(requesters),
            edits=shown.get("edits", False),
        )

    @property
    def holds(self) -> str:
        """What it holds if that is not a call or a step: "message", what the user has said, or "answer"."""
        return self.rule.holds

    @property
    def changed(self) -> Any:
        """The value that people are shown who decide after somebody has changed it; None if nobody has."""
        return self.approvals[0].edit if self.edits and self.approvals else None

    @property
    def shown_digest(self) -> str:
        """The digest of what people are shown now."""
        return self.digest if self.changed is None else edited_digest(self.digest, self.changed)

    @property
    def stages(self) -> dict[str, GateRule]:
        """Everyone whom it asks, and may yet ask, by the digests of what they are shown."""
        first, *escalations = self.rule.chain
        rules = [*escalations, *(one for rule in self.later for one in rule.chain)]
        return {self.digest: first, **{one.digest: one for one in rules if one.digest}}

    @property
    def approved_by(self) -> tuple[str, ...]:
        """Who has approved it so far, as far as they gave a name."""
        return tuple(decision.by for decision in self.approvals if decision.by is not None)

    @property
    def unjudged(self) -> tuple[Decision, ...]:
        """The decisions that were made in advance, of people who have not approved it yet."""
        known = set(map(person, self.approved_by))
        return () if self.status != "open" else tuple(one for one in self.advance if person(one.by) not in known)

    def asking(self) -> "Gate":
        """Return the gate when nothing is left of what was decided in advance."""
        return replace(self, advance=())

    @property
    def deadline(self) -> datetime | None:
        return None if self.rule.timeout is None else self.since + timedelta(seconds=self.rule.timeout)

    @property
    def then(self) -> str | None:
        """What happens at its deadline, in words; None if it has none."""
        if self.rule.timeout is None:
            return None
        match self.rule.on_timeout, self.rule.escalate_to:
            case "approve", _ if self.later:
                return f"it asks {_people(self.later[0])}"
            case "approve", _:
                return "it is approved"
            case "escalate", GateRule() as to:
                return f"it asks {_people(to)}"
            case "reject", _:
                return "it is rejected"
        if self.holds:
            return "it is withheld" if self.holds == "answer" else "it is not answered"
        return "it is not run" if self.is_call else "the run fails"

    @property
    def escalates(self) -> bool:
        """Whether others are asked at its deadline."""
        return self.rule.escalates or (self.rule.on_timeout == "approve" and bool(self.later))

    def next_reminder(self, now: datetime) -> datetime | None:
        """Return when people are to be reminded next, if that is before the deadline."""
        if self.rule.remind_every is None:
            return None
        every = max(self.rule.remind_every, 0.1)
        at = self.since + timedelta(seconds=every * (int((now - self.since).total_seconds() // every) + 1))
        if at <= now:  # rounded
            at += timedelta(seconds=every)
        return None if self.deadline is not None and at >= self.deadline else at

    def problem(self, decision: Decision) -> str | None:
        """Return why a decision does not count, or None if it does."""
        by, rule, who = decision.by, self.rule, person(decision.by)
        if self.status != "open":
            return f"gate {self.name} was {self.status.replace('-', ' ')} already"
        if decision.digest is None and (self.is_call or self.holds or rule.by_digest):
            what = "on a tool call says on which" if self.is_call else "here says on what"
            return (
                f"gate {self.name}: digest is missing; who decides {what}, by the digest that stands beside it in "
                "`pending`, in the run's details, or in the result of a run that waits"
            )
        if decision.digest is not None and decision.digest != self.shown_digest:
            return (
                f"gate {self.name} shows something else now: look at it again, and decide on digest {self.shown_digest}"
            )
        needs_name = bool(rule.users) or rule.quorum > 1 or rule.exclude_requester
        if not who and needs_name:
            return f"gate {self.name}: by is missing; it must be said who decides"
        if rule.users and who not in map(person, rule.users):
            return f"gate {self.name}: {by} may not decide it; {', '.join(rule.users)} may"
        if decision.decision == "reject":
            return None if decision.remember is None else f"gate {self.name}: remember goes with approve"
        if rule.exclude_requester and who in map(person, self.requesters):
            return f"gate {self.name}: {by} has asked for it, and cannot approve it"
        if who and any(person(earlier.by) == who for earlier in self.approvals):
            return f"gate {self.name}: {by} has approved it already"
        same = self.edits and decision.edit is None  # the digest says which value that is
        if self.approvals and not same and to_json(self.approvals[0].edit) != to_json(decision.edit):
            return f"gate {self.name}: others have approved it with another edit"
        return self._more_problem(decision)

    def _more_problem(self, decision: Decision) -> str | None:
        """Return why this cannot be changed, or later calls be approved with it; None if they can, or need not be."""
        if self.holds and decision.edit is not None:
            return f"gate {self.name}: edit: nothing can be changed here"
        if decision.remember is None:
            return None
        widest, scope = self.rule.remember, decision.remember.scope
        if not widest or not self.is_call:
            return f"gate {self.name}: remember: later calls cannot be approved in advance here; approve this one alone"
        if is_wider(scope, widest):
            return f'gate {self.name}: remember: the scope "{scope}" is wider than "{widest}", the widest here'
        if not person(decision.by):
            return f"gate {self.name}: by is missing; it must be said who approves later calls"
        return None

    def decided(self, decision: Decision, at: datetime | None = None) -> "Gate":
        """Return the gate after a decision that counts. A second approval of one person changes nothing.

        If requesters cannot approve, whoever edits becomes a requester of the edit: as many others must approve it.
        An edit counts only where nobody else would have to approve the edited call; so nobody is asked after it.

        Args:
            at: when; if others are asked now, their time begins.
        """
        decision = decision.model_copy(update={"remember": None})  # its standing approval has it
        if decision.decision == "reject":
            return replace(self, status="rejected", last=decision)
        if decision.by and person(decision.by) in map(person, self.approved_by):
            return self  # it was judged again after a reset, and recorded again
        approvals = (*self.approvals, decision.model_copy(update={"edit": None}) if self.approvals else decision)
        is_own = self.rule.exclude_requester and approvals[0].edit is not None
        if len(approvals) < self.rule.quorum + is_own:
            return replace(self, approvals=approvals)
        if self.later and approvals[0].edit is None:
            return self._asking_next(self.since if at is None else at)
        return replace(self, approvals=approvals, status="approved", last=approvals[-1])

    def _asking_next(self, at: datetime) -> "Gate":
        rule, *later = self.later
        opened, asked = self.opened or self.since, {"later": tuple(later), "advance": ()}
        return replace(self, rule=rule, digest=rule.digest, since=at, approvals=(), opened=opened, **asked)  # type: ignore[arg-type]

    def expired(self) -> "Gate":
        """Return the gate after its time is over."""
        match self.rule.on_timeout, self.rule.escalate_to, self.deadline:
            case "approve", _, datetime() as deadline if self.later:
                return self._asking_next(deadline)
            case "approve", _, _:
                return replace(self, status="approved")
            case "reject", _, _:
                return replace(self, status="rejected")
            case "escalate", GateRule() as rule, datetime() as deadline:
                return replace(self, rule=rule, since=deadline, approvals=(), digest=rule.digest or self.digest)
            case _:
                return replace(self, status="timed-out")

    def at(self, now: datetime) -> "Gate":
        """Return the gate as it is at a time: every deadline that has passed has had its effect."""
        gate = self
        while gate.status == "open" and gate.deadline is not None and gate.deadline <= now:
            gate = gate.expired()
        return gate

    def plain(self) -> dict[str, Any]:
        """Return it as JSON."""
        data: dict[str, Any] = {
            "name": self.name,
            "rule": self.rule.plain(),
            "digest": self.digest,
            "since": self.since.isoformat(),
            "requesters": list(self.requesters),
            "approvals": [decision.model_dump() for decision in self.approvals],
        }
        for name in ("arguments", "edits", "is_call", "fingerprint", "schema_digest", "policy"):
            if getattr(self, name) not in (None, False, ""):
                data[name] = getattr(self, name)
        if self.status == "open" and self.schema is not None:
            data["schema"] = dict(self.schema)
        if self.advance:
            data["advance"] = [decision.model_dump() for decision in self.advance]
        if self.later:  # in the rule, where an earlier version's worker fails on it: it would forget to ask them
            data["rule"]["later"] = [rule.plain() for rule in self.later]
        if self.opened is not None:
            data["opened"] = self.opened.isoformat()
        if self.status != "open":
            data["status"] = self.status
        if self.status == "rejected" and self.last is not None:
            data["last"] = self.last.model_dump()
        return data

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> "Gate":
        """Read what `plain` returned."""
        approvals = tuple(Decision(**decision) for decision in data["approvals"])
        status, last = data.get("status", "open"), data.get("last")
        ended = approvals[-1] if approvals and status == "approved" else None
        rule = {name: value for name, value in data["rule"].items() if name != "later"}
        return cls(
            name=data["name"],
            rule=GateRule.read(rule),
            later=tuple(map(GateRule.read, data["rule"].get("later", ()))),
            opened=datetime.fromisoformat(data["opened"]) if "opened" in data else None,
            digest=data["digest"],
            since=datetime.fromisoformat(data["since"]),
            requesters=tuple(data.get("requesters", ())),
            approvals=approvals,
            status=status,
            last=ended if last is None else Decision(**last),
            arguments=data.get("arguments"),
            edits=data.get("edits", False),
            is_call=data.get("is_call", False),
            fingerprint=data.get("fingerprint", ""),
            schema_digest=data.get("schema_digest", ""),
            schema=data.get("schema"),
            policy=data.get("policy", ""),
            advance=tuple(Decision(**decision) for decision in data.get("advance", ())),
        )

    def after(self, recorded: Iterable[tuple[Decision, datetime]]) -> "Gate":
        """Return the gate after decisions that have counted at it, each at its own time, whatever ran since.

        Decisions that it already has change nothing. Nor do those on another call of the same id, told by the digest.
        """
        gate, known = self, len(self.approvals)
        for decision, at in recorded:
            if known and decision.digest in gate.digests:
                known -= 1
                continue
            then = gate.at(at)
            while then.status == "open" and decision.digest not in then.digests and then.rule.escalate_to is not None:
                then = then.expired()  # they were asked, before the gate was opened anew
            if then.status == "open" and decision.digest in then.digests:
                gate = then.decided(decision, at)
        return gate

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests of all that people have been shown since it began to ask those whom it asks now."""
        return (self.digest, self.shown_digest)

    @property
    def edit(self) -> Any:
        """What was approved instead of what was shown, or None."""
        if self.edits and self.last is None:  # time has approved it: too few people had approved the edit
            return None
        return self.approvals[0].edit if self.status == "approved" and self.approvals else None

    @property
    def output(self) -> dict[str, Any]:
        """Return the gate's output for later steps: the decision, by whom, their comment, their edit."""
        people = list(self.approved_by)
        last = self.last
        return {
            "decision": "approve" if self.status == "approved" else "reject",
            "by": people if self.status == "approved" or last is None or last.by is None else [last.by],
            "comment": None if last is None else last.comment,
            "edit": self.edit,
        }

    @property
    def failure(self) -> tuple[str, str] | None:
        """Return why a gate ended the run, as a reason and in words; None while it is open or approved."""
        match self.status, self.last:
            case "timed-out", _:
                return (
                    "approval-timeout",
                    f"nobody decided on gate {self.name} until {self.deadline:%Y-%m-%d %H:%M} UTC",
                )
            case "rejected", None:
                return "approval-rejected", f"nobody decided on gate {self.name} in time, which rejects it"
            case "rejected", last:
                who, why = (None, None) if last is None else (last.by, last.comment)
                return "approval-rejected", rejection(self.name, who, why)
        return None


def _people(rule: GateRule) -> str:
    return ", ".join(rule.groups or rule.users) or "anybody"


def rejection(gate: str, by: str | None, comment: str | None) -> str:
    """Return a rejection in words."""
    return f"gate {gate} was rejected{f' by {by}' if by else ''}{'' if comment is None else f': {comment}'}"
