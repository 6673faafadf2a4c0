"""Several large gates: those that fit into `pending` are shown completely and decided."""

from typing import Any

import pytest
from support.own_workflows import Exhibits
from support.temporal_runs import Run, Temporal, check_healthy, pending, result
from support.transcripts import asks_for, call
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from standfast import Agent, Approval, Markdown, Step, pipeline, tool
from standfast.temporal import StandfastPlugin, load_shown, start_pipeline
from standfast.temporal.activities.gates import gate_activities
from standfast.temporal.workflows.board.visibility import pipeline_details
from standfast.temporal.workflows.run import pipeline_workflows
from standfast.testing import ScriptedModel


async def test_calls_with_large_arguments_wait_beside_each_other(temporal: Temporal) -> None:
    posted: list[int] = []

    @tool(approval=Approval())
    async def post(text: str) -> str:
        posted.append(len(text))
        return "ok"

    agent, large = Agent("poster", tools=[post]), 1_200_000
    calls = [call("post", f"c{number}", text="x" * large) for number in range(3)]
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(*calls), "done"])):
        run = await temporal.start(agent)
        for item in await pending(run, 3):
            await temporal.people.decide(run.id, item["name"], "approve", by="ada", digest=item["digest"])
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert posted == [large] * 3


@pytest.mark.slow
async def test_so_many_gates_of_a_pipeline_that_one_answer_has_no_room_for_all_are_decided(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, drawn = "y" * 12_000, list[str]()

    def details(*given: Any) -> str:
        drawn.append(pipeline_details(*given))
        return drawn[-1]

    monkeypatch.setattr(pipeline_workflows, "pipeline_details", details)
    ok = Approval(message=lambda ctx: "m" * 60_000, show=lambda ctx: Markdown(text))
    gates = [Step(f"s{number}", approval=ok) for number in range(40)]
    asks = pipeline("w").parallel("all", *gates).build()
    async with temporal.worker(Agent("other"), pipelines=[asks], llm=ScriptedModel([])):
        run = await start_pipeline(temporal.client, "w", input={}, run_key=temporal.session(), task_queue=temporal.name)
        items = await pending(run, 40)
        assert len(drawn) < 20  # once for each task: drawing long values for each gate takes a task's two seconds
        assert items[0]["message"] == "m" * 60_000
        assert "[cut: 200 of 60,000 bytes]" in items[-1]["message"]
        for item in (items[0], items[-1]):
            assert text in str(await load_shown(temporal.store, item))
        for item in items:
            await temporal.people.decide(run.id, item["name"], "approve", by="ada", digest=item["digest"])
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)


async def test_a_gate_of_a_users_workflow_that_people_could_not_see_whole_is_refused(temporal: Temporal) -> None:
    large = 255_000
    plugin = StandfastPlugin(agents=[Agent("other")], store=temporal.store, llm=ScriptedModel([]))
    async with Worker(temporal.client, task_queue=temporal.name, workflows=[Exhibits], plugins=[plugin]):
        sizes = [large, 1_100_000, *[large] * 4, 270_000, large, 10]
        run: Run = await temporal.client.start_workflow(
            "Exhibits", sizes, id=temporal.session(), task_queue=temporal.name
        )
        await pending(run, 6)
        items = await temporal.people.pending(run.id)
        shown = {f"g{number}": str(number) * sizes[number] for number in (0, 2, 3, 4, 5, 8)}
        assert {item["name"]: item["message"] for item in items} == shown
        for item in items:
            await temporal.people.decide(run.id, item["name"], "approve", by="ada", digest=item["digest"])
        ended: Any = await result(run)
        await check_healthy(run)
    assert [number for number, one in enumerate(ended) if one == "approved"] == [0, 2, 3, 4, 5, 8]
    for number, size in ((1, 1_100_000), (6, 270_000)):
        assert (
            f"gate 'g{number}': it needs {size + 2_016:,} bytes to show, more than 262,144, so no one" in ended[number]
        )
    assert "gate 'g7': it needs 257,012 bytes to show, and other open gates of this workflow 1,285,060" in ended[7]


@pytest.mark.parametrize("plugin", [True, False], ids=["the look fails", "no plugin"])
async def test_nor_does_it_open_where_the_worker_cannot_look_up_the_surroundings(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, plugin: bool
) -> None:
    monkeypatch.setattr(gate_activities, "WHOLE_GATES", None)
    options: dict[str, Any] = {"workflow_runner": UnsandboxedWorkflowRunner()}
    if plugin:
        agents = [Agent("other")]
        options = {"plugins": [StandfastPlugin(agents=agents, store=temporal.store, llm=ScriptedModel([]))]}
    async with Worker(temporal.client, task_queue=temporal.name, workflows=[Exhibits], **options):
        sizes = [*[255_000] * 5, 270_000, 255_000]
        run: Run = await temporal.client.start_workflow(
            "Exhibits", sizes, id=temporal.session(), task_queue=temporal.name
        )
        items = await pending(run, 5)
        assert [item["message"] for item in items] == [str(number) * 255_000 for number in range(5)]
        await check_healthy(run)
