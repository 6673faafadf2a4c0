"""Pipelines: the inputs and outputs of their steps, and their end. The same with both drivers."""

from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel
from support.pipeline_drivers import PipelineDriver

from standfast import Agent, InputError, Loop, Message, ModelError, Step, StepContext, pipeline, tool
from standfast.testing import ScriptedModel

writer, editor = Agent("writer"), Agent("editor")


class Draft(BaseModel):
    title: str
    words: int = 0


class Topic(BaseModel):
    topic: str
    tone: str = "plain"


def echo(messages: Sequence[Message], tools: Any) -> str:
    """Answer with the user's text."""
    return f"<{messages[-1].content}>"


def says(*texts: str) -> ScriptedModel:
    return ScriptedModel(list(texts))


# --- one after the other ---


async def test_a_step_without_an_input_function_is_told_to_execute(pipelines: PipelineDriver) -> None:
    went = await pipelines.run(pipeline("w").step("write", agent=writer).build(), ScriptedModel(echo))
    assert went.status == "complete"
    assert went.step_results == {"write": {"status": "complete", "response": '<Execute step "write">', "iterations": 1}}
    assert went.outputs == {"write": {"response": '<Execute step "write">'}}


async def test_steps_run_in_order_and_see_the_outputs_before_them(pipelines: PipelineDriver) -> None:
    flow = (
        pipeline("w", input=Topic)
        .step("write", agent=writer, input=lambda ctx: f"{ctx.input.topic}, {ctx.input.tone}")
        .step("edit", agent=editor, input=lambda ctx: {"message": f"edit {ctx.prev['write']['response']}"})
        .build()
    )
    went = await pipelines.run(flow, ScriptedModel(echo), {"topic": "generics", "more": 1})
    assert list(went.step_results) == ["write", "edit"]
    assert went.outputs["edit"] == {"response": "<edit <generics, plain>>"}


async def test_an_output_type_makes_the_answer_a_value_of_it(pipelines: PipelineDriver) -> None:
    seen: list[Any] = []
    draft = Step("write", agent=writer, output=Draft)

    def remember(ctx: StepContext) -> str:
        seen.append((ctx[draft], ctx.prev["write"]))
        return f"edit {ctx[draft].title}"

    flow = pipeline("w").step(draft).step("edit", agent=editor, input=remember).build()
    went = await pipelines.run(flow, says('{"title": "A", "more": 1}', "edited"))
    assert went.outputs == {"write": {"title": "A", "words": 0}, "edit": {"response": "edited"}}
    assert seen == [(Draft(title="A"), Draft(title="A"))]


async def test_a_function_that_changes_what_it_sees_changes_it_for_itself_alone(pipelines: PipelineDriver) -> None:
    def spoil(ctx: StepContext) -> str:
        ctx.prev["write"]["list"].append("spoiled")
        ctx.input["topic"].append("spoiled")
        return "x"

    flow = (
        pipeline("w")
        .step("write", agent=writer, output=dict[str, list[str]])
        .step("spoil", agent=editor, input=spoil)
        .step("edit", agent=editor, input=lambda ctx: f"{ctx.prev['write']} {ctx.input}")
        .build()
    )
    went = await pipelines.run(flow, ScriptedModel(_list_then_echo), {"topic": ["t"]})
    assert went.outputs["edit"] == {"response": "<{'list': ['a']} {'topic': ['t']}>"}


def _list_then_echo(messages: Sequence[Message], tools: Any) -> str:
    return '{"list": ["a"]}' if "Execute" in messages[-1].content else echo(messages, tools)


# --- how it fails ---


async def test_an_agent_that_fails_ends_the_pipeline_at_its_step(pipelines: PipelineDriver) -> None:
    flow = pipeline("w").step("a", agent=writer).step("b", agent=editor).step("c", agent=editor).build()
    went = await pipelines.run(flow, ScriptedModel(["fine", ModelError("bad key", transient=False)]))
    assert (went.status, went.failed_step, went.error_reason) == ("error", "b", "agent-failed")
    assert "bad key" in str(went.error)
    assert {path: result["status"] for path, result in went.step_results.items()} == {"a": "complete", "b": "error"}
    assert went.outputs == {"a": {"response": "fine"}}


