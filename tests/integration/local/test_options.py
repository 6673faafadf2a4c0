"""Invalid options of `run` are refused, with the valid alternative."""

from typing import Any

import pytest

from standfast import Agent, InputError, StandfastError, run
from standfast.testing import ScriptedModel


async def test_an_agent_without_a_model_says_what_to_pass() -> None:
    with pytest.raises(StandfastError, match="pass llm="):
        await run(Agent("a"), message="go")


@pytest.mark.parametrize(("given", "meant"), [("sesion_id", "session_id"), ("mesage", "message")])
async def test_a_misspelt_option_is_refused_with_the_right_one(given: str, meant: str) -> None:
    options: dict[str, Any] = {given: "s", "llm": ScriptedModel([])}
    with pytest.raises(TypeError, match=rf"run\(\) has no option '{given}'. Did you mean '{meant}'\?"):
        await run(Agent("a"), **options)


async def test_a_value_that_is_not_a_store_is_refused_with_what_to_pass() -> None:
    with pytest.raises(InputError, match="store must be a store"):
        await run(Agent("a"), message="go", llm=ScriptedModel([]), store="standfast.db")  # type: ignore[arg-type]
