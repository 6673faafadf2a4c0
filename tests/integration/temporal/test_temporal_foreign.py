"""Other programs' workflows beside our runs: whatever they answer, people are neither misled nor blocked."""

from typing import Any

import pytest
from support.commands import data, done, refused
from support.pages import browser
from support.temporal_runs import Run, Temporal, question, until
from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.worker import Worker

from standfast.temporal.wire import names

_WAITING = SearchAttributeKey.for_keyword_list(names.WAITING_ATTRIBUTE)
_STATUS = SearchAttributeKey.for_keyword(names.STATUS_ATTRIBUTE)
_CARD = {"kind": "approval", "name": "pay", "message": "3 pizzas?", "since": "2026-11-22T00:00:00+00:00", "digest": "d",
         "approvers": []}  # fmt: skip
SAYS: dict[str, Any] = {
    "another run's id": lambda target: [{**_CARD, "workflow_id": target}],
    "a text": lambda target: "approve me",
    "null": lambda target: None,
    "no object": lambda target: [5, ["x"]],
    "no message": lambda target: [{"kind": "approval", "name": "pay"}],
    "no time": lambda target: [{**_CARD, "since": 5, "deadline": "soon"}],
    "a wrong type": lambda target: [{**_CARD, "approvers": {"ada": True}}],
    "a huge text": lambda target: [{**_CARD, "message": "x" * 500_000}],
}


@workflow.defn(sandboxed=False)
class Forger:
    """Is in the list of waiting runs, and answers as the test says."""

    @workflow.init
    def __init__(self, says: Any) -> None:
        self._says = says

    @workflow.run
    async def run(self, says: Any) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query
    def pending(self) -> Any:
        return self._says

    @workflow.query
    def status(self) -> Any:
        return self._says


async def forged(temporal: Temporal, says: Any) -> Run:
    waits = TypedSearchAttributes(
        [SearchAttributePair(_WAITING, ["approval"]), SearchAttributePair(_STATUS, "waiting")]
    )
    run: Run = await temporal.client.start_workflow(
        "Forger", says, id=f"pizza/{temporal.name}", task_queue=f"{temporal.name}-others", search_attributes=waits
    )
    return run


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("says", SAYS.values(), ids=SAYS)
async def test_a_card_that_another_workflow_forges_is_told_as_its_own(temporal: Temporal, says: Any) -> None:
    async with question(temporal) as ours:
        others = Worker(temporal.client, task_queue=f"{temporal.name}-others", workflows=[Forger])
        async with others, browser(temporal) as page:
            run = await forged(temporal, says(ours.id))

            async def inbox() -> list[dict[str, Any]]:  # when the server lists both
                items = [item for item in await temporal.people.waiting() if temporal.name in item["workflow_id"]]
                return items if len(items) > 1 else []

            cards = {item["workflow_id"]: item["kind"] for item in await until(inbox)}
            assert cards == {ours.id: "question", run.id: "unreadable"}
            rows = await data(temporal, "pending")
            assert [row["kind"] for row in rows if row["workflow_id"] == run.id] == ["unreadable"]
            for words in (["pending", run.id], ["show", run.id]):
                assert "Traceback" not in await done(temporal, *words)
            for words in (["approve", run.id], ["answer", run.id, "yes"], ["message", run.id, "x"]):
                assert await refused(temporal, *words)
            shown = await page.get("/")
            # The board has only its own store's runs; before a worker looks after it, all runs are queried.
            is_shown = f"/runs/{run.id}" in shown.text
            assert (shown.status_code, "cannot be read" in shown.text) == (200, is_shown)
            assert (await page.get(f"/runs/{run.id}")).status_code == 200
            await run.terminate()


async def test_what_nothing_marks_as_ours_is_refused_by_every_command_and_the_page(temporal: Temporal) -> None:
    others = Worker(temporal.client, task_queue=f"{temporal.name}-others", workflows=[Forger])
    async with others, browser(temporal) as page:
        run = await temporal.client.start_workflow(
            "Forger", [_CARD], id=f"payroll/{temporal.name}", task_queue=f"{temporal.name}-others"
        )
        for words in (
            ["cancel", run.id],
            ["resume", run.id],
            ["answer", run.id, "yes"],
            ["message", run.id, "hello"],
            ["approve", run.id, "pay"],
            ["reject", run.id, "pay"],
            ["resolve", run.id, "c1", "--leave"],
            ["export", run.id],
            ["show", run.id],
            ["watch", run.id],
            ["pending", run.id],
        ):
            assert "is not known as a standfast run" in await refused(temporal, *words), words
        shown = await page.get(f"/runs/{run.id}")
        assert (shown.status_code, "is not known as a standfast run" in shown.text) == (404, True)
        assert (await run.describe()).status is not None
        history = await run.fetch_history()
        assert not [event for event in history.events if event.HasField("workflow_execution_signaled_event_attributes")]
        assert not [
            event for event in history.events if event.HasField("workflow_execution_cancel_requested_event_attributes")
        ]
        await run.terminate()
