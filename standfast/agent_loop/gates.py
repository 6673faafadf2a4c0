"""Interprets decisions and deadlines at a gate. Nothing here does I/O or reads a clock: drivers say what time it is."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from standfast.agent_loop.gate_rules import Decision, GateRule
from standfast.messages import JSONObject, cut, distinct_people, edit_in_words, explain, person, visible_json
from standfast.tools import SCOPES, is_wider

GateStatus = Literal["open", "approved", "rejected", "timed-out"]


def digest_of(gate: str, message: str, *shown: Any) -> str:
    """Return the digest of a gate's content: the message, and for a tool call its name and arguments."""
    return hashlib.blake2b(to_json([gate, message, *shown]), digest_size=16).hexdigest()


def edited_digest(digest: str, edit: Any) -> str:
    """Return the digest of a gate's content after an edit."""
    return digest_of(digest, _sorted(edit))


def edited_call_digest(digest: str, value: str) -> str:
    """Return the same of a call; `value` is the `value_digest` of the edited arguments."""
    return digest_of(digest, value)


def value_digest(edit: Any) -> str:
    """Return the digest of an edit, whatever the order of its keys."""
    return digest_of("edit", _sorted(edit))


def _sorted(edit: Any) -> str:
    return json.dumps(edit, sort_keys=True)  # a store may have put the keys in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A gate that was reached.

    Args:
        rule: whom it asks now; another one after an escalation.
        digest: of the content when the gate opens; see `shown_digest`.
        requesters: who has spoken to the run: who started it, said or answered something, or edited a call.
        since: when it began to ask those whom it asks now.
        approvals: of the present proposal; the first carries its edit, if there is one. See `counted`.
        last: the decision that ended it; None while it is open, and when its time ended it.
        arguments: of the tool call, unless it is edited. A history leaves them out, and replaces edits by references,
            `{"digest", "value", "shown"}`, where `value` is the `value_digest`.
        edits: an edit is a new proposal, shown under another digest. False for a pipeline's gate that shows no value to
            change, and for gates of calls opened by earlier versions.
        is_call: of a tool call, on which a decision must include the digest of the reviewed contents.
        fingerprint, schema_digest: of the tool as it was when people were asked; "" if it has none.
        schema: of the arguments of the tool call, by which people change them; None if it is too large to be told.
        policy: the digest of everything that a standing approval for the tool depends on; "" if none may be given.
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
    def proposed(self) -> Any:
        """The edit that approvals refer to; None for the original."""
        return self.approvals[0].edit if self.approvals else None

    @property
    def changed(self) -> Any:
        """The edit that people are shown; None if they see the original."""
        return self.proposed if self.edits else None

    @property
    def asked_arguments(self) -> Any:
        """The arguments on which people decide now."""
        return self.arguments if self.changed is None else self.changed

    @property
    def changes(self) -> str | None:
        """What the edit of a call has changed, in words; None without an edit."""
        return None if self.changed is None or not self.is_call else edit_in_words(self.arguments, self.changed)

    def showing(self, digest: str, arguments: Any) -> "Gate":
        """Return the gate of a call as it was opened, but with the digest and the arguments that it shows now."""
        return replace(self, digest=digest, arguments=arguments)

    @property
    def editor(self) -> str | None:
        """The name of the editor; None without an edit, or for an unnamed one."""
        return None if self.proposed is None else self.approvals[0].by

    @property
    def shown_digest(self) -> str:
        """The digest of the current content."""
        if self.changed is None:
            return self.digest
        if self.is_call:
            return edited_call_digest(self.digest, self._value(self.changed))
        return edited_digest(self.digest, self.changed)

    def _value(self, edit: Any) -> str:
        """Return what tells an edit from others; in a history edits of calls are references."""
        is_reference = self.is_call and self.arguments is None and isinstance(edit, dict) and "value" in edit
        return str(edit["value"]) if is_reference else value_digest(edit)

    def _is_new(self, decision: Decision) -> bool:
        """Whether a decision proposes something else than the gate has so far."""
        if decision.edit is None:
            return False
        return self.proposed is None or self._value(self.proposed) != self._value(decision.edit)

    @property
    def stages(self) -> dict[str, GateRule]:
        """Everyone the gate asks now or may ask later, by the digest of the content they see."""
        first, *escalations = self.rule.chain
        rules = [*escalations, *(one for rule in self.later for one in rule.chain)]
        return {self.digest: first, **{one.digest: one for one in rules if one.digest}}

    @property
    def counted(self) -> tuple[Decision, ...]:
        """The approvals that count towards the quorum.

        The editor approves the edit. With `exclude_requester` the editor requests it instead, and as many others must
        approve it.
        """
        is_own = self.rule.exclude_requester and self.proposed is not None
        return self.approvals[1:] if is_own else self.approvals

    @property
    def approved_by(self) -> tuple[str, ...]:
        """Whose approvals count so far, as far as they gave a name."""
        if self.status == "approved" and self.last is None and self.changed is not None:
            return ()  # time has approved the original, and they approved an edit
        return tuple(decision.by for decision in self.counted if decision.by is not None)

    @property
    def barred(self) -> tuple[str, ...]:
        """The requesters, and with `exclude_requester` the editor."""
        own = [self.editor] if self.rule.exclude_requester else []
        return distinct_people([*self.requesters, *own])

    @property
    def unjudged(self) -> tuple[Decision, ...]:
        """The decisions that were made in advance, of people who have not approved it yet."""
        known = {person(decision.by) for decision in self.approvals}
        return () if self.status != "open" else tuple(one for one in self.advance if person(one.by) not in known)

    def asking(self) -> "Gate":
        """Return the gate without any decision made in advance."""
        return replace(self, advance=())

    @property
    def deadline(self) -> datetime | None:
        return None if self.rule.timeout is None else self.since + timedelta(seconds=self.rule.timeout)

    @property
    def then(self) -> str | None:
        """What happens at its deadline, in words; None if it has none."""
        if self.rule.timeout is None:
            return None
        without = "" if self.changed is None else ", without the edit"
        match self.rule.on_timeout, self.rule.escalate_to:
            case "approve", _ if self.later:
                return f"it asks {_people(self.later[0])}{without}"
            case "approve", _:
                return f"it is approved{without}"
            case "escalate", GateRule() as to:
                return f"it asks {_people(to)}{without}"
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
        """Return the time of the next reminder, if it comes before the deadline."""
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
            what = "on a tool call" if self.is_call else "here"
            return (
                f"gate {self.name}: digest is missing; a decision {what} needs the digest that `pending`, "
                "the run's details, and the result of a waiting run show"
            )
        if decision.digest is not None and decision.digest != self.shown_digest:
            edited = ""
            if self.changed is not None:
                edited = f", since {self.editor or 'somebody'} has edited it to{self._edit_text()}"
            return f"gate {self.name} has changed{edited}: review it again, and decide on digest {self.shown_digest}"
        needs_name = bool(rule.users) or rule.quorum > 1 or rule.exclude_requester
        if not who and needs_name:
            return f"gate {self.name}: by is missing; name the person who decides"
        if rule.users and who not in map(person, rule.users):
            return f"gate {self.name}: {by} may not decide it; {', '.join(rule.users)} may"
        if decision.decision == "reject":
            return None if decision.remember is None else f"gate {self.name}: remember goes with approve"
        return self._approval_problem(decision) or self._more_problem(decision)

    def _approval_problem(self, decision: Decision) -> str | None:
        """Return why an approval does not count on what the gate shows, or on the edit that comes with it."""
        by, who, is_new = decision.by, person(decision.by), self._is_new(decision)
        if self.rule.exclude_requester and who in map(person, self.requesters):
            return f"gate {self.name}: {by} has asked for it, and cannot approve it"
        if not self.edits and self.approvals and (is_new or (decision.edit is None) != (self.proposed is None)):
            had = "without an edit" if self.proposed is None else f"with another edit:{self._edit_text()}"
            return f"gate {self.name}: other people have approved it {had}"
        if is_new:
            return self._edit_problem(decision)
        if not who or all(person(earlier.by) != who for earlier in self.approvals):
            return None
        if who in map(person, self.barred):
            return f"gate {self.name}: {by} has edited it, and cannot approve it: another person must"
        return f"gate {self.name}: {by} has approved it already"

    def _edit_text(self) -> str:
        """Return the edit so far for people, or its beginning."""
        edit = self.proposed
        if self.is_call and self.arguments is None and isinstance(edit, dict):
            edit = edit.get("shown")
        return f" {cut(edit if isinstance(edit, str) else visible_json(edit, indent=None), 500)}"

    def _edit_problem(self, decision: Decision) -> str | None:
        """Return why an edit can never reach its quorum, or None if it can."""
        rule, own = self.rule, person(decision.by)
        if not (rule.exclude_requester and rule.users):
            return None
        barred = {own, *map(person, self.requesters)}
        left = [user for user in rule.users if person(user) not in barred]
        if len(left) >= rule.quorum:
            return None
        who = f"only {', '.join(left)} may" if left else "nobody else may"
        return (
            f"gate {self.name}: edit: {rule.quorum} other people must approve an edit by {decision.by}, and {who}: "
            "reject it, and explain what to change"
        )

    def _more_problem(self, decision: Decision) -> str | None:
        """Return why this cannot be changed, or later calls be approved with it; None if they can, or need not be."""
        if self.holds and decision.edit is not None:
            return f"gate {self.name}: edit: nothing can be edited here"
        if decision.remember is None:
            return None
        widest, scope = self.rule.remember, decision.remember.scope
        if not widest or not self.is_call:
            return f"gate {self.name}: remember: later calls cannot be approved in advance here; approve only this one"
        if is_wider(scope, widest):
            return f'gate {self.name}: remember: the scope "{scope}" is wider than "{widest}", the widest here'
        if not person(decision.by):
            return f"gate {self.name}: by is missing; name the person who approves later calls"
        return None

    def decided(self, decision: Decision, at: datetime | None = None) -> "Gate":
        """Return the gate after a decision that counts. A second approval of one person changes nothing.

        An edit is a new proposal: earlier approvals end with the value that they approved. The rules that `later` holds
        do not apply to it, since an edit that needs the approval of other people is refused.

        Args:
            at: when; if others are asked now, their time begins.
        """
        decision = decision.model_copy(update={"remember": None})  # its standing approval has it
        if decision.decision == "reject":
            return replace(self, status="rejected", last=decision)
        if self._is_new(decision):
            approvals: tuple[Decision, ...] = (decision,)
        elif decision.by and any(person(one.by) == person(decision.by) for one in self.approvals):
            return self  # it was judged again after a reset, and recorded again
        else:
            approvals = (*self.approvals, decision.model_copy(update={"edit": None}))
        gate = replace(self, approvals=approvals)
        if len(gate.counted) < self.rule.quorum:
            return gate
        if self.later and gate.proposed is None:
            return self._asking_next(self.since if at is None else at)
        return replace(gate, status="approved", last=approvals[-1])

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
        """Return the gate's state at a time, after the effect of every deadline that has passed."""
        *_, gate = self, *self.passing(now)
        return gate

    def passing(self, now: datetime) -> Iterator["Gate"]:
        """Yield the gate's state after each deadline that has passed; an open gate then asks others."""
        gate = self
        while gate.status == "open" and gate.deadline is not None and gate.deadline <= now:
            gate = gate.expired()
            yield gate

    def plain(self) -> JSONObject:
        """Return it as JSON."""
        data: JSONObject = {
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
        gate = self
        for decision, at in recorded:
            if gate.has(decision):
                continue
            then = gate.at(at)
            while then.status == "open" and not then._has_shown(decision) and then.rule.escalate_to is not None:
                then = then.expired()  # they were asked, before the gate was opened again
            if then.status == "open" and decision.digest == then.shown_digest:
                gate = then.decided(decision, at)
        return gate

    def _has_shown(self, decision: Decision) -> bool:
        return decision.digest in (self.digest, self.shown_digest)

    def has(self, decision: Decision) -> bool:
        """Whether an approval counts for the current proposal."""
        if decision.decision != "approve" or self._is_new(decision):
            return False
        who, is_edit = person(decision.by), decision.edit is not None
        return any(
            person(one.by) == who and one.digest in (None, decision.digest) and is_edit >= (one.edit is not None)
            for one in self.approvals
        )

    @property
    def edit(self) -> Any:
        """The value approved instead of the one shown, or None."""
        if self.edits and self.last is None:  # time has approved it: too few people had approved the edit
            return None
        return self.approvals[0].edit if self.status == "approved" and self.approvals else None

    @property
    def output(self) -> JSONObject:
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
                    f"gate {self.name} was not decided by {self.deadline:%Y-%m-%d %H:%M} UTC",
                )
            case "rejected", None:
                return "approval-rejected", f"gate {self.name} was not decided in time, which rejects it"
            case "rejected", last:
                who, why = (None, None) if last is None else (last.by, last.comment)
                return "approval-rejected", rejection(self.name, who, why)
        return None


