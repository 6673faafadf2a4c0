"""What the types promise to users; `mypy --strict` checks this file, nothing runs it."""

from typing import Any, assert_type

from pydantic import BaseModel

from standfast import (
    Agent,
    InterruptedResponse,
    Pipeline,
    RunResult,
    Step,
    StepContext,
    Tool,
    ToolContext,
    is_interrupted,
    pipeline,
    resume,
    run,
    tool,
)


@tool
async def greet(name: str, ctx: ToolContext, *, loud: bool = False) -> dict[str, str]:
    """Greet somebody."""
    return {"text": name}


@tool(safe_to_retry=True)
def count(items: list[str]) -> int:
    """Count items."""
    return len(items)


async def a_tool_keeps_the_signature_of_its_function() -> None:
    assert_type(await greet("Ada", ToolContext(), loud=True), dict[str, str])
    assert_type(count(["a"]), int)
    count("a", 1)  # type: ignore[call-arg, arg-type]


async def a_result_is_narrowed_both_ways() -> None:
    agent = Agent("greeter", tools=[greet, count])
    result = await run(agent, message="hi", session_id="s", max_stored_messages=10)
    assert_type(result, RunResult | InterruptedResponse)
    if is_interrupted(result):
        assert_type(result, InterruptedResponse)
        await resume(agent, result.checkpoint, "yes", user_id="ada")
    else:
        assert_type(result, RunResult)


async def an_unknown_option_is_an_error() -> None:
    await run(Agent("greeter"), message="hi", sesion_id="s")  # type: ignore[call-arg]


def a_tool_without_a_handler_is_a_declaration() -> None:
    declared: Tool[..., object] = Tool("look", description="Look.")
    assert_type(declared.safe_to_retry, bool)


class Findings(BaseModel):
    findings: list[str]


def a_step_gives_its_output_its_type() -> None:
    reviewer = Agent("reviewer")
    review = Step("review", agent=reviewer, output=Findings)
    assert_type(review, Step[Findings])
    plain = Step("plain", agent=reviewer)
    numbers = Step("numbers", agent=reviewer, output=list[int])

    def message(ctx: StepContext) -> str:
        assert_type(ctx[review], Findings)
        assert_type(ctx[numbers], list[int])
        assert_type(ctx[plain], dict[str, Any])
        return ctx[review].findings[0]

    made = pipeline("w").step(review).step(plain).step("publish", agent=reviewer, input=message).build()
    assert_type(made, Pipeline)
    pipeline("w").step(review, agent=reviewer)  # type: ignore[call-overload]
