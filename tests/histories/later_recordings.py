"""Runs that `record.py` records: recalled behind a reset, late, skipped, or ended by an agent's words."""

import asyncio
import contextlib
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import recordings
from pydantic import BaseModel
from recordings import (
    Refusing,
    Saved,
    World,
    asks,
    ended,
    inner,
    inquire,
    pay,
    payer,
    present,
    put,
    putter,
    reset,
    stumble,
)
from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from standfast import (
    Agent,
    AgentContext,
    Approval,
    Guardrail,
    InputError,
    Loop,
    Message,
    ModelError,
    TerminalError,
    ToolCall,
    Usage,
    pipeline,
    sqlite_store,
    tool,
)
from standfast.stores import Session
from standfast.temporal import approval, start_agent, start_pipeline
from standfast.temporal.activities.gates import gate_activities
from standfast.temporal.activities.runs import stretches
from standfast.temporal.wire import names
from standfast.temporal.workflows.calls import model_calls
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel

expectant = Agent("expectant", tools=[inquire], loop=Loop(answer_timeout=1))


async def late(world: World) -> Saved:
    """An answer that is sent after its deadline, without a worker."""
    model = ScriptedModel([asks("inquire", what="which"), "done"])
    async with world.worker(expectant, model=model):
        run = await world.start(expectant)
        await world.waits_for(run, "question")
        (item,) = await world.people.pending(run.id)
    while datetime.now(UTC) < datetime.fromisoformat(item["deadline"]) + timedelta(milliseconds=200):
        await asyncio.sleep(0.05)
    await run.signal("answer", {"text": "red", "tool_call_id": item["name"], "id": "late"})
    async with world.worker(expectant, model=model):
        return await ended(run)


cashier = Agent("cashier", tools=[pay, inquire])


async def recalled(world: World) -> Saved:
    """A call that was approved and a question that was answered, in a run that is reset to before both."""
    both = {"tool_calls": [*asks("pay", amount=5)["tool_calls"], *asks("inquire", what="which")["tool_calls"]]}
    async with world.worker(cashier, model=ScriptedModel([both, "done"])):
        run = await world.start(cashier)
        await world.waits_for(run, "approval")
        gate = (await world.people.pending(run.id))[0]
        await world.people.decide(run.id, gate["name"], "approve", by="ada", digest=gate["digest"])
        await world.waits_for(run, "question")
        await world.people.answer(run.id, "red", by="ada")
        await run.result()
        again = await reset(world, run)
        await again.result()
        return [(run.id, again.run_id)]


def shopper(*tools: Any) -> Agent:
    return Agent("shopper", tools=tools)


async def skipped(world: World) -> Saved:
    """An approved call that no worker has any more, and that a person skips."""
    model = ScriptedModel([asks("pay", amount=5), "done"])
    async with world.worker(shopper(pay), model=model):
        run = await world.start(shopper(pay))
        await world.waits_for(run, "approval")
        gate = (await world.people.pending(run.id))[0]
    async with world.worker(shopper(put), model=model):
        await world.people.decide(run.id, gate["name"], "approve", by="ada", digest=gate["digest"])
        await world.waits_for(run, "worker")
        await world.people.resume(run.id, "skip", by="ada", reason="the shop has closed")
        return await ended(run)


doubtful = Agent("doubtful", tools=[inner], loop=Loop(on_unknown="ask"))


async def settled(world: World) -> Saved:
    """An agent that a process may have run, and of which a person says that it was not."""
    left = Session(id=world.name, agent_name="doubtful", created_at=datetime.now(UTC))
    call = ToolCall(id="w1", name="inner", arguments={"message": "Look!"})
    said = [Message(role="user", content="Go"), Message(role="assistant", tool_calls=(call,))]
    async with sqlite_store(world.folder / f"{world.name}.db") as store:
        await store.append_messages_atomic(left.id, said, left)
    async with world.worker(doubtful, inner, model=ScriptedModel(["seen", "done"])):
        run = await start_agent(world.client, doubtful, session_id=world.name, task_queue=world.name)
        await world.waits_for(run, "unknown")
        await world.people.resolve(run.id, "w1", "not-happened", by="ada", reason="looked")
        return await ended(run)


chief = Agent("chief", tools=[payer])


