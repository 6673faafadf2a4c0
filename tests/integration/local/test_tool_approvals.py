"""Tools that need approval: the view and edits of people, the executed call, the model's view. With both drivers."""

import json
from typing import Any

import pytest
from support.drivers import Driver
from support.transcripts import asks_for, call, error_of, shape, tool_results

from standfast import (
    Agent,
    Approval,
    InterruptedResponse,
    InterruptError,
    Loop,
    Tool,
    ToolContext,
    is_interrupted,
    run,
    tool,
)
from standfast.testing import ScriptedModel

Approvable = Any


def world(approval: Approvable, **options: Any) -> tuple[list[str], Tool[..., Any]]:
    """Return what was posted, and a tool that posts once people let it."""
    posted: list[str] = []

    @tool(approval=approval, **options)
    async def post(text: str, times: int = 1) -> dict[str, int]:
        """Post a text."""
        posted.append(text * times)
        return {"posted": len(posted)}

    return posted, post


def approve(gate: str = "c1", **more: Any) -> dict[str, Any]:
    return {"gate": gate, "decision": "approve", **more}


def reject(gate: str = "c1", **more: Any) -> dict[str, Any]:
    return {"gate": gate, "decision": "reject", **more}


def posts(*texts: str) -> ScriptedModel:
    """Return a model that asks for these posts at once, and then is done."""
    return ScriptedModel([asks_for(*(call("post", f"c{n}", text=text) for n, text in enumerate(texts, 1))), "done"])


class Died(BaseException):
    """The process is gone."""


async def waits(agent: Agent, model: Any, **options: Any) -> InterruptedResponse:
    """Run an agent in process to its gates."""
    result = await run(agent, message="go", llm=model, **options)
    assert is_interrupted(result)
    return result


# --- what waits ---


async def test_a_call_waits_until_somebody_approves_it(driver: Driver) -> None:
    posted, post = world(Approval(message=lambda call: f"Post {call.arguments['text']!r}?", approvers=["ada"]))
    model, agent = posts("hi"), Agent("a", tools=[post])
    nobody = await driver.run(agent, model, decisions=[reject("nope")], session="waits")
    assert (nobody.status, posted, len(model.calls)) == ("waiting", [], 1)
    seen = {"tool": "post", "arguments": {"text": "hi", "times": 1}, "message": "Post 'hi'?", "approvers": ["ada"]}
    assert nobody.waits == {"c1": seen}
    assert "no" in nobody.refused[0]
    assert "c1" in nobody.refused[0]
    ended = await driver.run(agent, posts("hi"), decisions=[approve(by="ada")])
    assert (ended.status, posted) == ("complete", ["hi"])
    assert [json.loads(item.content) for item in tool_results(ended.messages)] == [{"posted": 1}]


async def test_without_a_message_people_are_asked_whether_the_tool_may_run(driver: Driver) -> None:
    _, post = world(Approval())
    waits = (await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=[reject("nope")])).waits
    assert waits["c1"]["message"] == 'May the tool "post" run?'


async def test_each_of_many_gates_and_questions_of_a_turn_is_asked_once(driver: Driver) -> None:
    """Beside each other and in a row: approved, rejected, edited. The model gives calls that look alike one id."""
    posted, post = world(Approval())

    @tool
    async def ask() -> str:
        """Ask somebody."""
        raise InterruptError("Which one?")

    one, two, asked = call("post", "c1", text="x"), call("post", "c2", text="x"), call("ask", "c1")
    steps = [(one, two), (one,), (asked,), (one, call("ask", "c2")), (one,)]
    model = ScriptedModel([*(asks_for(*calls) for calls in steps), "done"])
    yes, no = {"decision": "approve", "by": "ada"}, {"decision": "reject", "by": "ada"}
    decisions = [yes, no, no, "blue", {**yes, "edit": {"text": "y"}}, "red", yes]
    ended = await driver.run(Agent("a", tools=[post, ask]), model, decisions=decisions)
    assert (ended.status, ended.refused, posted, len(model.calls)) == ("complete", (), ["x", "y", "x"], 6)
    told = [item.content for item in tool_results(ended.messages)]
    assert [told[3], told[5]] == ["blue", "red"]
    of_posts = [json.loads(told[place]) for place in (0, 1, 2, 4, 6)]
    rejected = {"error": "Not run: it was rejected by ada"}
    assert [of_posts[0], of_posts[3]["result"], of_posts[4]] == [{"posted": 1}, {"posted": 2}, {"posted": 3}]
    assert of_posts[1:3] == [rejected, rejected]