async def test_an_agent_that_stops_at_its_limit_has_failed_its_step(pipelines: PipelineDriver) -> None:
    flow = pipeline("w").step("a", agent=_limited).step("b", agent=editor).build()
    went = await pipelines.run(flow, ScriptedModel(_always_calls))
    assert (went.status, went.failed_step, went.error_reason) == ("error", "a", "agent-failed")
    assert went.step_results["a"]["status"] == "max-iterations"
    assert list(went.step_results) == ["a"]


async def test_a_step_may_accept_what_an_agent_said_before_its_limit(pipelines: PipelineDriver) -> None:
    flow = pipeline("w").step("a", agent=_limited, accept_partial=True).build()
    went = await pipelines.run(flow, ScriptedModel(_always_calls))
    assert (went.status, went.outputs) == ("complete", {"a": {"response": "so far"}})


def _always_calls(messages: Sequence[Message], tools: Any) -> Any:
    return {"text": "so far", "tool_calls": [{"id": "c", "name": "look", "arguments": {}}]}


@tool(safe_to_retry=True)
def look() -> str:
    """Look."""
    return "seen"


_limited = Agent("limited", tools=[look], loop=Loop(max_iterations=2))


def _even(value: int) -> int:
    if value % 2:
        raise RuntimeError("odd")
    return value


@pytest.mark.parametrize(
    ("output", "answer", "reason"),
    [
        (Draft, "no JSON", "invalid-json"),
        (Draft, '{"title": NaN}', "invalid-json"),
        (Draft, '{"words": 1}', "schema-mismatch"),
        (Annotated[int, AfterValidator(_even)], "3", "schema-mismatch"),
    ],
    ids=["no JSON", "NaN", "another shape", "a schema that raises"],
)
async def test_an_answer_that_does_not_fit_ends_the_pipeline(
    pipelines: PipelineDriver, output: Any, answer: str, reason: str
) -> None:
    flow = pipeline("w").step("a", agent=writer, output=output).step("b", agent=editor).build()
    went = await pipelines.run(flow, says(answer))
    assert (went.status, went.failed_step, went.error_reason) == ("error", "a", reason)
    assert went.step_results == {"a": {"status": "complete", "response": answer, "iterations": 1}}
    assert went.outputs == {}


async def test_an_input_that_does_not_fit_is_refused_before_any_step(pipelines: PipelineDriver) -> None:
    model = says()
    with pytest.raises(InputError, match='Workflow "w" input validation failed: topic'):
        await pipelines.run(pipeline("w", input=Topic).step("a", agent=writer).build(), model, {"tone": "x"})
    assert model.calls == []


async def test_a_step_without_an_agent_is_refused_when_it_is_reached(pipelines: PipelineDriver) -> None:
    model = says("fine")
    with pytest.raises(InputError, match='Step "b" has no agent assigned'):
        await pipelines.run(pipeline("w").step("a", agent=writer).step("b").build(), model)
    assert len(model.calls) == 1


async def test_what_an_input_function_raises_ends_the_pipeline_with_it(pipelines: PipelineDriver) -> None:
    def broken(ctx: StepContext) -> str:
        raise ValueError("no such file")

    with pytest.raises(Exception, match="no such file"):
        await pipelines.run(pipeline("w").step("a", agent=writer, input=broken).build(), says())


@pytest.mark.parametrize("given", [5, {"text": "x"}, {"message": 5}, None], ids=str)
async def test_an_input_function_that_gives_no_text_is_refused(pipelines: PipelineDriver, given: Any) -> None:
    with pytest.raises(InputError, match="Step 'a': input must give a text"):
        await pipelines.run(pipeline("w").step("a", agent=writer, input=lambda ctx: given).build(), says())


# --- tools as steps ---


async def test_a_tool_is_a_step_without_a_model(pipelines: PipelineDriver) -> None:
    posted: list[str] = []

    @tool
    def post(text: str, loud: bool = False) -> dict[str, Any]:
        """Post it."""
        posted.append(text)
        return {"posted": text, "loud": loud}

    flow = (
        pipeline("w")
        .step("post", run=post, input=lambda ctx: {"text": ctx.input})
        .step("say", agent=writer, input=lambda ctx: str(ctx.prev["post"]))
        .build()
    )
    went = await pipelines.run(flow, ScriptedModel(echo), "hi")
    assert went.outputs == {
        "post": {"posted": "hi", "loud": False},
        "say": {"response": "<{'posted': 'hi', 'loud': False}>"},
    }
    assert posted == ["hi"]


