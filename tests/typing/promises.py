"""What the types promise to users; `mypy --strict` checks this file, nothing runs it."""

from typing import assert_type

from holdfast import Agent, InterruptedResponse, RunResult, Tool, ToolContext, is_interrupted, resume, run, tool


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