async def test_a_person_who_decides_on_a_call_that_has_run_already_is_told_so(driver: Driver) -> None:
    posted, post = world(Approval())
    script = [asks_for(call("post", "c1", text="one")), asks_for(call("post", "c2", text="two")), "done"]
    late = [
        reject(by="ada", digest="x"),
        approve(by="bob", digest="x"),
        approve(by="ada", edit={"text": "1"}, digest="x"),
    ]
    decisions = [approve(by="ada"), *late, approve("c2", by="ada")]
    ended = await driver.run(Agent("a", tools=[post]), ScriptedModel(script), decisions=decisions)
    assert (ended.status, posted) == ("complete", ["one", "two"])
    why = [refused.removeprefix("reject: ").removeprefix("approve: ") for refused in ended.refused]
    assert why == ["gate c1: the call has already run"] * 3


async def test_nothing_of_the_turn_runs_before_all_its_gates_are_decided(driver: Driver) -> None:
    posted, post = world(Approval())

    @tool(safe_to_retry=True, parallel=True)
    async def note(text: str) -> str:
        """Note a text."""
        posted.append(text)
        return "noted"

    agent = Agent("a", tools=[post, note])
    calls = (call("note", "n1", text="before"), call("post", "c1", text="one"), call("note", "n2", text="after"))
    model = ScriptedModel([asks_for(*calls, call("post", "c2", text="two")), "done"])
    waits = await driver.run(agent, model, decisions=[approve("c2")], session="waits")
    assert (list(waits.waits), posted) == (["c1"], [])
    assert shape(waits.messages) == ["user go", "calls n1 c1 n2 c2"]
    again = ScriptedModel([asks_for(*calls, call("post", "c2", text="two")), "done"])
    ended = await driver.run(agent, again, decisions=[approve("c2"), approve("c1")])
    assert posted == ["before", "one", "after", "two"]
    assert shape(ended.messages)[2:] == ["result n1", "result c1", "result n2", "result c2", "assistant done"]


async def test_a_function_says_which_calls_need_approval(driver: Driver) -> None:
    posted, post = world(lambda call: Approval(approvers=["ada"]) if len(call.arguments["text"]) > 3 else None)
    model = posts("hi", "a long text")
    ended = await driver.run(Agent("a", tools=[post]), model, decisions=[reject("c1"), approve("c2", by="ada")])
    assert posted == ["hi", "a long text"]
    assert "c1" in ended.refused[0]


async def test_calls_that_need_nobody_run_at_once(driver: Driver) -> None:
    posted, post = world(lambda call: None)
    ended = await driver.run(Agent("a", tools=[post]), posts("hi", "there"))
    assert (ended.status, posted) == ("complete", ["hi", "there"])


# --- what is decided ---


async def test_a_rejection_is_a_result_that_the_model_reads(driver: Driver) -> None:
    posted, post = world(Approval())
    model = posts("hi")
    ended = await driver.run(Agent("a", tools=[post]), model, decisions=[reject(by="ada", comment="not today")])
    assert (ended.status, ended.response, posted) == ("complete", "done", [])
    (result,) = tool_results(ended.messages)
    assert (error_of(result), result.status) == ("Not run: it was rejected by ada: not today", "failed")
    assert model.calls[1].messages[-1].content == result.content


async def test_time_that_runs_out_is_a_result_that_the_model_reads(driver: Driver) -> None:
    posted, post = world(Approval(timeout=0.05))
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=[None])
    assert (ended.status, posted) == ("complete", [])
    assert error_of(tool_results(ended.messages)[0]).startswith("Approval timed out: it was not decided by ")


@pytest.mark.parametrize(
    ("on_timeout", "runs"), [("approve", ["hi"]), ("reject", []), ("fail", [])], ids=["approve", "reject", "fail"]
)
async def test_what_time_that_runs_out_means_is_declared(driver: Driver, on_timeout: Any, runs: list[str]) -> None:
    posted, post = world(Approval(timeout=0.05, on_timeout=on_timeout))
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=[None])
    assert (ended.status, posted) == ("complete", runs)


async def test_others_are_asked_when_nobody_decides(driver: Driver) -> None:
    leads = Approval(message="please!", approvers=["eve"])
    posted, post = world(
        Approval(message="ok?", approvers=["ada"], timeout=0.05, on_timeout="escalate", escalate_to=leads)
    )
    agent, late = Agent("a", tools=[post]), [None, approve(by="ada")]
    waits = await driver.run(agent, posts("hi"), decisions=late, session="waits")
    assert waits.refused == ("gate c1: ada may not decide it; eve may",)
    assert (waits.waits["c1"]["message"], waits.waits["c1"]["approvers"]) == ("please!", ["eve"])
    await driver.run(agent, posts("hi"), decisions=[*late, approve(by="eve")])
    assert posted == ["hi"]


