"""Checks the results of standfast's activities strictly, since an operator may complete one by hand with any value.

Their shapes are the types in `names`; the rules that types cannot express are here. These results steer the run: an
unusable one would fail its workflow task again and again. The results of tools are not checked: a result that an
operator enters for a call is its result (see `wire.put_in`).
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from functools import cache
from itertools import repeat
from types import UnionType
from typing import (
    Any,
    Literal,
    Required,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from standfast.agent_loop import Decision, Gate
from standfast.checkpoints import Question
from standfast.errors import StandfastError
from standfast.messages import JSONObject, Usage, json_problem, read_json
from standfast.pipeline_loop import MAX_ITEMS
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import (
    ActivityName,
    AgentResult,
    AskedAtGate,
    Declared,
    Kept,
    ModelReference,
    ModelReply,
    Opened,
    Shown,
    Stepped,
    Stretched,
    StretchReference,
)
from standfast.temporal.wire.inputs import RESULT_VALUES, user_message
from standfast.temporal.wire.outcomes import is_outcome, is_reported, is_usage
from standfast.temporal.wire.plans import read_gates, read_plan
from standfast.temporal.wire.run_state import Progress, read_state
from standfast.temporal.wire.snapshots import BegunState, Facts, is_tool_facts, read_tool_facts
from standfast.tools.calls import call_key

LOST = {"status": "lost"}  # for an agent that was lost with the run that called it, and can continue
OTHER = {"status": "other"}  # for an agent that was asked something else


class _ChangedCall(TypedDict):
    """The data that a step's activity has made for a call if a deploy has changed its tool."""

    shown: str
    tool: str
    facts: JSONObject


class _Rule(TypedDict, total=False):
    """The value of `GateRule.plain`, with the people whom a gate asks later."""

    timeout: float | int | None
    remind_every: float | int | None
    on_timeout: str
    users: list[str]
    groups: list[str]
    quorum: int
    exclude_requester: bool
    escalate_to: "_Rule | None"
    message: str
    digest: str
    by_digest: bool
    remember: str
    guardrail: str
    holds: str
    later: list["_Rule"]


class _Gate(TypedDict, total=False):
    """The part of `Gate.plain` that steers a run."""

    name: Required[str]
    rule: Required[_Rule]
    digest: Required[str]
    requesters: list[str]
    edits: bool
    is_call: bool
    fingerprint: str
    schema_digest: str
    policy: str
    status: str


T = TypeVar("T")
_MADE: dict[str, Any] = {"with": str | None, "on": str, "until": bool}  # by the purpose of a step's activity
_BEGIN, _LONGEST = datetime(2026, 1, 1, tzinfo=UTC), 1e10  # seconds, 300 years
_NEEDS = {"left-out": "size", "image": "media_type"}  # by the kind of a value that people see
RECEIPTED = (names.DECIDE, names.KEEP, names.COMMIT)


def refused_before(name: str) -> str:
    return f"{name}: it was refused before the run was reset, so it does not count now; send a new one"


def perhaps_refused_before(name: str, why: str) -> str:
    return (
        f"{name}: it does not count, since it may have been refused before the run was reset, and that history cannot "
        f"be read ({why}); make it readable, or send a new one without an id"
    )


def receipted(reference: Mapping[str, Any], found: T) -> T:
    """Return a result with the receipt that the run asks for; a result entered by hand does not have it."""
    return cast(T, {"receipt": reference["receipt"], "of": found}) if "receipt" in reference else found


