"""Decides for which calls a standing approval counts: a decision on a tool's calls that its giver makes in advance.

It goes through the rule of every decision when a gate opens: who may decide, how many, no requester. So nothing is
decided here, but only which decisions a gate is given.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from standfast.agent_loop.argument_patterns import fits, pattern_of
from standfast.agent_loop.gate_rules import Decision, GateRule
from standfast.agent_loop.gates import Gate
from standfast.errors import InputError
from standfast.messages import Record, person, size_over
from standfast.tools import Scope, Tool, is_wider

_LONGEST_PATTERN = 64 * 1024  # bytes


class StandingApproval(Record):
    """An approval of a tool's later calls, given together with the approval of one call.

    Args:
        agent, tool, tenant_id: the calls it covers, and their tenant; None for calls without a tenant.
        scope: in which it counts; `scope_key` names the run or the session, and is empty for all runs of the agent.
        session: in which it was given, as `session_key_of` returns it.
        user_id: the owner of that session.
        policy: the digest of the tool and its `Approval` at that time; after a change of either it counts no more.
        arguments: what they may be, each as in `Remember`; a call with any other argument does not fit.
        given_by: the person.
        groups: the groups of approvers that the gate asked.
        run, gate, digest: where it was given: the journal key, the call and what was shown.
        expires_at: it does not count at gates that open then or later.
        revoked_at, revoked_by: when and by whom it was ended; set by the store.
        used: how many recorded decisions were made by it and counted; set by the store.
    """

    id: str
    agent: str
    tool: str
    tenant_id: str | None = None
    scope: Scope
    scope_key: str = ""
    session: str | None = None
    user_id: str | None = None
    policy: str
    arguments: Mapping[str, Any]
    given_by: str
    groups: tuple[str, ...] = ()
    comment: str | None = None
    run: str
    gate: str
    digest: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None
    revoked_by: str | None = None
    used: int = 0

    def is_in_force(self, at: datetime) -> bool:
        """Whether it may count at a gate that opens then."""
        return self.revoked_at is None and at < self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlace:
    """Whose call waits at a gate, as the driver knows it.

    Args:
        run: the journal key of the run; in process, of the part that the last user message began.
        session: the session's id in the store; `session_key` tells it from a later one of that id.
    """

    agent: str
    run: str
    session: str | None
    session_key: str
    tenant_id: str | None
    user_id: str | None = None
    tool: str = ""

    @property
    def scope_keys(self) -> dict[str, str]:
        """By scope, the key of a standing approval that may count here."""
        return {"run": self.run, "session": self.session_key, "agent": ""}


def policy_of(tool: Tool[..., Any], rule: GateRule) -> str:
    """Return the digest of all that a standing approval rests on: the tool's name and input, and its `Approval`.

    The people are left out: they come and go, so the right to decide is checked each time.
    """
    if not rule.remember:
        return ""
    plain = [{**one.plain(), "users": bool(one.users), "escalate_to": None, "remember": ""} for one in rule.chain]
    for one in plain:
        one.pop("message", None)
        one.pop("digest", None)
    data = to_json([tool.name, tool.fingerprint, tool.schema_digest, plain])
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def standing_of(decision: Decision, gate: Gate, place: CallPlace, arguments: Any, at: datetime) -> StandingApproval:
    """Return the standing approval that a decision gives which counts at a gate.

    Its id is the same whenever the decision is recorded.

    Args:
        arguments: those that are approved.

    Raises:
        InputError: it cannot be given, naming the setting.
    """
    wish = decision.remember
    try:
        if wish is None or not isinstance(arguments, dict):
            raise InputError("only a call's arguments can be remembered")
        pattern, end = pattern_of(arguments, wish.arguments), wish.ends(at)
        if size_over(to_json(pattern).decode(), _LONGEST_PATTERN):
            raise InputError(
                f"the arguments have more than {_LONGEST_PATTERN:,} bytes: allow any value for the large ones"
            )
    except InputError as error:
        raise InputError(f"gate {gate.name}: remember: {error}") from error
    told = to_json([place.run, gate.name, gate.shown_digest, person(decision.by)])
    return StandingApproval(
        id=f"sa_{hashlib.blake2b(told, digest_size=10).hexdigest()}",
        agent=place.agent,
        tool=place.tool,
        tenant_id=place.tenant_id,
        scope=wish.scope,
        scope_key=place.scope_keys[wish.scope],
        session=place.session,
        user_id=place.user_id,
        policy=gate.policy,
        arguments=pattern,
        given_by=decision.by or "",
        groups=gate.rule.groups,
        comment=decision.comment,
        run=place.run,
        gate=gate.name,
        digest=gate.shown_digest,
        created_at=at,
        expires_at=end,
    )


def in_advance(gate: Gate, found: Iterable[StandingApproval], place: CallPlace) -> Gate:
    """Return a gate that opens, with the decisions on it that were made in advance: no more than it needs."""
    decisions: list[Decision] = []
    after = gate
    for one in sorted(found, key=lambda one: (one.created_at, one.id)):
        decision = Decision(gate=gate.name, decision="approve", by=one.given_by, digest=gate.digest, standing=one.id)
        counts = standing_problem(one, decision, gate, place) is None and after.problem(decision) is None
        if counts and after.status == "open":
            decisions.append(decision)
            after = after.decided(decision, gate.since)
    return replace(gate, advance=tuple(decisions))


def standing_problem(approval: StandingApproval | None, decision: Decision, gate: Gate, place: CallPlace) -> str | None:
    """Return why a decision was not made in advance by a standing approval, or None if it was.

    Args:
        approval: the stored approval; None if there is none.
        gate: as it was opened, with the arguments of the call.
    """
    said = f"gate {gate.name}: the standing approval {decision.standing}"
    if approval is None:
        return f"{said} is not in the store"
    if approval.revoked_at is not None:
        return f"{said} was revoked by {approval.revoked_by or 'somebody'}"
    if not approval.is_in_force(gate.since):
        return f"{said} had expired on {approval.expires_at:%Y-%m-%d %H:%M} UTC"
    mine = (approval.agent, approval.tool, approval.tenant_id, approval.scope_key, person(approval.given_by))
    its = (place.agent, place.tool, place.tenant_id, place.scope_keys[approval.scope], person(decision.by))
    rule = gate.rule.remember
    if mine != its or not rule or is_wider(approval.scope, rule) or decision.edit is not None:
        return f"{said} is not for this call"
    if approval.policy != gate.policy:
        return f"{said} was given for an earlier version of the tool"
    return None if fits(approval.arguments, gate.arguments) else f"{said} is not for these arguments"
