"""Names with underscores: of agents, pipelines and steps, also of steps that are visited again."""

from support.drivers import Driver
from support.pipeline_drivers import PipelineDriver
from support.transcripts import asks_for, call, tool_results

from integration.pipelines.test_gates import approve, reject
from integration.pipelines.test_pipelines import echo
from standfast import Agent, Approval, Step, pipeline
from standfast.testing import ScriptedModel

first_writer = Agent("first_writer", model="child")


async def test_names_may_have_underscores_wherever_they_go(pipelines: PipelineDriver) -> None:
    reviewed = (
        pipeline("write_and_post")
        .step("write_it", agent=first_writer)
        .step("is_it_ok", approval=Approval(on_reject="write_it"))
        .map("post_all", Step("post_one", agent=first_writer, input=lambda ctx: f"post {ctx.item}"), over=lambda _: [1])
        .build()
    )
    decisions = [reject("is_it_ok", comment="no"), approve("is_it_ok_2")]
    went = await pipelines.run(reviewed, ScriptedModel(echo), decisions=decisions)
    assert (went.status, went.outputs["post_all"]) == ("complete", [{"response": "<post 1>"}])
    assert list(went.step_results) == ["write_it", "is_it_ok", "write_it_2", "post_all/0"]


async def test_an_agent_whose_name_has_an_underscore_is_a_tool_and_keeps_its_session(driver: Driver) -> None:
    boss = Agent("the_boss", model="boss", tools=[first_writer])
    script = {
        "boss": ScriptedModel([asks_for(call("first_writer", "c1", message="go")), "sent", "again"]),
        "child": ScriptedModel(["done"]),
    }
    await driver.run(boss, script.__getitem__, also=[first_writer])
    ended = await driver.run(boss, script.__getitem__, also=[first_writer])
    assert [said.content for said in tool_results(ended.messages)] == ["done"]
    assert ended.response == "again"