async def junk(world: World) -> Saved:
    """A run that is reset while its agent waits, and the look for that agent completed by hand with nothing."""
    call = {"id": "p1", **asks("payer", message="Pay!")["tool_calls"][0]}
    async with world.worker(
        chief, payer, model=ScriptedModel([{"tool_calls": [call]}, asks("pay", amount=5), "done", "done"])
    ):
        first = await world.start(chief)
        child = world.client.get_workflow_handle(f"{first.id}/p1")
        while not await gates_of(child):
            await asyncio.sleep(0.05)
        run = await reset(world, first)
        look = await activity(run, names.ATTACH)
        by_hand = {"workflow_id": run.id, "run_id": run.run_id, "activity_id": look.activity_id}
        await world.client.get_async_activity_handle(**by_hand).complete(None)
        await world.waits_for(run, "pause")
        await world.people.resume(run.id, by="ada")
        (gate,) = await gates_of(child)
        await world.people.decide(child.id, gate["name"], "approve", by="ada", digest=gate["digest"])
        await run.result()
        return [(run.id, run.run_id)]


async def looked_up(world: World) -> Saved:
    """A run that is reset to behind the start of its agent, whose end another run of it was told meanwhile."""
    call = {"id": "p1", **asks("payer", message="Pay!")["tool_calls"][0]}
    model = ScriptedModel([{"tool_calls": [call]}, asks("pay", amount=5), "done", "done"])
    async with world.worker(chief, payer, model=model):
        started = await world.start(chief)
        first: Any = world.client.get_workflow_handle(started.id, run_id=started.result_run_id)
        child = world.client.get_workflow_handle(f"{first.id}/p1")
        while not await gates_of(child):
            await asyncio.sleep(0.05)
        again = await reset(world, first, -1)
        (gate,) = await gates_of(child)
        await world.people.decide(child.id, gate["name"], "approve", by="ada", digest=gate["digest"])
        await again.result()
        run = await reset(world, first, -1)
        await run.result()
        return [(run.id, run.run_id)]


async def gates_of(run: Any) -> Any:
    """Return what a run asks, nothing if it has not begun."""
    with contextlib.suppress(RPCError):
        return await run.query("pending")
    return []


@tool
async def give_up(what: str) -> str:
    """Fail for good."""
    raise TerminalError("the account is closed", 410, {"account": 7})


failing = Agent("failing", tools=[give_up], on_terminal_tool_error="fail")
boss = Agent("boss", tools=[failing], on_terminal_tool_error="stop")


async def failed(world: World) -> Saved:
    """A terminal error that fails an agent, and so ends its caller."""
    model = ScriptedModel([asks("failing", message="Go!"), asks("give_up", what="x")])
    async with world.worker(failing, boss, model=model):
        return await ended(await world.start(boss))


@workflow.defn(name="Rounds", sandboxed=False)
class Rounds:
    """A workflow of a user's that asks at gates of one name."""

    @workflow.run
    async def run(self) -> list[dict[str, Any]]:
        return [await approval("review", approvers=["ada", "bob"]) for _ in range(3)]


async def decided(world: World, run: Any) -> None:
    """Decide whatever a workflow asks until it ends, by another person each time."""
    people, ended = itertools.cycle(["ada", "bob"]), asyncio.ensure_future(run.result())
    while not ended.done():
        for gate in await gates_of(run):
            with contextlib.suppress(InputError):  # it was decided before
                await world.people.decide(run.id, gate["name"], "approve", by=next(people), digest=gate["digest"])
        await asyncio.sleep(0.05)


async def reset_rounds(world: World, task: int) -> Saved:
    async with world.worker(present, model=ScriptedModel([]), workflows=[Rounds]):
        run = await world.client.start_workflow("Rounds", id=world.name, task_queue=world.name)
        await decided(world, run)
        again = await reset(world, run, task)
        await decided(world, again)
        return [(run.id, again.run_id)]


async def asked_anew(world: World) -> Saved:
    """Gates of one name in a workflow of the user's that is reset to before the first; all were asked again then."""
    return await reset_rounds(world, 0)


async def recalled_anew(world: World) -> Saved:
    """The same, reset to behind the first gate; all of them looked alike then, so the first verdict was that of all."""
    return await reset_rounds(world, -4)  # when the second is decided