def fits(activity: str, reference: Mapping[str, Any], found: object) -> bool:
    """Whether a value can be the result of an activity that was called with this reference."""
    if "receipt" in reference:
        if not isinstance(found, dict) or found.keys() != {"receipt", "of"} or found["receipt"] != reference["receipt"]:
            return False
        found = found["of"]
    if activity in (names.OPEN, names.OPEN_PIPELINE) and "input" not in reference:
        return isinstance(found, dict)  # an open run that searched for a worker reads nothing of it
    if json_problem(found, RESULT_VALUES) is not None or not _conforms(found, _RESULTS[activity]):
        return False
    read = _READERS.get(activity)
    return found is None or read is None or _can_be_read(read, reference, found)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _conforms(value: Any, kind: Any) -> bool:
    """Whether JSON conforms to a type; it may have further fields."""
    if is_typeddict(kind):
        if not isinstance(value, dict) or not kind.__required_keys__ <= value.keys():
            return False
        hints = _hints(kind)
        return all(map(_conforms, value.values(), map(hints.get, value, repeat(Any))))
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        return any(_conforms(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(parts) and all(map(_conforms, value, parts))
    if origin in (list, dict):
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, origin) and all(_conforms(item, parts[-1]) for item in items)
    is_flag = isinstance(value, bool) and kind is int  # a bool is an int in Python
    return kind is Any or (isinstance(value, kind) and not is_flag)


_RESULTS = {
    getattr(names, name): get_args(hint)[1]
    for name, hint in get_type_hints(names).items()
    if get_origin(hint) is ActivityName
}


def _can_be_read(read: Callable[..., bool | None], reference: Mapping[str, Any], found: Any) -> bool:
    """Whether the run can use a value: it is tried with a copy."""
    try:
        return read(reference, deepcopy(found)) is not False
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, StandfastError):
        return False


def _read_opened(_: object, found: Opened) -> bool:
    facts = Facts.read(found["facts"])
    progress = Progress.begun("", found)
    read_state(progress.opened.get("state", {}), facts)
    heard = [found["message"]] if "message" in found else []
    for said in [*found.get("unheard", ()), *heard]:
        user_message(said)
    return progress.session != ""


def _is_state(_: object, found: BegunState) -> None:
    read_json(found if isinstance(found, str) else found[1])


def _read_opened_pipeline(_: object, found: JSONObject) -> bool:
    read_gates(found["gates"])
    read_plan(found["plan"])
    for facts in found["tools"].values():
        read_tool_facts(facts)
    return _conforms(found["gates"], dict[str, _Rule])


def _read_recalled(_: object, found: JSONObject) -> bool:
    for decision, at in found.get("decisions", ()):
        Decision(**decision)
        if datetime.fromisoformat(at).tzinfo is None:
            return False
    return "decisions" in found


def _read_messages(reference: Mapping[str, Any], found: list[Any] | Kept) -> bool:
    if isinstance(found, dict):
        return "again" not in reference and bool(found) and found.keys() <= Kept.__annotations__.keys()
    for said in found:
        user_message(said)
    return True


def is_result(found: object) -> bool:
    """Whether a value can be the result of an agent that another agent has run."""
    if json_problem(found, RESULT_VALUES) is not None or not _conforms(found, AgentResult):
        return False
    result = cast(JSONObject, found)
    text = {"complete": "response", "interrupted": "question"}.get(result["status"])
    return (text is None or isinstance(result.get(text), str)) and (
        result.get("usage") is None or _is_usage(result["usage"])
    )


def _is_usage(found: object) -> bool:
    """Whether a value is a usage, as in results of runs."""
    try:
        Usage.model_validate(found)
    except ValueError:
        return False
    return True


def _is_verdict(_: object, found: JSONObject) -> bool:
    if found["dispatch"] < 1:
        return False
    return found["claimed"] is True if "claimed" in found else found.keys() == {"dispatch"} or is_outcome(found)


def _is_step(reference: Mapping[str, Any], found: JSONObject) -> bool:
    """Whether it repeats the path that was kept: otherwise the run would continue with a result that no store has."""
    if "done" in reference and found.get("kept") != reference["done"]["path"]:
        return False
    if "failed" in found:
        return True
    if "end" in reference and not isinstance(found.get("result"), dict):
        return False
    if "make" not in reference:
        return True
    made, what = found.get("made"), reference["make"]["what"]
    if isinstance(made, dict) and "failed" in made:
        return _conforms(made, Stepped)
    if what == "gate":
        return isinstance(made, dict) and ("decided" in made or (_conforms(made, AskedAtGate) and _is_shown(made)))
    if what == "with" and isinstance(made, dict):
        return _conforms(made, _ChangedCall) and is_tool_facts(made["facts"])
    if what == "over":  # the number of the items
        return _conforms(made, int) and 0 <= cast(int, made) <= MAX_ITEMS
    return "made" in found and _conforms(made, _MADE.get(what, Any))


