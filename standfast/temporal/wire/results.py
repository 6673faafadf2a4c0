"""The shapes of our activities' results, which are checked because an operator may complete one by hand with anything.

Tools are not here: whatever somebody puts in as the result of a call is its result (see `wire.put_in`). These steer the
run; what no run can use would fail its workflow task again and again.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any, cast

from standfast.agent_loop import Decision, Gate
from standfast.checkpoints import Question
from standfast.errors import StandfastError
from standfast.messages import Usage, json_problem
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import user_message
from standfast.temporal.wire.limits import RESULT_VALUES
from standfast.temporal.wire.outcomes import is_outcome, is_usage
from standfast.temporal.wire.plans import read_gates, read_plan
from standfast.temporal.wire.run_state import Progress
from standfast.temporal.wire.snapshots import Facts, is_tool_facts, read_tool_facts
from standfast.temporal.wire.states import read_state

LOST = {"status": "lost"}  # of an agent that was lost with the run that called it, and can go on
OTHER = {"status": "other"}  # of an agent that was asked something else


RECEIPTED = (names.DECIDE, names.KEEP, names.COMMIT)


def receipted(reference: Mapping[str, Any], found: object) -> Any:
    """Return a result with the receipt that the run asks for: what somebody puts in by hand has none."""
    return {"receipt": reference["receipt"], "of": found} if "receipt" in reference else found


def fits(activity: str, reference: Mapping[str, Any], found: object) -> bool:
    """Whether a value can be the result of an activity that was asked for with this reference."""
    if "receipt" not in reference:
        return _fits(activity, reference, found)
    is_receipt = isinstance(found, dict) and found.keys() == {"receipt", "of"}
    found = cast("dict[str, Any]", found)
    return is_receipt and found["receipt"] == reference["receipt"] and _fits(activity, reference, found["of"])


def _fits(activity: str, reference: Mapping[str, Any], found: object) -> bool:
    if found is None:
        return activity in _MAY_FIND_NOTHING
    if activity in _OTHERS:
        return _OTHERS[activity](found)
    if not isinstance(found, dict) or json_problem(found, RESULT_VALUES) is not None:
        return False
    if activity in _READERS:
        # A run that is open, and looked for a worker, reads nothing.
        looked = activity in (names.OPEN, names.OPEN_PIPELINE) and "input" not in reference
        return looked or _can_be_read(_READERS[activity], found)
    match activity:
        case names.SETTLE:
            return _is_verdict(found)
        case names.FINISH:
            return _is_number(found.get("seq")) and isinstance(found.get("response"), str)
        case names.EXPORT:
            return isinstance(found.get("error"), str) or isinstance(found.get("checkpoint"), dict)
        case names.STEP:
            return _is_step(reference, found)
        case names.CALL_MODEL:
            return _is_reply(found) and all(
                0 <= index < len(reference.get("say", ())) for index in found.get("untold", ())
            )
    return True


def _can_be_read(read: Callable[[Any], object], found: object) -> bool:
    """Whether the run can read a value: it is tried with a copy."""
    try:
        read(deepcopy(found))
    except (AttributeError, KeyError, TypeError, ValueError, StandfastError):
        return False
    return True


def _read_opened(found: dict[str, Any]) -> None:
    facts = Facts.read(found["facts"])
    progress = Progress.begun("", found)
    read_state(progress.opened.get("state", {}), facts)
    if not progress.session or not _is_number(progress.seq):
        raise TypeError
    heard = [found["message"]] if "message" in found else []
    for said in [*found.get("unheard", ()), *heard]:
        user_message(said)


def _read_opened_pipeline(found: dict[str, Any]) -> None:
    if not isinstance(found["search"], bool):
        raise TypeError
    read_gates(found["gates"])
    read_plan(found["plan"])
    for facts in found["tools"].values():
        read_tool_facts(facts)
    found.get("done", {}).items()


def _read_recalled(found: dict[str, Any]) -> None:
    for decision, at in found.get("decisions", ()):
        Decision(**decision)
        datetime.fromisoformat(at)


def _read_answers(found: dict[str, Any]) -> None:
    if not all(isinstance(outcome, dict) and is_outcome(outcome) for outcome in found.values()):
        raise TypeError


_READERS: dict[str, Callable[[dict[str, Any]], None]] = {
    names.OPEN: _read_opened,
    names.OPEN_PIPELINE: _read_opened_pipeline,
    names.RECALL: _read_recalled,
    names.ANSWERED: _read_answers,
}


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_result(found: object) -> bool:
    """Whether it can be what an agent came to that another one has run."""
    if (
        not isinstance(found, dict)
        or json_problem(found, RESULT_VALUES) is not None
        or not isinstance(found.get("status"), str)
    ):
        return False
    text = {"complete": "response", "interrupted": "question"}.get(found["status"])
    return (
        (text is None or isinstance(found.get(text), str))
        and _is_number(found.get("iterations"))
        and all(isinstance(found.get(name, ""), str | None) for name in ("response", "error"))
        and (found.get("usage") is None or _is_usage(found["usage"]))
    )


def _is_usage(found: object) -> bool:
    """Whether it is a usage as results of runs have it."""
    try:
        Usage.model_validate(found)
    except ValueError:
        return False
    return True


def _is_verdict(found: dict[str, Any]) -> bool:
    if not _is_number(found.get("dispatch")) or found["dispatch"] < 1:
        return False
    if found.keys() == {"dispatch"}:
        return True
    return found["claimed"] is True and isinstance(found.get("reason", ""), str) if "claimed" in found else (
        is_outcome(found))  # fmt: skip


def _is_step(reference: Mapping[str, Any], found: dict[str, Any]) -> bool:
    """The path of what was kept is said again: else the run would go on with what is not in the store."""
    if "done" in reference and found.get("kept") != reference["done"]["path"]:
        return False
    if "failed" in found:
        return _is_failure(found["failed"])
    if "end" in reference and not isinstance(found.get("result"), dict):
        return False
    if "make" not in reference:
        return True
    made, what = found.get("made"), reference["make"]["what"]
    if isinstance(made, dict) and "failed" in made:
        return _is_failure(made["failed"])
    if what == "gate":
        return isinstance(made, dict) and ("decided" in made or _is_shown(made))
    return "made" in found and (what != "with" or made is None or isinstance(made, str) or _is_changed_call(made))


def _is_changed_call(made: object) -> bool:
    """Whether it is what a step's call needs whose tool a deploy has changed."""
    return isinstance(made, dict) and (
        isinstance(made.get("shown"), str) and isinstance(made.get("tool"), str) and is_tool_facts(made.get("facts"))
    )