async def rounds(world: World) -> Saved:
    """The same, reset to before the first gate; each finds its own verdict."""
    return await reset_rounds(world, 0)


@tool(approval=Approval(approvers=["ada", "bob"], quorum=2))
async def buy(amount: int) -> str:
    """Buy."""
    return "bought"


buyer = Agent("buyer", tools=[buy])


async def woken(world: World) -> Saved:
    """A run that is reset to the task of an update: it slept then until the next thing came."""
    async with world.worker(buyer, model=ScriptedModel([asks("buy", amount=5), "done"])):
        run = await world.start(buyer)
        await world.waits_for(run, "approval")
        (gate,) = await gates_of(run)
        given = {"gate": gate["name"], "decision": "approve", "digest": gate["digest"]}
        await run.execute_update("decide", {**given, "by": "ada"})
        tasks = [
            index
            for index, (event, behind) in enumerate(
                (event, behind)
                for event, behind in itertools.pairwise((await run.fetch_history()).events)
                if event.HasField("workflow_task_completed_event_attributes")
            )
            if behind.HasField("workflow_execution_update_accepted_event_attributes")
        ]
        again = await reset(world, run, tasks[0])
        await world.waits_for(again, "approval")
        await again.execute_update("decide", {**given, "by": "bob"})
        await again.result()
        return [(run.id, again.run_id)]


async def wakes(world: World) -> Saved:
    """The same, of a run that looks at once."""
    return await woken(world)


async def reported(world: World) -> Saved:
    """A model's answer that the store does not take for a while, as the activity that has it reports."""
    made: list[Refusing] = []

    def around(store: Any) -> Refusing:
        made.append(Refusing(store))
        return made[0]

    model = ScriptedModel([asks("put", what="x"), "done"])
    async with world.worker(putter, model=model, around=around, store_patience=0.2):
        made[0].refuses = {"append_reply"}
        run = await world.start(putter)
        await world.waits_for(run, "store")
        made[0].refuses = set()
        return await ended(run)


async def shown(world: World) -> Saved:
    """A call that people approve and a question that they answer, both on the board, and again after a reset."""
    return await recalled(world)


async def shown_late(world: World) -> Saved:
    """A call that waits for approval while the store does not show it: another activity writes the board later."""
    made: list[Refusing] = []

    def around(store: Any) -> Refusing:
        made.append(Refusing(store))
        return made[0]

    async with world.worker(cashier, model=ScriptedModel([asks("pay", amount=5), "done"]), around=around):
        made[0].refuses = {"show_waits"}
        run = await world.start(cashier)
        await world.waits_for(run, "approval")
        await activity(run, names.SHOW)
        made[0].refuses = set()
        gate = (await world.people.pending(run.id))[0]
        await world.people.decide(run.id, gate["name"], "approve", by="ada", digest=gate["digest"])
        return await ended(run)


async def sent_back(world: World) -> Saved:
    """A gate that shows much and little, and is rejected twice: it goes back to a step, and asks again."""
    author = Agent("author")
    asked = (
        pipeline("sent-back")
        .step("write", agent=author)
        .step("ok", approval=Approval(on_reject="write"))
        .step("last", approval=Approval(show={"note": "short"}, on_reject="continue"))
        .build()
    )
    async with world.worker(author, model=ScriptedModel(["x" * 20_000, "two", "three"]), pipelines=[asked]):
        run = await start_pipeline(world.client, asked, run_key=world.name, task_queue=world.name)
        for gate, decision in (("ok", "reject"), ("ok_2", "reject"), ("ok_3", "approve"), ("last", "reject")):
            await world.waits_for(run, "approval", gate)
            (item,) = await world.people.pending(run.id)
            await world.people.decide(run.id, gate, decision, by="ada", comment="more", digest=item["digest"])
        return await ended(run)


class _Draft(BaseModel):
    title: str


