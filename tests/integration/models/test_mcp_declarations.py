"""Declarations of MCP tools: real shapes, every draft, and unusable tools."""

import asyncio
import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from support.drivers import Driver
from support.mcp_http import GatewayedServer
from support.transcripts import asks_for, call, error_of, tool_results

from standfast import Agent, DefinitionError, ToolContext, run
from standfast.cli.mcp import _tools
from standfast.llm import ToolDescription
from standfast.llm.anthropic_messages import request
from standfast.llm.json_tool_calls import reply_schema
from standfast.llm.strict_schemas import held_schema
from standfast.mcp import mcp_server, mcp_tools, schemas
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel
from standfast.web.page.forms import filled_form


def declared(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "description": "Do it.", "inputSchema": {"type": "object", **schema}}


# By its name: a tool as servers declare it, and arguments that its server takes.
REAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "true_and_false": ({"properties": {"any": True, "none": False}, "required": ["any"]}, {"any": [1]}),
    "graph_names": (
        {"properties": {"$filter": {"type": "string"}, "$top": {"type": "integer"}, "@odata.id": True, "_filter": {}},
         "required": ["$filter"]},
        {"$filter": "x eq 1", "$top": 5, "@odata.id": "me"},
    ),
    "long_name": ({"properties": {"n" * 300: {"type": "string"}, "n" * 299: {"type": "string"}}}, {"n" * 300: "x"}),
    "notion_blocks": (
        {"properties": {"blocks": {"type": "array", "items": {"$ref": "#/$defs/block"}}},
         "$defs": {"block": {"type": "object", "properties": {"text": {"type": "string"}, "children": {
             "type": "array", "items": {"$ref": "#/$defs/block"}}}, "required": ["text"]}}},
        {"blocks": [{"text": "a", "children": [{"text": "b"}]}]},
    ),
    "recursive_root": ({"properties": {"next": {"$ref": "#"}, "value": {"type": "integer"}}}, {"next": {"value": 1}}),
    "anchored": (
        {"properties": {"a": {"$ref": "#point"}}, "$defs": {"p": {"$anchor": "point", "type": "number"}}}, {"a": 1.5},
    ),
    "referred_root": (
        {"$ref": "#/definitions/Args",
         "definitions": {"Args": {"type": "object", "properties": {"a": {"title": "A"}}}}},
        {"a": 1},
    ),
    "either": (
        {"anyOf": [{"properties": {"id": {"type": "integer"}}, "required": ["id"]},
                   {"properties": {"name": {"type": "string"}}, "required": ["name"]}]},
        {"name": "x"},
    ),
    "slack_nullable": (
        {"properties": {"thread": {"type": "string", "nullable": True, "enum": ["a", "b"]}}}, {"thread": None},
    ),
    "draft_4": (
        {"$schema": "http://json-schema.org/draft-04/schema#",
         "properties": {"page": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}}},
        {"page": 1},
    ),
    "draft_4_unsaid": (
        {"properties": {"page": {"type": "integer", "maximum": 10, "exclusiveMaximum": True}}}, {"page": 9},
    ),
    "draft_7_tuple": ({"properties": {"at": {"type": "array", "items": [{"type": "number"}, {"type": "string"}]}}},
                      {"at": [1, "b"]}),
    "draft_7_siblings": (
        {"$schema": "http://json-schema.org/draft-07/schema#",
         "properties": {"a": {"$ref": "#/definitions/text", "maxLength": 1}},
         "definitions": {"text": {"type": "string"}}},
        {"a": "more than one"},
    ),
    "draft_3_required": ({"properties": {"a": {"type": "string", "required": True}}}, {"a": "x"}),
    "2020_prefix": ({"$schema": "https://json-schema.org/draft/2020-12/schema",
                     "properties": {"at": {"prefixItems": [{"type": "number"}], "items": {"type": "string"}}}},
                    {"at": [1, "b", "c"]}),
    "unknown_draft": (
        {"$schema": "https://example.com/my-schema", "properties": {"a": {"type": "string"}}}, {"a": "x"},
    ),
    "reference_as_data": ({"properties": {"a": {"default": {"$ref": "https://example.com"}}}}, {"a": 1}),
    "argument_called_ref": ({"properties": {"$ref": {"type": "string"}}}, {"$ref": "main"}),
}  # fmt: skip

BAD: dict[str, Any] = {
    "no_type": {"name": "no_type", "inputSchema": {"properties": {"a": {"type": "string"}}}},
    "only_any_of": {"name": "only_any_of", "inputSchema": {"anyOf": [{"type": "object"}]}},
    "a_list": {"name": "a_list", "inputSchema": {"type": "array"}},
    "true": {"name": "true", "inputSchema": True},
    "no_schema": {"name": "no_schema"},
    "result_list": {**declared("result_list"), "outputSchema": {"type": "array"}},
    "null_properties": declared("null_properties", properties=None),
    "listed_definitions": declared("listed_definitions", **{"$defs": []}),
    "itself": declared("itself", **{"$ref": "#"}),
    "refers_nowhere": declared("refers_nowhere", **{"$ref": "#/$defs/missing"}),
    "elsewhere": declared("elsewhere", properties={"a": {"$ref": "https://example.com/a.json"}}),
}
NAMES = re.compile(r"[a-zA-Z0-9_.-]{1,64}")  # of arguments, that every provider accepts