async def test_a_quorum_needs_several_people(driver: Driver) -> None:
    posted, post = world(Approval(approvers=["ada", "bob", "eve"], quorum=2))
    agent = Agent("a", tools=[post])
    decisions = [approve(by="ada"), approve(by="ada"), approve(by="bob")]
    ended = await driver.run(agent, posts("hi"), decisions=decisions)
    assert (ended.refused, posted) == (("gate c1: ada has approved it already",), ["hi"])
    assert (await driver.run(agent, posts("hi"), decisions=decisions[:1], session="half")).status == "waiting"


async def test_a_person_who_asked_for_it_cannot_approve_it(driver: Driver) -> None:
    posted, post = world(Approval(exclude_requester=True))
    decisions = [approve(by="ada"), approve(by="bob")]
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=decisions, user_id="ada")
    assert ended.refused == ("gate c1: ada has asked for it, and cannot approve it",)
    assert posted == ["hi"]


async def test_a_decision_on_something_else_than_is_shown_does_not_count(driver: Driver) -> None:
    posted, post = world(Approval())
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=[approve(digest="0" * 32), approve()])
    assert "gate c1 has changed" in ended.refused[0]
    assert posted == ["hi"]


async def test_a_rejection_is_something_to_continue_with(driver: Driver) -> None:
    """Else an agent whose proposals are rejected three times would count as stuck."""
    _, post = world(Approval())
    model = ScriptedModel([*(asks_for(call("post", f"c{n}", text="hi")) for n in range(4)), "done"])
    agent = Agent("a", tools=[post], loop=Loop(stuck_threshold=2))
    ended = await driver.run(agent, model, decisions=[reject(f"c{n}") for n in range(4)])
    assert ended.status == "complete"


# --- edits ---


async def test_edited_arguments_are_what_runs_and_the_model_is_told(driver: Driver) -> None:
    posted, post = world(Approval())
    edit = {"text": "ho", "times": 2}
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=[approve(by="ada", edit=edit)])
    assert posted == ["hoho"]
    assert json.loads(tool_results(ended.messages)[0].content) == {
        "note": "ada changed the arguments before it ran", "arguments": edit, "result": {"posted": 1}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ({"text": 1}, 'Invalid input for tool "post": text: Input should be a valid string'),
        ({}, 'Invalid input for tool "post": text: Field required'),
        ("text", "edit must be an object, all arguments of tool post"),
    ],
    ids=["wrong type", "missing", "no object"],
)
async def test_edited_arguments_are_validated_again(driver: Driver, edit: Any, why: str) -> None:
    posted, post = world(Approval())
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=[approve(edit=edit), approve()])
    assert why in ended.refused[0]
    assert posted == ["hi"]


async def test_an_edit_goes_around_nobody(driver: Driver) -> None:
    """Who may approve little cannot make much of it."""
    little, much = Approval(approvers=["ada"]), Approval(approvers=["board"])
    posted, post = world(lambda call: much if len(call.arguments["text"]) > 5 else little)
    decisions = [approve(by="ada", edit={"text": "very much"}), approve(by="ada", edit={"text": "less"})]
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=decisions)
    assert ended.refused == ("gate c1: edit: these arguments need a different approval; reject it, and explain why",)
    assert posted == ["less"]


async def test_an_error_of_edited_arguments_says_whose_they_are(driver: Driver) -> None:
    @tool(approval=Approval())
    async def post(text: str) -> str:
        """Post."""
        raise ValueError(f"no such channel: {text}")

    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=[approve(by="ada", edit={"text": "#x"})])
    error = error_of(tool_results(ended.messages)[0])
    assert error == 'no such channel: #x (ada changed the arguments before it ran: {"text":"#x"})'


async def test_all_of_a_quorum_approve_the_edit_that_they_see(driver: Driver) -> None:
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    decisions = [approve(by="ada", edit={"text": "ho"}), approve(by="bob")]
    waits = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=decisions[:1], session="half")
    assert waits.waits["c1"]["arguments"] == {"text": "ho"}
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=decisions)
    assert (ended.refused, posted) == ((), ["ho"])
    assert "ada changed" in tool_results(ended.messages)[0].content


async def test_a_person_who_approves_what_was_edited_in_the_meantime_is_told_the_edit(driver: Driver) -> None:
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    decisions = [approve(by="ada", edit={"text": "ho"}), approve(by="bob", digest="0" * 32), approve(by="bob")]
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=decisions)
    assert 'gate c1 has changed, since ada has edited it to {"text": "ho"}' in ended.refused[0]
    assert posted == ["ho"]