async def test_a_text_that_looks_like_json_stays_a_text(pipelines: PipelineDriver) -> None:
    @tool
    def number() -> str | None:
        """Return a text."""
        return "12345"

    assert (await pipelines.run(pipeline("w").step("n", run=number).build(), says())).outputs == {"n": "12345"}


@pytest.mark.parametrize("given", [{"text": object()}, {"text": "\ud800"}], ids=["an object", "a lone surrogate"])
async def test_arguments_that_are_not_json_are_refused(pipelines: PipelineDriver, given: Any) -> None:
    @tool
    def post(text: str) -> str:
        """Post it."""
        return text

    with pytest.raises(InputError, match="input gives arguments that are not JSON"):
        await pipelines.run(pipeline("w").step("post", run=post, input=lambda ctx: given).build(), says())


async def test_a_tool_that_raises_ends_the_pipeline_with_what_it_says(pipelines: PipelineDriver) -> None:
    @tool
    def post() -> str:
        """Post it."""
        raise ValueError("the channel is gone")

    went = await pipelines.run(pipeline("w").step("post", run=post).step("b", agent=writer).build(), says())
    assert (went.status, went.failed_step, went.error_reason) == ("error", "post", "tool-failed")
    assert "the channel is gone" in str(went.error)


async def test_arguments_that_a_tool_does_not_take_end_the_pipeline(pipelines: PipelineDriver) -> None:
    @tool
    def post(text: str) -> str:
        """Post it."""
        return text

    flow = pipeline("w").step("post", run=post, input=lambda ctx: {"txt": "x"}).build()
    went = await pipelines.run(flow, says())
    assert (went.error_reason, "text" in str(went.error)) == ("tool-failed", True)


# --- stages ---


async def test_parallel_steps_all_run_and_stand_under_their_names(pipelines: PipelineDriver) -> None:
    flow = (
        pipeline("w")
        .parallel("gather", Step("web", agent=writer), Step("docs", agent=editor, output=dict[str, int]))
        .step("sum", agent=writer, input=lambda ctx: f"{ctx.prev['web']} {ctx.prev['docs']} {list(ctx.prev['gather'])}")
        .build()
    )
    went = await pipelines.run(flow, ScriptedModel(_number_for_docs))
    assert went.outputs["gather"] == {"web": {"response": '<Execute step "web">'}, "docs": {"n": 1}}
    assert went.outputs["sum"]["response"].endswith("{'n': 1} ['web', 'docs']>")
    assert set(went.step_results) == {"gather/web", "gather/docs", "sum"}


def _number_for_docs(messages: Sequence[Message], tools: Any) -> str:
    return '{"n": 1}' if messages[-1].content == 'Execute step "docs"' else echo(messages, tools)


async def test_a_parallel_step_that_fails_ends_the_pipeline_when_the_others_have_ended(
    pipelines: PipelineDriver,
) -> None:
    flow = (
        pipeline("w")
        .parallel("gather", Step("web", agent=writer), Step("docs", agent=editor, output=Draft))
        .step("sum", agent=writer)
        .build()
    )
    went = await pipelines.run(flow, ScriptedModel(_number_for_docs))
    assert (went.failed_step, went.error_reason) == ("gather/docs", "schema-mismatch")
    assert set(went.step_results) == {"gather/web", "gather/docs"}


@pytest.mark.parametrize(("key", "step"), [("hot", "call"), ("cold", "mail"), ("other", "log")])
async def test_a_branch_runs_the_step_of_its_key_or_its_default(pipelines: PipelineDriver, key: str, step: str) -> None:
    flow = (
        pipeline("w")
        .branch(
            "route",
            on=lambda ctx: ctx.input,
            cases={"hot": Step("call", agent=writer), "cold": Step("mail", agent=writer)},
            default=Step("log", agent=editor),
        )
        .step("after", agent=writer, input=lambda ctx: ctx.prev["route"]["response"] + ctx.prev[step]["response"])
        .build()
    )
    went = await pipelines.run(flow, ScriptedModel(echo), key)
    said = f'<Execute step "{step}">'
    assert went.outputs == {"route": {"response": said}, "after": {"response": f"<{said}{said}>"}}
    assert list(went.step_results) == [f"route/{step}", "after"]