async def test_real_declarations_become_tools_and_a_call_that_the_server_takes_reaches_it() -> None:
    listed = [declared(name, **schema) for name, (schema, _) in REAL.items()]
    async with GatewayedServer(listed) as server, mcp_tools(server.url) as tools:
        offered = {tool.description: tool for tool in tools}
        assert len(tools) == len(REAL)
        assert len(offered) == 1
        for tool, (name, (_, arguments)) in zip(tools, REAL.items(), strict=True):
            shown = dict(zip(REAL[name][0].get("properties", {}), tool.input_schema["properties"], strict=False))
            assert all(map(NAMES.fullmatch, tool.input_schema["properties"]))
            assert not tool.input_schema.keys() & {"anyOf", "oneOf", "allOf", "$ref"}
            given = {shown.get(key, key): value for key, value in arguments.items()}
            model = ScriptedModel([asks_for(call(tool.name, "c1", **given)), "done"])
            ended = await run(Agent("a", tools=[tool]), message="go", llm=model)
            (result,) = tool_results(ended.messages)
            assert (result.status, result.content) == ("completed", f"{name} is done")
            assert server.given[-1]["arguments"] == arguments


async def test_arguments_that_do_not_fit_are_still_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_SECONDS", 10.0)  # on a busy machine, any check may be out of time
    wrong: dict[str, dict[str, Any]] = {
        "draft_4": {"page": 0},
        "draft_4_unsaid": {"page": 10},
        "draft_7_tuple": {"at": ["b"]},
        "either": {},
        "slack_nullable": {"thread": "c"},
        "true_and_false": {"any": 1, "none": 1},
        "graph_names": {"_filter_2": 1},
        "unknown_draft": {"a": 1},
    }
    async with GatewayedServer([declared(name, **REAL[name][0]) for name in wrong]) as server:
        async with mcp_tools(server.url) as tools:
            calls = asks_for(*(call(tool.name, tool.name, **wrong[tool.name]) for tool in tools))
            ended = await run(Agent("a", tools=tools), message="go", llm=ScriptedModel([calls, "done"]))
        assert [error_of(one).split(":")[0] for one in tool_results(ended.messages)] == [
            f'Invalid input for tool "{name}"' for name in wrong
        ]
        assert server.effects == []


@pytest.mark.parametrize("is_named", [False, True], ids=["all tools", "named tools"])
async def test_a_bad_tool_is_left_out_and_named_and_the_others_work(
    driver: Driver, store: SQLiteStore, caplog: pytest.LogCaptureFixture, is_named: bool
) -> None:
    listed = [*BAD.values(), declared("post"), {"inputSchema": {"type": "object"}}, "no tool"]
    only = ["post", "no_type", "null_properties"] if is_named else None
    names = {"no_type", "null_properties"} if is_named else {*BAD, "(without a name)"}
    async with GatewayedServer(listed) as server:
        model = ScriptedModel([asks_for(call("post", "c1", text="x")), "done"])
        agent = Agent("a", tools=[mcp_server(server.url, only=only, safe_to_retry={"no_type": True})])
        ended = await driver.run(agent, model)
        assert [one.content for one in tool_results(ended.messages)] == ["post is done"]
        assert set(re.findall(r"its tool '([^']+)' is left out: ", caplog.text)) == names
        rows = await _tools(str(driver.temporal.store.path), None)
    assert {row["tool"] for row in rows if row["left_out"]} == names
    assert {row["tool"] for row in rows if row["accepted"]} == {"post"}
    assert "properties" in next(row["left_out"] for row in rows if row["tool"] == "null_properties")


@pytest.mark.parametrize(
    "odd",
    [{"name": ""}, {"name": " "}, {"name": "a", "description": " "}, {"name": "a", "description": "\n", "title": ""}],
)
async def test_a_tool_without_a_word_about_it_leaves_the_others_readable(odd: dict[str, Any]) -> None:
    async with GatewayedServer([declared("post"), {**odd, "inputSchema": {"type": "object"}}]) as server:
        async with mcp_tools(server.url) as tools:
            assert [tool.name for tool in tools] == ["post", "a" if odd["name"] == "a" else "_"]
        assert all(tool.description.strip() for tool in tools)


async def test_a_tool_that_is_not_there_is_still_a_wrong_declaration() -> None:
    async with GatewayedServer([declared("post"), BAD["no_type"]]) as server:
        with pytest.raises(DefinitionError, match="has no tool 'pay'; it has post"):
            async with mcp_tools(server.url, only=["pay"]):
                pass