def _people(rule: GateRule) -> str:
    return ", ".join(rule.groups or rule.users) or "anybody"


def rejection(gate: str, by: str | None, comment: str | None) -> str:
    """Return a rejection in words."""
    return f"gate {gate} was rejected{f' by {by}' if by else ''}{'' if comment is None else f': {comment}'}"


def gate_problem(data: Mapping[str, Any], call_id: str | None) -> str | None:
    """Return why a gate from a checkpoint, which anyone may have written, cannot be used; None if it can."""
    try:
        gate = _GATE.validate_python(_flat(data))
    except ValidationError as error:
        return explain(error)
    rules = [one for rule in (gate.rule, *gate.later) for one in rule.chain]
    if gate.name != call_id:
        return f"it is the gate of call {gate.name}, not of {call_id}"
    if gate.since.tzinfo is None or (gate.opened is not None and gate.opened.tzinfo is None):
        return "since has no time zone"
    seconds = [one for rule in rules for one in (rule.timeout, rule.remind_every) if one is not None]
    if not all(0 < one < _LONGEST for one in seconds):
        return "a time of its rule is not above 0"
    if any(rule.quorum < 1 for rule in rules) or len(rules) > _MOST_RULES:
        return "its rule cannot be kept"
    if any(rule.remember not in ("", *SCOPES) for rule in rules):
        return "its rule remembers what it cannot"
    return None


def _flat(data: Mapping[str, Any]) -> JSONObject:
    """Return a gate's JSON with those whom it asks later beside its rule, as a `Gate` has them."""
    rule = data.get("rule")
    return {**data, "later": rule.get("later", ())} if isinstance(rule, Mapping) else dict(data)


_GATE = TypeAdapter(Gate)
_LONGEST = 100 * 365 * 86_400.0
_MOST_RULES = 100