async def edited(world: World) -> Saved:
    """A gate at which two people approve a value as the first of them has changed it, and then one as it was shown."""
    gate = Approval(edit=_Draft, show=lambda ctx: _Draft(title="Draft"), approvers=["ada", "bob"], quorum=2)
    asked = (
        pipeline("edited")
        .step("ok", approval=gate)
        .step("last", approval=Approval(edit=_Draft))
        .step("publish", agent=(author := Agent("author")), input=lambda ctx: ctx.prev["last"].title)
        .build()
    )
    async with world.worker(author, model=ScriptedModel(["out"]), pipelines=[asked]):
        run = await start_pipeline(world.client, asked, run_key=world.name, task_queue=world.name)
        for gate_name, by, edit in (("ok", "ada", {"title": "Better"}), ("ok", "bob", None), ("last", "ada", None)):
            await world.waits_for(run, "approval", gate_name)
            (item,) = await world.people.pending(run.id)
            await world.people.decide(run.id, gate_name, "approve", by=by, digest=item["digest"], edit=edit)
        return await ended(run)


async def outlasted(world: World) -> Saved:
    """A provider that is down: the run pauses, calls it again by itself until it is up, and then again."""
    usual, model_calls.OUTAGE_WAITS = model_calls.OUTAGE_WAITS, (timedelta(seconds=0.2), timedelta(seconds=0.2))
    down = [ModelError("overloaded", transient=True, retry_after=0.05) for _ in range(10)]
    helper = Agent("helper")
    try:
        async with world.worker(helper, model=ScriptedModel([*down, "up"])):
            return await ended(await world.start(helper))
    finally:
        model_calls.OUTAGE_WAITS = usual


async def redeployed(world: World) -> Saved:
    """A provider that is down: a deploy names another model, which is down, too, so the run pauses again."""
    usual, model_calls.OUTAGE_WAITS = model_calls.OUTAGE_WAITS, (timedelta(seconds=0.2), timedelta(seconds=0.2))
    down = [ModelError("overloaded", transient=True, retry_after=0.05) for _ in range(20)]
    try:
        async with world.worker(Agent("helper", model="main"), model=ScriptedModel(down)):
            run = await world.start(Agent("helper"))
            await world.waits_for(run, "pause")
        async with world.worker(Agent("helper", model="other"), model=ScriptedModel([*down[:10], "up"])):
            return await ended(run)
    finally:
        model_calls.OUTAGE_WAITS = usual


async def refused(world: World) -> Saved:
    """A provider that is down, and a fallback that refuses: the run waits for the first, and continues with it."""
    usual, model_calls.OUTAGE_WAITS = model_calls.OUTAGE_WAITS, (timedelta(seconds=0.2), timedelta(seconds=0.2))
    down = [ModelError("overloaded", transient=True, retry_after=0.05) for _ in range(10)]
    models = {
        "main": ScriptedModel([*down, "up"]),
        "spare": ScriptedModel(lambda messages, tools: ModelError("bad key")),
    }
    helper = Agent("helper", model="main", fallback_models=["spare"])
    try:
        async with world.worker(helper, model=models.__getitem__):
            return await ended(await world.start(helper))
    finally:
        model_calls.OUTAGE_WAITS = usual


async def handed_over(world: World) -> Saved:
    """An agent hands the conversation over to another one, which hands it back."""
    billing = Agent("billing", handoffs=["desk"])
    desk = Agent("desk", handoffs=[billing])
    turns = [asks("transfer_to_billing"), asks("transfer_to_desk"), "done"]
    async with world.worker(desk, billing, model=ScriptedModel(turns)):
        return await ended(await world.start(desk))


async def stopped(world: World) -> Saved:
    """A call that those of its tool approve, and then those of a guardrail; and one that they change."""

    def never(ctx: AgentContext, call: Any) -> str:
        return "too much"

    guardrail = Guardrail(never, approval=Approval(approvers=["eve"], timeout="1d"))
    agent = Agent("stopped", tools=[buy, put], tool_guardrails=[guardrail])
    turns = [asks("buy", amount=5), asks("put", what="x"), "done"]
    async with world.worker(agent, model=ScriptedModel(turns)):
        run = await world.start(agent)
        for by, edit in (("ada", None), ("bob", None), ("eve", None), ("eve", {"what": "y"})):
            while not (items := [item for item in await gates_of(run) if by in item["approvers"]]):
                await asyncio.sleep(0.02)
            given = {"by": by, "digest": items[0]["digest"], "edit": edit}
            await world.people.decide(run.id, items[0]["name"], "approve", **given)
        return await ended(run)