def _is_shown(gate: dict[str, Any]) -> bool:
    later = gate.get("later", [])
    return all(isinstance(gate.get(name), str) for name in ("message", "digest")) and (
        isinstance(later, list) and all(isinstance(one, dict) and _is_shown(one) for one in later))  # fmt: skip


def _is_failure(found: object) -> bool:
    return isinstance(found, list) and len(found) == 2 and all(isinstance(item, str) for item in found)


_REPLY: dict[str, Any] = {
    "seq": _is_number,
    "view": _is_number,
    "untold": lambda value: isinstance(value, list) and all(map(_is_number, value)),
    "usage": is_usage,
    "stop_reason": lambda value: isinstance(value, str),
    "text": lambda value: isinstance(value, str),
    "size": _is_number,
    "error": lambda value: isinstance(value, str),
    "output": lambda value: True,
    "output_error": lambda value: isinstance(value, str),
    "calls": lambda value: isinstance(value, list) and all(map(_is_call, value)),
    "refused": lambda value: isinstance(value, dict) and all(isinstance(why, str) for why in value.values()),
    "gates": lambda value: isinstance(value, list) and all(map(_is_gate, value)),
    "arguments": lambda value: isinstance(value, dict),
    "sizes": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "declared": lambda value: isinstance(value, dict) and _is_declared(value),
}


def _is_declared(found: dict[str, Any]) -> bool:
    """Whether it says what the calls of a turn need; see `tools_of`."""
    tools, available = found.get("tools", {}), found.get("available", [])
    return (
        found.keys() <= {"tools", "available"}
        and isinstance(tools, dict) and all(map(is_tool_facts, tools.values()))
        and isinstance(available, list) and all(isinstance(name, str) for name in available)
    )  # fmt: skip


def _is_reply(found: dict[str, Any]) -> bool:
    if "seq" not in found or not all(name in _REPLY and _REPLY[name](value) for name, value in found.items()):
        return False
    ids = [call[0] for call in found.get("calls", ())]
    return all(gate["gate"]["name"] in ids for gate in found.get("gates", ()))


def _is_gate(found: object) -> bool:
    """Whether it can be asked of people; when it was opened the workflow says."""
    try:
        question = Question.model_validate(found, strict=True)
        Gate.read({**(question.gate or {}), "since": "2026-01-01T00:00:00+00:00"})
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return True


def _is_call(found: object) -> bool:
    return (
        isinstance(found, list)
        and len(found) == 4
        and _is_number(found[2])
        and all(isinstance(found[place], str) for place in (0, 1, 3))
    )


_MAY_FIND_NOTHING = (names.START, names.DECIDE, names.KEEP, names.ATTACH)
_OTHERS: dict[str, Callable[[object], bool]] = {
    names.START: lambda found: isinstance(found, str),
    names.DECIDE: lambda found: isinstance(found, str),
    names.COMMIT: _is_number,
    names.KEEP: lambda found: isinstance(found, list) and all(_can_be_read(user_message, said) for said in found),
    names.ATTACH: is_result,
}
