"""Handlers given to a run: the tools that they serve, and their arguments."""

from support.doubles import ask
from support.transcripts import call, contents, error

from standfast import Agent, Tool, ToolContext, tool


async def test_a_tool_without_any_handler_is_answered_with_what_to_do() -> None:
    result = await ask(Agent("a", tools=[Tool("post", description="Post.")]), call("post", "c1"))
    assert error(result).startswith('Tool "post" has no handler.')
    assert result.status == "complete"


async def test_an_injected_handler_serves_a_declared_tool() -> None:
    result = await ask(
        Agent("a", tools=[Tool("post", description="Post.")]), call("post", "c1"), tools={"post": lambda: "injected"}
    )
    assert contents(result) == ["injected"]


async def test_an_injected_handler_wins_and_leaves_the_definition_alone() -> None:
    @tool
    async def greet(name: str) -> str:
        return f"declared {name}"

    async def other(name: str) -> str:
        return f"injected {name}"

    agent = Agent("a", tools=[greet])
    result = await ask(agent, call("greet", "c1", name="Ada"), tools={"greet": other})
    assert contents(result) == ["injected Ada"]
    assert contents(await ask(agent, call("greet", "c1", name="Ada"))) == ["declared Ada"]
    assert agent.tools == (greet,)


async def test_an_injected_handler_may_take_the_context() -> None:
    @tool
    async def greet(name: str) -> str:
        return name

    async def other(name: str, ctx: ToolContext) -> str:
        return f"{name} {ctx.tool_call_id}"

    assert contents(await ask(Agent("a", tools=[greet]), call("greet", "c1", name="A"), tools={"greet": other})) == [
        "A c1"
    ]


async def test_injected_handlers_of_tools_that_the_agent_lacks_are_ignored() -> None:
    result = await ask(Agent("a"), call("post", "c1"), tools={"post": lambda: "never"})
    assert error(result) == 'Tool "post" not found. Available tools: none'


async def test_an_injected_handler_gets_validated_arguments_too() -> None:
    @tool
    async def double(number: int) -> int:
        return number

    result = await ask(Agent("a", tools=[double]), call("double", "c1", number="x"), tools={"double": lambda number: 1})
    assert error(result).startswith('Invalid input for tool "double"')


async def test_an_injected_handler_of_the_wrong_shape_is_an_error_of_the_call() -> None:
    @tool
    async def double(number: int) -> int:
        return number

    result = await ask(Agent("a", tools=[double]), call("double", "c1", number=1), tools={"double": lambda: 1})
    assert "number" in error(result)