async def held(world: World) -> Saved:
    """What the user said and then the answer, each of which waits at a gate; the answer is rejected."""

    def look(ctx: AgentContext, said: Message) -> str:
        return "look at it"

    guardrail = Guardrail(look, approval=Approval(approvers=["ada"], timeout="1d"))
    agent = Agent("held", input_guardrails=[guardrail], output_guardrails=[guardrail])
    async with world.worker(agent, model=ScriptedModel(["a refund"])):
        run = await world.start(agent)
        for gate, decision in (("message-2", "approve"), ("answer-2", "reject")):
            while not (items := [item for item in await gates_of(run) if item["name"] == gate]):
                await asyncio.sleep(0.02)
            await world.people.decide(run.id, gate, decision, by="ada", digest=items[0]["digest"])
        return await ended(run)


async def activity(run: Any, name: str) -> Any:
    """Return the activity of a run with this name as soon as there is one."""
    while True:
        for one in (await run.describe()).raw_description.pending_activities:
            if one.activity_type.name == name:
                return one
        await asyncio.sleep(0.02)


@tool(approval=Approval(message="Refund?", approvers=["ada", "bob"], quorum=2))
async def refund(amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


async def repeated(world: World) -> Saved:
    """An edit recorded by a version that did not show it: the second approver repeats it."""
    agent = Agent("refunder", tools=[refund])
    async with world.worker(agent, model=ScriptedModel([asks("refund", amount=130), "done"])):
        run = await world.start(agent)
        await world.waits_for(run, "approval")
        for by in ("ada", "bob"):
            (gate,) = await world.people.pending(run.id)
            given = {"by": by, "digest": gate["digest"], "edit": {"amount": 80}}
            await world.people.decide(run.id, gate["name"], "approve", **given)
        return await ended(run)


async def proposed(world: World) -> Saved:
    """A call that two people must approve, edited by the one and then by the other."""
    agent = Agent("refunder", tools=[refund])
    async with world.worker(agent, model=ScriptedModel([asks("refund", amount=130), "done"])):
        run = await world.start(agent)
        await world.waits_for(run, "approval")
        for by, edit in (("ada", {"amount": 80}), ("bob", {"amount": 70}), ("ada", None)):
            (gate,) = await world.people.pending(run.id)
            given = {"by": by, "digest": gate["digest"], "edit": edit}
            await world.people.decide(run.id, gate["name"], "approve", **given)
        return await ended(run)


async def after_nothing(context: AgentContext) -> None:
    """Called when the model has said nothing twice."""


silent = Agent("silent", tools=[inquire], on_stuck=after_nothing)


async def empty(world: World) -> Saved:
    """A provider that runs tools of its own, and then a model that says nothing twice."""
    first = {
        **asks("inquire", what="which"),
        "reasoning": {"provider": "p", "blocks": [{"type": "thinking", "thinking": "Let me look."}]},
        "hosted": [{"name": "web_search", "input": "Oslo"}],
        "citations": [{"url": "https://example.com", "title": "Example"}],
    }
    async with world.worker(silent, model=ScriptedModel([first, "", ""])):
        run = await world.start(silent)
        await world.waits_for(run, "question")
        await world.people.answer(run.id, "red")
        return await ended(run)


asker = Agent("asker", tools=[inquire])


async def refused_again(world: World) -> Saved:
    """An answer that a terminated run has not taken is sent again by its reset; another one counts."""
    model = ScriptedModel([asks("inquire", what="which"), "done"])
    async with world.worker(asker, model=model):
        run = await world.start(asker)
        await world.waits_for(run, "question")
        await world.people.message(run.id, "soon")
    await run.signal("answer", {"text": "blue", "id": "cut-off"})
    await run.terminate()
    again = await reset(world, run, -1, with_signals=True)
    async with world.worker(asker, model=model):
        while "refused" not in (await again.query(names.OUTCOME, "cut-off") or {}):
            await asyncio.sleep(0.02)
        await world.people.answer(run.id, "red", id="new")
        await again.result()
        return [(run.id, again.run_id)]


async def asked_on(world: World) -> Saved:
    """A question of a run that was reset, and then continues as new while it waits."""
    async with world.worker(asker, model=ScriptedModel([asks("inquire", what="which"), "done"])):
        run = await world.start(asker)
        await world.waits_for(run, "question")
        again = await reset(world, run, -1)
        await world.waits_for(again, "question")
        run_lifetime.EVENTS = (await again.describe()).history_length
        await again.signal("reject", {"gate": "nope"})
        latest = world.client.get_workflow_handle(run.id)
        while (moved := (await latest.describe()).run_id) == again.run_id:
            await asyncio.sleep(0.02)
        run_lifetime.EVENTS = 4_000
        await world.waits_for(latest, "question")
        await world.people.answer(run.id, "red", id="new")
        await latest.result()
        return [(run.id, moved)]


async def asked_in_turns(world: World) -> Saved:
    """A run that has asked in two turns, and is reset to its beginning: each turn finds its answer."""
    async with world.worker(
        asker, model=ScriptedModel([asks("inquire", what="which"), asks("inquire", what="when"), "done"])
    ):
        run = await world.start(asker)
        for text in ("red", "blue"):
            await world.waits_for(run, "question")
            await world.people.answer(run.id, text, id=text)
        await run.result()
        again = await reset(world, run, 0)
        await again.result()
        return [(run.id, again.run_id)]


@workflow.defn(name="Escalating", sandboxed=False)
class Escalating:
    """A workflow of a user's that asks others after a deadline, with a message of their own."""

    @workflow.run
    async def run(self, patience: str | None) -> list[Any]:
        found: list[Any] = []
        lead = Approval(message="Nobody else did.", approvers=["eve"], timeout=patience, on_timeout="approve")
        for message in ("x" * 300_000, "Ship?"):
            try:
                gate = approval("ship", message=message, approvers=["ada"], timeout="1s", on_timeout="escalate",
                                escalate_to=lead)  # fmt: skip
                found.append(await gate)
            except ApplicationError as error:
                found.append(str(error))
        return found


async def escalated(world: World) -> Saved:
    """A gate that is too large to be shown, and one whose escalation has a message of its own."""
    async with world.worker(present, model=ScriptedModel([]), workflows=[Escalating]):
        run = await world.client.start_workflow("Escalating", "1d", id=world.name, task_queue=world.name)
        while not (found := [gate for gate in await gates_of(run) if gate["approvers"] == ["eve"]]):
            await asyncio.sleep(0.05)
        await world.people.decide(run.id, "ship", "approve", by="eve", digest=found[0]["digest"])
        return await ended(run)


async def unseen(world: World) -> Saved:
    """The same where the look at the workflow's surroundings fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate_activities, "WHOLE_GATES", None)
        async with world.worker(present, model=ScriptedModel([]), workflows=[Escalating]):
            return await ended(
                await world.client.start_workflow("Escalating", "1s", id=world.name, task_queue=world.name)
            )


async def cut_off(world: World) -> Saved:
    """Answers that are cut off: a person resumes the run after the first, and lets it give up after the second."""
    patient = Agent("patient", loop=Loop(on_model_outage="pause"))
    cut = ModelError("cut off", transient=True, retry_after=3_600, usage=Usage(input_tokens=7))
    async with world.worker(patient, model=ScriptedModel([cut, cut])):
        run = await world.start(patient)
        for action in ("retry", "abort"):
            await world.waits_for(run, "pause")
            await world.people.resume(run.id, by="ada", action=action)
        saved = await ended(run)
        assert (await run.result())["usage"]["input_tokens"] == 14
        return saved


async def answered_early(world: World) -> Saved:
    """An answer without an id that a run is sent while it looks for earlier ones."""
    model = ScriptedModel([asks("inquire", what="which"), "done"])
    async with world.worker(asker, model=model):
        run = await world.start(asker)
        await world.waits_for(run, "question")
    await run.signal("answer", {"text": "red"})
    again = await reset(world, run, -1, with_signals=True)
    async with world.worker(asker, model=model):
        await again.result()
        return [(run.id, again.run_id)]


async def sent_again(world: World) -> Saved:
    """A rejection without an id that came too late, and that a reset sends again where the gate was open."""
    flow = pipeline("flow").step("ok", approval=Approval()).step("end", approval=Approval()).build()
    async with world.worker(present, model=ScriptedModel([]), pipelines=[flow]):
        run = await start_pipeline(world.client, flow, input={}, run_key=world.name, task_queue=world.name)
        await world.waits_for(run, "approval", "ok")
        (gate,) = await gates_of(run)
        for count in (1, 2):  # so that there are tasks in which the gate is open
            await run.signal("reject", {"by": "eve"})
            while len((await run.query("status"))["refused"]) < count:
                await asyncio.sleep(0.02)
        events = (await run.fetch_history()).events
        at = [event.HasField("workflow_task_completed_event_attributes") for event in events].count(True) - 1
        given = {"gate": "ok", "by": "ada", "digest": gate["digest"]}
        await run.execute_update("decide", {**given, "decision": "approve"})
        await run.signal("reject", {**given, "by": "bob"})
        await world.waits_for(run, "approval", "end")
        again = await reset(world, run, at, with_signals=True)
        await world.waits_for(again, "approval", "end")
        (gate,) = await gates_of(again)
        await world.people.decide(run.id, "end", "approve", by="ada", digest=gate["digest"])
        await again.result()
        return [(run.id, again.run_id)]


async def sent_again_to_rounds(world: World) -> Saved:
    """The same in a user's workflow, which cannot know that the reset has sent it."""
    async with world.worker(present, model=ScriptedModel([]), workflows=[Rounds]):
        run = await world.client.start_workflow("Rounds", id=world.name, task_queue=world.name)
        await world.waits_for(run, "approval", "review")
        (gate,) = await gates_of(run)
        for count in (1, 2):  # so that there are tasks in which the gate is open
            await run.signal("reject", {"by": "eve"})
            while len((await run.query("status"))["refused"]) < count:
                await asyncio.sleep(0.02)
        events = (await run.fetch_history()).events
        at = [event.HasField("workflow_task_completed_event_attributes") for event in events].count(True) - 1
        given = {"gate": gate["name"], "by": "ada", "digest": gate["digest"]}
        await run.execute_update("decide", {**given, "decision": "approve"})
        await run.signal("reject", {**given, "by": "bob"})
        again = await reset(world, run, at, with_signals=True)
        await decided(world, again)
        return [(run.id, again.run_id)]


async def begun_without(world: World) -> Saved:
    """A user's workflow whose first gate is opened by a worker without our activities, and decided with them."""
    async with Worker(world.client, task_queue=world.name, workflows=[Rounds]):
        run = await world.client.start_workflow("Rounds", id=world.name, task_queue=world.name)
        await world.waits_for(run, "approval", "review")
    async with world.worker(present, model=ScriptedModel([]), workflows=[Rounds]):
        await decided(world, run)
        return await ended(run)


quick = Agent("quick", tools=[put, pay, inquire, stumble], lane="fast")


async def stretched(world: World) -> Saved:
    """Stretches of two turns: with failing and unknown tools, a gate and a question."""
    model = ScriptedModel(
        [
            asks("put", what="one"),
            {"tool_calls": [{"name": name, "arguments": {"what": "two"}} for name in ("put", "stumble", "nobody")]},
            asks("put", what="three"),
            asks("pay", amount=7),
            asks("put", what="four"),
            asks("inquire", what="which"),
            "done",
        ]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "TURNS", 2)
        async with world.worker(quick, model=model):
            run = await world.start(quick)
            await world.waits_for(run, "approval")
            (gate,) = await gates_of(run)
            await world.people.decide(run.id, gate["name"], "approve", by="ada", digest=gate["digest"])
            await world.waits_for(run, "question")
            await run.execute_update("answer", {"text": "red"})
            return await ended(run)


LATER = (late, recalled, skipped, settled, junk, failed, asked_anew, recalled_anew, rounds, woken, wakes, reported)
LATER = (
    *LATER,
    shown,
    shown_late,
    sent_back,
    edited,
    outlasted,
    refused,
    handed_over,
    stopped,
    held,
    repeated,
    proposed,
    empty,
    looked_up,
    redeployed,
    refused_again,
    asked_on,
    asked_in_turns,
    escalated,
    unseen,
    cut_off,
    answered_early,
    sent_again,
    sent_again_to_rounds,
    begun_without,
    stretched,
)
RECORDINGS = recordings.RECORDINGS | {one.__name__: one for one in LATER}