def _is_shown(found: Mapping[str, Any]) -> bool:
    """Whether people can see the values beside a gate's message."""
    return all(_NEEDS.get(one["kind"], "kind") in one for one in found.get("shown", ()))


def _is_declared(found: Declared) -> bool:
    """Whether it has the facts that the calls of a turn need; see `tools_of`."""
    return found.keys() <= _hints(Declared).keys() and all(map(is_tool_facts, found.get("tools", {}).values()))


def _is_reply(reference: Mapping[str, Any], found: ModelReply) -> bool:
    if not found.keys() <= _hints(ModelReply).keys():
        return False
    ids, gates = [call[0] for call in found.get("calls", ())], found.get("gates", ())
    return (
        ("usage" not in found or is_usage(found["usage"]))
        and ("tripped" not in found or _is_tripped(found["tripped"]))
        and _is_declared(found.get("declared", {}))
        and all(_is_gate(gate) and (gate["gate"]["name"] in ids or _is_held(gate, found)) for gate in gates)
        and all(0 <= index < len(reference.get("say", ())) for index in found.get("untold", ()))
    )


def _is_stretch(reference: StretchReference, found: Stretched) -> bool:
    """Whether each of its turns could be the result of separate activities."""
    if not found["turns"] and "known" not in reference:
        return False
    for place, turn in enumerate(found["turns"]):
        calls = {call[2]: call for call in turn["reply"].get("calls", ())}
        ended = {position: outcome for position, outcome, _ in turn.get("outcomes", ())}
        asked: ModelReference = reference["ask"] if place == 0 else {"turn": 0, "seq": 0}
        is_last = place == len(found["turns"]) - 1
        if (
            ("error" in turn["reply"] and not is_last)
            or not _is_reply(asked, turn["reply"])
            or not {*ended, *(position for position, _, _ in turn.get("lost", ()))} <= calls.keys()
            or not all(isinstance(why, str) or _is_verdict(None, cast(Any, why)) for _, why, _ in turn.get("lost", ()))
            or not all(
                is_reported(one, call_key(position, calls[position][0], one.get("dispatch", 1)))
                for position, one in ended.items()
            )
        ):
            return False
    return 0 <= found.get("wait", 0) <= _LONGEST


def _is_tripped(found: Mapping[str, Any]) -> bool:
    """Whether it has the form that `write_tripped` writes."""
    kinds = {"guardrail": str, "reason": str, "metadata": dict}
    return found.keys() == kinds.keys() and all(isinstance(found[name], kind) for name, kind in kinds.items())


def _is_held(gate: Mapping[str, Any], found: ModelReply) -> bool:
    """Whether it is the one gate of an answer without calls, with content for people."""
    shown = found.get("arguments", {}).get(gate["gate"]["name"])
    is_alone = not found.get("calls") and len(found.get("gates", ())) == 1
    return is_alone and Question(**gate).is_held and _conforms(shown, Shown) and _is_shown(cast(JSONObject, shown))


def _is_gate(found: object) -> bool:
    """Whether people can be asked about it; the workflow adds the time when it was opened."""
    try:
        question = Question.model_validate(found, strict=True)
        gate = Gate.read({**(question.gate or {}), "since": _BEGIN.isoformat()})
        return _conforms(question.gate, _Gate) and _ends(gate)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _ends(gate: Gate) -> bool:
    """Whether a gate's deadlines and reminders have valid times."""
    rules = (one for rule in (gate.rule, *gate.later) for one in rule.chain)
    times = [time for rule in rules for time in (rule.timeout, rule.remind_every) if time is not None]
    return all(0 <= time <= _LONGEST for time in times)


_READERS: dict[str, Callable[..., bool | None]] = {
    names.CALL_MODEL: _is_reply,
    names.STRETCH: _is_stretch,
    names.OPEN: _read_opened,
    names.OPEN_PIPELINE: _read_opened_pipeline,
    names.START: _is_state,
    names.RECALL: _read_recalled,
    names.ANSWERED: lambda _, found: all(map(is_outcome, found.values())),
    names.KEEP: _read_messages,
    names.SETTLE: _is_verdict,
    names.STEP: _is_step,
    names.EXPORT: lambda _, found: "error" in found or "checkpoint" in found,
    names.ATTACH: lambda _, found: is_result(found),
}
