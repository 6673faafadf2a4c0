"""No rule of the loop is in a driver: what they may make and compare is listed, and they share no text."""

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import standfast

LIBRARY = Path(standfast.__file__).parent
# The client looks on: it carries out nothing.
DRIVERS = {
    str(path.relative_to(LIBRARY)): path.read_text()
    for part in ("local", "temporal/wire", "temporal/workflows", "temporal/activities")
    for path in sorted((LIBRARY / part).rglob("*.py"))
}

STATES = {"LoopState", "Gate", "GateRule", "Finish"}
OUTCOMES = {"Returned", "Failed", "Asked", "Terminated", "Unknown", "Cancelled"}
STATUSES = {
    "complete", "max-iterations", "stuck", "error", "interrupted", "cancelled", "token-budget-exhausted",
    "approved", "rejected", "timed-out", "open", "approve", "reject", "completed", "failed",
}  # fmt: skip

# Where a driver makes a state or a gate itself, or changes one, instead of asking the loop for the next.
MAY_MAKE_STATES = {
    "local/runs.py:go",  # a request, with the tools of its agent's toolsets
    "temporal/wire/run_state.py:",  # an empty one, to leave out what is as in a new one
    "temporal/wire/run_state.py:read_state",  # what `write_state` wrote
    "temporal/activities/sessions/session_activities.py:_found",  # the same with references in place of arguments
    "temporal/activities/gates/open_gates.py:with_references",  # the same
    "temporal/activities/gates/gate_activities.py:_denied",  # the rule of a gate that an older record has not
    "temporal/activities/models/model_activities.py:_gates",  # only to ask it which calls need approval
    "temporal/workflows/run/agent_workflows.py:_begin",  # with the tools that the answer was made with
    "temporal/wire/run_state.py:answered",  # the same
    "temporal/workflows/run/pipeline_workflows.py:_call_tool",  # of a step's one call
    "temporal/workflows/gates/approvals.py:ask",  # the gate of a workflow of the user's, which no loop knows
    "temporal/workflows/gates/gate_keeper.py:_recall",  # whose call has run, and so was let through
}
# Where a driver says itself what a call came to: only it sees workers, children and people.
MAY_MAKE_OUTCOMES = {
    "local/pipeline_steps.py:_of_tool",  # by the result of the run of a step's one call
    "temporal/activities/tools/tool_activities.py:_handle",  # its worker ends
    "temporal/activities/tools/tool_activities.py:_verify_now",  # the same
    "temporal/activities/sessions/transcripts.py:_elsewhere",  # a child's session lacks the answer
    "temporal/activities/sessions/stored_outcomes.py:recorded",  # the ledger lacks the result
    "temporal/workflows/calls/tool_calls.py:_dispatch",  # no worker starts it
    "temporal/workflows/calls/tool_calls.py:_lost",  # its worker was lost
    "temporal/workflows/calls/child_agents.py:run_agent",  # it was lost with an earlier run, or is too deep
    "temporal/workflows/calls/child_agents.py:_failure",  # the child's workflow has failed
    "temporal/workflows/inbox/messages.py:recall_answer",  # a person has answered
    "temporal/workflows/inbox/messages.py:ask",  # the same, or none
    "temporal/workflows/inbox/messages.py:_resolve",  # a person says what it came to
}
# Where a driver looks at a status: to show it, to wait, or to choose how to end.
MAY_COMPARE = {
    "local/pipeline_steps.py:_of_agent",
    "local/pipelines.py:_run_step",
    "local/pipelines.py:_at_gate",
    "local/gates.py:decide",
    "local/runs.py:run_result",
    "temporal/activities/gates/gate_activities.py:_too_late",
    "temporal/activities/gates/open_gates.py:let_through",
    "temporal/activities/runs/run_activities.py:_finish",
    "temporal/activities/sessions/session_activities.py:_answered",
    "temporal/workflows/gates/gate_keeper.py:_take_passed",
    "temporal/workflows/gates/gate_keeper.py:progressed",
    "temporal/workflows/gates/effects.py:_let_through",
    "temporal/workflows/run/agent_workflows.py:close",
    "temporal/workflows/run/agent_workflows.py:_finish",
    "temporal/workflows/gates/gate_keeper.py:_asked",
    "temporal/workflows/gates/gate_keeper.py:_read",
    "temporal/workflows/gates/gate_keeper.py:_recall",
    "temporal/workflows/gates/gate_keeper.py:_wait_at",
    "temporal/workflows/run/pipeline_workflows.py:_decide",
    "temporal/workflows/run/pipeline_workflows.py:_run_agent",
}
WORDS = 6  # in a row, too many for chance
# Texts that begin alike and end otherwise, since what to do then is another thing in process than on Temporal.
BEGIN_ALIKE = (
    "Session {} has a run in flight",
    "{}{} waits to be approved, not for an",
    "store must be a store, such as",
)