async def test_a_branch_that_knows_neither_key_nor_default_ends_the_pipeline(pipelines: PipelineDriver) -> None:
    flow = pipeline("w").branch("route", on=lambda ctx: "cold", cases={"hot": Step("call", agent=writer)}).build()
    went = await pipelines.run(flow, says())
    assert (went.failed_step, went.error_reason) == ("route", "no-branch")
    assert went.error == "Step 'route' has no branch 'cold' and no default; it has 'hot'"


async def test_a_map_runs_a_step_for_each_item_and_keeps_their_order(pipelines: PipelineDriver) -> None:
    flow = (
        pipeline("w")
        .map("each", Step("one", agent=writer, input=lambda ctx: f"{ctx.index} {ctx.item['n']}"),
             over=lambda ctx: [{"n": n} for n in ctx.input], concurrency=2)
        .step("sum", agent=writer, input=lambda ctx: " ".join(one["response"] for one in ctx.prev["each"]))
        .build()
    )  # fmt: skip
    went = await pipelines.run(flow, ScriptedModel(echo), [5, 6, 7])
    assert went.outputs["sum"] == {"response": "<<0 5> <1 6> <2 7>>"}
    assert set(went.step_results) == {"each/0", "each/1", "each/2", "sum"}


async def test_a_map_over_nothing_is_an_empty_list(pipelines: PipelineDriver) -> None:
    flow = pipeline("w").map("each", Step("one", agent=writer), over=lambda ctx: []).build()
    assert (await pipelines.run(flow, says())).outputs == {"each": []}


@pytest.mark.parametrize(
    ("given", "problem"), [(5, "must give a list"), ([object], "no JSON"), ([0] * 1_001, "1,001 items")], ids=str
)
async def test_a_map_over_something_else_is_refused(pipelines: PipelineDriver, given: Any, problem: str) -> None:
    flow = pipeline("w").map("each", Step("one", agent=writer), over=lambda ctx: given).build()
    with pytest.raises(InputError, match=problem):
        await pipelines.run(flow, says())


async def test_a_loop_goes_round_until_it_is_enough(pipelines: PipelineDriver) -> None:
    draft = Step("draft", agent=writer, input=lambda ctx: f"{ctx.iteration} {ctx.prev.get('draft')}", output=Draft)
    flow = pipeline("w").loop("refine", draft, until=lambda ctx: ctx[draft].words >= 2).build()
    model = ScriptedModel(['{"title": "a"}', '{"title": "b", "words": 1}', '{"title": "c", "words": 2}'])
    went = await pipelines.run(flow, model)
    assert went.outputs == {"refine": {"title": "c", "words": 2}}
    assert [call.messages[-1].content for call in model.calls][:2] == ["0 None", "1 title='a' words=0"]


@pytest.mark.parametrize("on_limit", ["fail", "continue"])
async def test_a_loop_ends_at_its_limit(pipelines: PipelineDriver, on_limit: Any) -> None:
    flow = (
        pipeline("w")
        .loop("refine", Step("draft", agent=writer), until=lambda ctx: False, max=2, on_limit=on_limit)
        .step("after", agent=editor, input=lambda ctx: ctx.prev["refine"]["response"])
        .build()
    )
    went = await pipelines.run(flow, says("one", "two", "three"))
    if on_limit == "continue":
        assert went.outputs == {"refine": {"response": "two"}, "after": {"response": "three"}}
    else:
        assert (went.failed_step, went.error_reason) == ("refine", "loop-limit")


async def test_a_pipeline_is_a_step_of_another(pipelines: PipelineDriver) -> None:
    inner = (
        pipeline("inner", input=Topic)
        .step("a", agent=writer, input=lambda ctx: f"{ctx.input.topic} {dict(ctx.prev)}")
        .step("b", agent=editor, input=lambda ctx: ctx.prev["a"]["response"])
        .build()
    )
    flow = (
        pipeline("outer")
        .step("a", agent=writer)
        .step("deep", pipeline=inner, input=lambda ctx: {"topic": ctx.prev["a"]["response"]})
        .step("c", agent=writer, input=lambda ctx: ctx.prev["deep"]["response"])
        .build()
    )
    went = await pipelines.run(flow, ScriptedModel(echo))
    assert went.outputs["deep"] == {"response": '<<<Execute step "a"> {}>>'}
    assert went.outputs["c"] == {"response": '<<<<Execute step "a"> {}>>>'}
    assert list(went.step_results) == ["a", "deep/a", "deep/b", "c"]