async def test_a_further_edit_is_a_new_proposal(driver: Driver) -> None:
    posted, post = world(Approval(approvers=["ada", "bob", "eve"], quorum=2))
    decisions = [approve(by="ada"), approve(by="bob", edit={"text": "ho"}), approve(by="ada", edit={"text": "hum"})]
    agent = Agent("a", tools=[post])
    waits = await driver.run(agent, posts("hi"), decisions=decisions, session="more")
    assert (waits.status, waits.refused, waits.waits["c1"]["arguments"]) == ("waiting", (), {"text": "hum"})
    ended = await driver.run(agent, posts("hi"), decisions=[*decisions, approve(by="bob")])
    assert (ended.status, posted) == ("complete", ["hum"])


async def test_an_edit_that_can_never_reach_its_quorum_is_refused_when_it_is_made(driver: Driver) -> None:
    """Else all would approve it, and the gate would stay shut."""
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2, exclude_requester=True))
    decisions = [approve(by="ada", edit={"text": "ho"}), approve(by="ada"), approve(by="bob")]
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=decisions)
    assert ended.refused == (
        (
            "gate c1: edit: 2 other people must approve an edit by ada, and only bob may: reject it, and "
            "explain what to change"
        ),
    )
    assert posted == ["hi"]


# --- calls that need no approval ---


async def test_nobody_is_asked_about_a_call_that_cannot_run(driver: Driver) -> None:
    posted, post = world(Approval())
    model = ScriptedModel([asks_for(call("post", "c1", txt="hi")), "done"])
    ended = await driver.run(Agent("a", tools=[post]), model)
    assert error_of(tool_results(ended.messages)[0]) == 'Invalid input for tool "post": text: Field required'
    assert (ended.status, posted) == ("complete", [])


@pytest.mark.parametrize(
    ("approval", "why"),
    [
        (lambda call: 1 / 0, 'Tool "post": its approval raised ZeroDivisionError: division by zero'),
        (lambda call: True, 'Tool "post": its approval must give an Approval or None, got True'),
        (Approval(message=lambda call: call.nope), 'Tool "post": its approval raised AttributeError: '),
        (Approval(message=lambda call: 3), "approval.message must give a text, got 3"),  # type: ignore[arg-type,return-value]
    ],
    ids=["raises", "no approval", "message raises", "no text"],
)
async def test_an_approval_that_cannot_be_made_is_an_error_of_its_call(driver: Driver, approval: Any, why: str) -> None:
    posted, post = world(approval)
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"))
    assert error_of(tool_results(ended.messages)[0]).startswith(why)
    assert (ended.status, posted) == ("complete", [])


async def test_calls_beyond_a_limit_are_not_asked_about(driver: Driver) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post], loop=Loop(max_tool_calls=1))
    ended = await driver.run(agent, posts("hi", "there"), decisions=[approve("c2"), approve("c1")])
    assert posted == ["hi"]
    assert "at most 1 tool calls per turn" in error_of(tool_results(ended.messages)[1])


async def test_a_run_whose_budget_is_spent_asks_nobody(driver: Driver) -> None:
    posted, post = world(Approval())
    model = ScriptedModel([asks_for(call("post", "c1", text="hi"), tokens=100), "done"])
    ended = await driver.run(Agent("a", tools=[post], loop=Loop(token_budget=100)), model)
    assert (ended.status, posted) == ("token-budget-exhausted", [])
    assert tool_results(ended.messages)[0].status == "cancelled"


async def test_an_agent_that_a_tool_runs_cannot_wait_and_is_told(driver: Driver) -> None:
    posted, post = world(Approval())
    inner = Agent("inner", tools=[post])

    @tool
    async def delegate(ctx: ToolContext) -> str:
        """Ask another agent."""
        return (await ctx.agents.invoke(inner, message="post"))["response"]

    def model(messages: Any, tools: Any) -> Any:
        if messages[-1].role == "tool":
            return messages[-1].content
        name = tools[0]["name"] if isinstance(tools[0], dict) else tools[0].name
        return asks_for(call(name, "c1", **({"text": "hi"} if name == "post" else {})))

    ended = await driver.run(Agent("outer", tools=[delegate]), ScriptedModel(model), also=(inner,))
    assert (ended.status, posted) == ("complete", [])
    assert "for which an agent that a tool runs cannot wait" in ended.response


async def test_a_safe_tool_waits_like_any_other(driver: Driver) -> None:
    posted, post = world(Approval(), safe_to_retry=True)
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=[reject("nope"), approve()])
    assert (ended.status, posted) == ("complete", ["hi"])