def nodes(tree: ast.AST, function: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yield what a module consists of, and in which function it stands."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield node, inner
        yield from nodes(node, inner)


def name_of(node: ast.AST) -> str:
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def fields_of_states() -> set[str]:
    from standfast.agent_loop import Gate, LoopState

    return {*LoopState.__dataclass_fields__, *Gate.__dataclass_fields__} - {"name", "usage"}


def makes_state(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    changes = name_of(node.func) in ("replace", "_with") and {one.arg for one in node.keywords} & fields_of_states()
    return name_of(node.func) in STATES or bool(changes)


def makes_outcome(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and name_of(node.func) in OUTCOMES


def compares_status(node: ast.AST) -> bool:
    """Whether a status is compared: by an operator with an attribute or a key of that name, or as a class's pattern."""
    if isinstance(node, ast.MatchClass):
        return bool(texts_in(node) & STATUSES)
    return isinstance(node, ast.Compare) and not isinstance(node.left, ast.Constant) and bool(texts_in(node) & STATUSES)


def texts_in(node: ast.AST) -> set[str]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def where(finds: Callable[[ast.AST], bool], modules: Mapping[str, str]) -> set[str]:
    """Return the functions of modules in which something is found."""
    return {f"{module}:{function}" for module, text in modules.items() for function in functions_with(finds, text)}


@functools.cache
def functions_with(finds: Callable[[ast.AST], bool], module: str) -> set[str]:
    return {function for node, function in nodes(ast.parse(module)) if finds(node)}


def _texts(module: str) -> Iterator[str]:
    """Yield the texts of a module, without docstrings; what is put into one is a pair of braces."""
    tree, parts = ast.parse(module), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            parts |= {id(node.value)}
        if isinstance(node, ast.JoinedStr):
            parts |= {id(one) for one in ast.walk(node) if one is not node}
    for node in ast.walk(tree):
        if id(node) in parts:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@functools.cache
def texts(module: str) -> list[str]:
    return list(_texts(module))


def said(modules: Mapping[str, str], part: str) -> set[str]:
    """Return what the modules of a part say: texts of three words or more, and as many words in a row as matter."""
    found = set()
    for text in [text for module, code in modules.items() if module.startswith(part) for text in texts(code)]:
        words = re.findall(r"\S+", text)
        if len(words) >= 3:
            found.add(" ".join(words))
        found |= {" ".join(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1)}
    return found


def said_by_both(modules: Mapping[str, str]) -> set[str]:
    both = said(modules, "local/") & said(modules, "temporal/")
    return {text for text in both if not any(text in begin for begin in BEGIN_ALIKE)}


def test_the_loop_decides_what_is_next_and_a_driver_makes_no_state() -> None:
    assert where(makes_state, DRIVERS) == MAY_MAKE_STATES


def test_what_a_call_came_to_is_said_by_the_loop_unless_only_a_driver_can_see_it() -> None:
    assert where(makes_outcome, DRIVERS) == MAY_MAKE_OUTCOMES


def test_what_a_status_means_is_decided_where_it_is_listed() -> None:
    assert where(compares_status, DRIVERS) == MAY_COMPARE


def test_no_text_stands_in_both_drivers() -> None:
    assert said_by_both(DRIVERS) == set()


# Rules that stood twice once, and what a hurried hand may write: each is found.
COPIES = [
    'if result.status != "complete":\n    raise ValueError(f"Agent {name} ended")',
    'outcome = Failed("The tool was cancelled from within")',
    "state = LoopState(loop=agent.loop, tools={}).fold(messages)",
    "state = replace(state, iterations=0)",
    'gate = replace(gate, status="approved")',
    "finish = Finish('error', 'it is over')",
    'match finish:\n    case Finish("stuck"):\n        pass',
    'if gate.status in ("rejected", "timed-out"):\n    pass',
    "state = state._with(finished=True)",
]
FINDS = [(makes_state, MAY_MAKE_STATES), (makes_outcome, MAY_MAKE_OUTCOMES), (compares_status, MAY_COMPARE)]


@pytest.mark.parametrize("driver", ["local/runs.py", "temporal/workflows/run/agent_workflows.py"])
@pytest.mark.parametrize("copy", COPIES)
def test_a_rule_in_a_driver_is_found(driver: str, copy: str) -> None:
    body = copy.replace("\n", "\n    ")
    mutant = {**DRIVERS, driver: f"{DRIVERS[driver]}\n\ndef decide(name, agent, messages, state, gate):\n    {body}\n"}
    assert [where(finds, mutant) - may for finds, may in FINDS].count({f"{driver}:decide"}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "'Not run: its session was closed before the call could begin'",
        'f"call {call.id} of tool {call.name} failed for good"',
        "f'Step \"{step.name}\" has no agent assigned.'",
        "f\"Agent '{name}' ended with {status}: {said}\"",
        'f"Session {one} is not there."',
        '"it says: the very same thing to the same people, and more"',
    ],
)
def test_a_text_in_both_drivers_is_found(text: str) -> None:
    inside, other = "local/runs.py", "temporal/workflows/calls/tool_calls.py"
    mutant = {**DRIVERS, inside: f"{DRIVERS[inside]}\nX = {text}\n", other: f"{DRIVERS[other]}\nY = {text}\n"}
    assert said_by_both(mutant)
    assert not said_by_both({**DRIVERS, inside: mutant[inside]})
