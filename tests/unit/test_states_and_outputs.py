"""An agent's state and output: initial values, reading, and refusals."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from support.tools import Counter, Opaque

from standfast import Agent, DefinitionError


class Required(BaseModel):
    count: int


# --- state ---


def test_state_starts_empty() -> None:
    assert Agent("greeter").new_state() == {}


def test_every_run_starts_from_the_initial_state() -> None:
    agent = Agent("greeter", initial_state={"seen": []})
    agent.new_state()["seen"].append("a")

    assert agent.new_state() == {"seen": []}


def test_the_initial_state_does_not_change_with_what_was_given() -> None:
    given: dict[str, Any] = {"seen": []}
    agent = Agent("greeter", initial_state=given)
    given["seen"].append("a")

    assert (agent.initial_state, agent.new_state()) == ({"seen": []}, {"seen": []})


@pytest.mark.parametrize("initial", [None, {}, {"count": "0"}, Counter()], ids=repr)
def test_a_state_has_its_type(initial: Any) -> None:
    assert Agent("greeter", state=Counter, initial_state=initial).new_state() == Counter()


def test_a_typed_state_is_a_copy_too() -> None:
    initial = Counter()
    agent = Agent("greeter", state=Counter, initial_state=initial)
    agent.new_state().seen.append("a")

    assert (initial, agent.new_state()) == (Counter(), Counter())


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"initial_state": 5}, "initial_state does not fit its type: value: Input should be a valid dictionary"),
        (
            {"state": Counter, "initial_state": {"count": "x"}},
            "initial_state does not fit its type: count: Input should",
        ),
        ({"state": Required}, "initial_state does not fit its type: count: Field required"),
        ({"state": Opaque}, f"state {Opaque} cannot become a schema"),
        ({"initial_state": {"lock": threading.Lock()}}, "initial_state"),
        ({"initial_state": {"thing": object()}}, "its state is not JSON"),
        ({"output": Opaque}, f"output {Opaque} cannot become a schema"),
        ({"output": 5}, "output 5 cannot become a schema"),
        ({"output": "DeclaredNowhere"}, "output"),
        ({"output": Callable[[], int]}, "output"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_state_or_output_that_cannot_work_is_refused_at_once(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        Agent("greeter", **options)
    assert str(caught.value).startswith(f"Agent 'greeter': {rule}")


@pytest.mark.parametrize(
    ("state", "value"), [(None, {}), (None, {"a": [1, None]}), (Counter, Counter(count=3, seen=["é"]))], ids=repr
)
def test_a_state_that_is_written_can_be_read(state: Any, value: Any) -> None:
    agent = Agent("greeter", state=state)

    assert agent.read_state(agent.write_state(value)) == value


@pytest.mark.parametrize("stored", ["", "no JSON", "[]", "5", '{"count": "x"}', '{"seen": null}', "[" * 100_000])
def test_a_stored_state_that_does_not_fit_any_more_gives_the_initial_one(stored: str) -> None:
    agent = Agent("greeter", state=Counter, initial_state={"count": 7})

    assert agent.read_state(stored) == Counter(count=7)


def cyclic() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["self"] = state
    return state


@pytest.mark.parametrize("state", [{"a": object()}, {"a": "\ud800"}, cyclic()], ids=["object", "surrogate", "cycle"])
def test_a_state_that_is_not_json_is_refused_when_it_is_written(state: Any) -> None:
    with pytest.raises(DefinitionError, match="Agent 'greeter': its state is not JSON"):
        Agent("greeter").write_state(state)


# --- output ---


@pytest.mark.parametrize(
    ("output", "response", "value"),
    [
        (None, "anything", None),
        (Required, '{"count": "1", "extra": 2}', Required(count=1)),
        (list[Required], '[{"count": 1}]', [Required(count=1)]),
        (int, " 5 ", 5),
        (dict[str, Any], '{"a": null}', {"a": None}),
    ],
)
def test_a_response_is_read_by_the_output_type(output: Any, response: str, value: Any) -> None:
    assert Agent("greeter", output=output).read_output(response) == value


@pytest.mark.parametrize(
    ("output", "response", "fault"),
    [
        (Required, "", "Invalid JSON"),
        (Required, "Here you are: {}", "Invalid JSON"),
        (Required, "{}", "count: Field required"),
        (Required, '{"count": "x"}', "count: Input should be a valid integer"),
        (Required, "\ud800", "value"),
        (Required, "[" * 100_000, "Invalid JSON"),
        (int, "1.5", "value: Input should be a valid integer"),
    ],
    ids=ascii,
)
def test_a_response_that_does_not_match_says_why(output: Any, response: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Agent("greeter", output=output).read_output(response)


@pytest.mark.parametrize("response", ['{"a": NaN}', '{"a": [Infinity]}', '{"a": -Infinity}', '{"a": 1e999}'])
def test_a_response_is_strict_json(response: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Agent("greeter", output=dict[str, Any]).read_output(response)


def test_an_output_type_has_a_schema() -> None:
    schema = Agent("greeter", output=Required).output_schema

    assert schema is not None
    assert (schema["type"], schema["required"]) == ("object", ["count"])


def test_an_agent_without_an_output_type_has_no_schema() -> None:
    assert Agent("greeter").output_schema is None