async def test_each_call_carries_the_idempotency_key(driver: Driver) -> None:
    keys = list[str]()

    async def note(arguments: Any, ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return "noted"

    async with GatewayedServer([declared("post")]) as server, mcp_tools(server.url) as (post,):
        agent = Agent("a", tools=[post])
        turns = [asks_for(call("post", "c1"), call("post", "c2")), "done"]
        await driver.run(agent, ScriptedModel(turns), session="one")
        await driver.run(Agent("a", tools=[post.with_handler(note)]), ScriptedModel(turns), session="two")
    sent = [one["_meta"]["standfast/idempotency-key"] for one in server.given]
    assert len(set(sent)) == 2
    assert [key.rpartition("/")[2] for key in sent] == [key.rpartition("/")[2] for key in keys]


# --- generated ---

Pair = tuple[Any, Any]  # a schema, and a value that fits it
_NAME = st.one_of(
    st.text(st.sampled_from("ab$@é. /~"), min_size=1, max_size=4),
    st.sampled_from(
        ["$ref", "$defs", "type", "properties", "required", "self", "ctx", "__class__", "n" * 65, "n" * 300]
    ),
)
# In which all keywords below are allowed; 2020-12 has no list of `items`, and draft 4 no `const`.
_DRAFTS = [
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "https://example.com/no-draft",
]
_LEAF: st.SearchStrategy[Pair] = st.sampled_from(
    [
        (True, [1, {"a": None}]),
        ({}, "x"),
        ({"type": "string", "maxLength": 5}, "é"),
        ({"type": ["integer", "null"]}, None),
        ({"type": "number", "minimum": 0}, 0.5),
        ({"type": "string", "nullable": True, "enum": ["a"]}, None),
        ({"enum": ["a", 1, None]}, 1),
        ({"const": {"$ref": "x"}}, {"$ref": "x"}),
        ({"type": "boolean", "title": "B", "default": False}, True),
        ({"type": "string", "pattern": "^[a-z]*$"}, "abc"),
        ({"$ref": "#/$defs/node"}, {"next": {"next": {}}}),
    ]
)


def _objects(parts: dict[str, Pair]) -> Pair:
    properties = {name: schema for name, (schema, _) in parts.items()}
    return {"type": "object", "properties": properties}, {name: value for name, (_, value) in parts.items()}


def _containers(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    return st.one_of(
        st.builds(_objects, st.dictionaries(_NAME, inner, max_size=3)),
        inner.map(lambda one: ({"type": "array", "items": one[0]}, [one[1], one[1]])),
        inner.map(lambda one: ({"type": "array", "items": [one[0]]}, [one[1]])),
        inner.map(lambda one: ({"type": "object", "additionalProperties": one[0]}, {"a": one[1]})),
        inner.map(lambda one: ({"anyOf": [False, one[0]]}, one[1])),
        inner.map(lambda one: ({"allOf": [one[0]], "description": "All."}, one[1])),
    )


@st.composite
def declarations(draw: st.DrawFn) -> Pair:
    """A schema of arguments as servers may declare it, whatever its draft, and arguments that the server takes."""
    schema, arguments = _objects(
        draw(st.dictionaries(_NAME, st.recursive(_LEAF, _containers, max_leaves=5), max_size=4))
    )
    needed = draw(st.lists(st.sampled_from(sorted(arguments)), unique=True)) if arguments else []
    definitions = {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}
    whole = {**schema, "required": needed, "$defs": definitions}
    if (draft := draw(st.sampled_from([None, *_DRAFTS]))) is not None:
        whole["$schema"] = draft
    choice = draw(st.sampled_from([None, "anyOf", "allOf"]))
    return whole if choice is None else {**whole, choice: [{"required": needed}]}, arguments


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(declarations(), min_size=10, max_size=20))
def test_no_declaration_crashes_and_arguments_that_the_server_takes_are_taken(declared: list[Pair]) -> None:
    async def offered() -> Any:
        listed = [{"name": f"t{n}", "inputSchema": schema} for n, (schema, _) in enumerate(declared)]
        async with GatewayedServer(listed) as server, mcp_tools(server.url) as tools:
            return tools

    tools = asyncio.run(offered())
    assert [tool.name for tool in tools] == [f"t{n}" for n in range(len(declared))]
    said = [ToolDescription(name=one.name, description=one.description, input_schema=one.input_schema) for one in tools]
    reply_schema(said)
    request("m", [], said, {}, output=None, max_tokens=5, cache=False)
    for tool, (schema, arguments) in zip(tools, declared, strict=True):
        held_schema(tool.input_schema, recursive=True)
        filled_form(tool.input_schema, arguments)
        ours = dict(zip(schema["properties"], tool.input_schema["properties"], strict=True))
        given = {ours[name]: value for name, value in arguments.items()}
        assert tool.read_arguments(given) == given
        tool.normal_arguments(given)
