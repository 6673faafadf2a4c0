"""Pipelines: declarations that are refused, and that they cannot be changed."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from standfast import Agent, Approval, DefinitionError, InputError, Step, StepContext, pipeline, tool

agent = Agent("a")
step = Step("one", agent=agent)


@tool
def post(text: str) -> str:
    """Post it."""
    return text


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a name": (lambda: pipeline("My Pipeline"), "Pipeline name must match"),
    "no step": (lambda: pipeline("w").build(), "at least one step is required"),
    "a step's name": (lambda: pipeline("w").step("One", agent=agent), "Step name must match"),
    "a newline": (lambda: Step("one\n", agent=agent), "Step name must match"),
    "a second visit": (lambda: Step("one_2", agent=agent), "visit of a stage, got 'one_2'; name it one-2"),
    "a second visit of a stage": (lambda: pipeline("w").parallel("one_10", step), "must not end in _10"),
    "two of one name": (lambda: pipeline("w").step(step).step(step).build(), "two steps are named 'one'"),
    "one of a stage's": (lambda: pipeline("w").step(step).parallel("p", step).build(), "two steps are named 'one'"),
    "two kinds": (lambda: Step("one", agent=agent, run=post), "of one kind, not agent and tool"),
    "no agent": (lambda: Step("one", agent="a"), "agent must be an Agent"),  # type: ignore[arg-type]
    "no tool": (lambda: Step("one", run=lambda: ""), "run must be a Tool"),  # type: ignore[arg-type]
    "no function": (lambda: Step("one", agent=agent, input="x"), "input must be a function"),  # type: ignore[arg-type]
    "no type": (lambda: Step("one", agent=agent, output="x y"), "output"),  # type: ignore[arg-type]
    "a step with options": (lambda: pipeline("w").step(step, agent=agent), "are declared with it"),  # type: ignore[call-overload]
    "no steps": (lambda: pipeline("w").parallel("p"), "at least one step is required"),
    "an agent for a step": (lambda: pipeline("w").parallel("p", agent), "wrap it in Step"),  # type: ignore[arg-type]
    "no cases": (lambda: pipeline("w").branch("b", on=lambda ctx: "", cases={}), "at least one step"),
    "cases": (lambda: pipeline("w").branch("b", on=lambda ctx: "", cases=[step]), "cases must map"),  # type: ignore[arg-type]
    "on": (lambda: pipeline("w").branch("b", on="x", cases={"x": step}), "on must be a function"),  # type: ignore[arg-type]
    "over": (lambda: pipeline("w").map("m", step, over=[1]), "over must be a function"),  # type: ignore[arg-type]
    "concurrency": (
        lambda: pipeline("w").map("m", step, over=lambda ctx: [], concurrency=0),
        "concurrency must be >= 1",
    ),
    "until": (lambda: pipeline("w").loop("l", step, until=True), "until must be a function"),  # type: ignore[arg-type]
    "max": (lambda: pipeline("w").loop("l", step, until=lambda ctx: True, max=0), "max must be >= 1"),
    "access": (lambda: pipeline("w", access={"stop": len}).step(step).build(), "access maps 'start' and 'approve'"),
    "an access rule": (lambda: pipeline("w", access={"start": True}).step(step).build(), "must be a function"),
    "an async function": (lambda: Step("one", agent=agent, input=_awaited), "must be a plain function"),
    "an async rule": (lambda: pipeline("w", access={"start": _awaited}).step(step).build(), "must be a plain function"),
    "a message of two": (lambda: Approval(message=lambda who, much: ""), "a function of one argument, StepContext or"),
    "an async message": (lambda: Approval(message=_awaited), "must be a plain function"),  # type: ignore[arg-type]
    "too many": (lambda: _long(1_001), "1,001 steps, more than 1,000"),
}


async def _awaited(_: Any) -> bool:
    return False


def _long(count: int) -> Any:
    builder = pipeline("w")
    for number in range(count):
        builder = builder.step(f"s{number}", agent=agent)
    return builder.build()


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_declaration_is_refused_by_name(what: str) -> None:
    declare, problem = WRONG[what]
    with pytest.raises(DefinitionError, match=problem):
        declare()


def test_a_builder_is_never_changed() -> None:
    empty = pipeline("w")
    first = empty.step("a", agent=agent)
    assert [stage.name for stage in first.step("b", agent=agent).build().stages] == ["a", "b"]
    assert [stage.name for stage in first.step("c", agent=agent).build().stages] == ["a", "c"]
    assert empty.stages == ()


def test_what_was_declared_cannot_be_changed() -> None:
    made = pipeline("w", access={"start": lambda user: True}).step(step).build()
    with pytest.raises(FrozenInstanceError):
        made.name = "x"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        step.name = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        made.access["approve"] = len  # type: ignore[index]


def test_a_context_names_what_it_has() -> None:
    with pytest.raises(InputError, match="Step 'one' has no output yet; there are none"):
        StepContext(input=None)[step]


WRONG_APPROVALS: dict[str, tuple[dict[str, Any], str]] = {
    **{f"timeout {value!r}": ({"timeout": value}, "approval.timeout must be like")
       for value in ("", "7", "7days?", "-1d", "d", -1, 0, True, "1.5h", "7d ")},
    "remind_every": ({"remind_every": "often"}, "approval.remind_every must be like"),
    "message": ({"message": 5}, "must be a function of StepContext"),
    "on_timeout": ({"on_timeout": "explode"}, "on_timeout must be one of"),
    "quorum": ({"quorum": 0}, "quorum must be >= 1"),
    "a quorum of too few": ({"quorum": 2, "approvers": ["ada"]}, "quorum is 2, of 1 people"),
    "approvers": ({"approvers": "ada"}, "approvers must be a list of names"),
    "an approver": ({"approvers": [""]}, "approvers must be a list of names"),
    "groups": ({"groups": ["ops"]}, "groups must map names to users"),
    "an empty group": ({"groups": {"ops": []}}, "'ops' has no members"),
    "a group of empty groups": ({"groups": {"ops": ["leads"], "leads": []}}, "'leads' has no members"),
    "a circle": ({"groups": {"ops": ["leads"], "leads": ["ops"]}}, "ops > leads > ops is a cycle"),
    "a group in itself": ({"groups": {"ops": ["ops"]}}, "ops > ops is a cycle"),
    "nobody to escalate to": ({"on_timeout": "escalate", "timeout": "1d"}, "goes with escalate_to"),
    "escalate_to alone": ({"escalate_to": Approval(), "timeout": "1d"}, "goes with escalate_to"),
    "escalation without end": ({"on_timeout": "escalate", "escalate_to": Approval()}, "needs a timeout"),
    "exclude_requester": ({"exclude_requester": "yes"}, "exclude_requester must be True or False"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_APPROVALS)
def test_a_wrong_approval_is_refused_by_name(what: str) -> None:
    options, problem = WRONG_APPROVALS[what]
    with pytest.raises(DefinitionError, match=problem):
        Approval(**options)


@pytest.mark.parametrize(("value", "seconds"), [("30s", 30), ("15m", 900), ("2h", 7_200), ("7d", 604_800), (90, 90)])
def test_a_timeout_is_seconds(value: Any, seconds: float) -> None:
    assert Approval(timeout=value).timeout == seconds


def test_groups_are_expanded_and_those_asked_are_known() -> None:
    approval = Approval(approvers=["ops", "zoe"], groups={"ops": ["ada", "leads"], "leads": ["eve", "ada"], "x": ["y"]})
    assert approval.users == ("ada", "eve", "zoe")
    assert approval.asked_groups == ("ops",)


def test_an_escalation_has_the_message_and_groups_of_what_it_escalates() -> None:
    leads = Approval(approvers=["leads"])
    groups = {"leads": ["eve"]}
    first = Approval(message="ok?", timeout="1d", on_timeout="escalate", escalate_to=leads, groups=groups)
    assert first.escalate_to is not None
    assert (first.escalate_to.message, first.escalate_to.users) == ("ok?", ("eve",))
