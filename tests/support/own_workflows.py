"""User workflows with gates, in a separate module, since the sandbox imports it for each run."""

import asyncio
from typing import Any

from temporalio import workflow

from standfast.temporal import approval


@workflow.defn
class Release:
    """A user's workflow that asks once, with a workflow task before the gate and one behind it."""

    @workflow.run
    async def run(self, message: str) -> Any:
        await workflow.sleep(0.01)
        gate = await approval("ship", message=message, approvers=["ada", "bob"], quorum=2)
        await workflow.sleep(0.01)
        return gate


@workflow.defn(name="Release")
class NewRelease:
    """A later version of it, which asks something else."""

    @workflow.run
    async def run(self, message: str) -> Any:
        await workflow.sleep(0.01)
        return await approval("ship", message="Really?", approvers=["ada", "bob"], quorum=2)


@workflow.defn
class Rounds:
    """A workflow that asks at gates of one name, one after the other, each as long as it is told."""

    def __init__(self) -> None:
        self._gates: list[Any] = []

    @workflow.run
    async def run(self, patience: list[float | None]) -> Any:
        for seconds in patience:
            self._gates.append(await approval("review", timeout=seconds))
        return {"gates": self._gates}

    @workflow.query
    def rounds(self) -> int:
        return len(self._gates)


@workflow.defn
class Staged:
    """A workflow that asks twice, the second time when it is told to go on."""

    def __init__(self) -> None:
        self._may_go_on = self._is_tested = False

    @workflow.run
    async def run(self) -> Any:
        gates = [await approval("test")]
        self._is_tested = True
        await workflow.wait_condition(lambda: self._may_go_on)
        return {"gates": [*gates, await approval("ship")]}

    @workflow.query
    def is_tested(self) -> bool:
        return self._is_tested

    @workflow.signal
    def go_on(self) -> None:
        self._may_go_on = True


@workflow.defn
class Beside:
    """A workflow that asks at gates beside each other, and listens itself to whether it was reset."""

    def __init__(self) -> None:
        self._seeds: list[int] = []
        workflow.register_random_seed_callback(self._seeds.append)

    @workflow.run
    async def run(self) -> Any:
        await workflow.sleep(0.01)
        gates = await asyncio.gather(*(approval(name) for name in ("left", "right")))
        return {"gates": gates, "resets": len(self._seeds)}


@workflow.defn
class Exhibits:
    """A workflow that asks at gates beside each other, with messages of so many characters."""

    @workflow.run
    async def run(self, sizes: list[int]) -> Any:
        gates = (approval(f"g{number}", message=str(number) * size) for number, size in enumerate(sizes))
        found = await asyncio.gather(*gates, return_exceptions=True)
        return [str(one) if isinstance(one, BaseException) else one["status"] for one in found]


@workflow.defn
class Intake:
    """A workflow that runs an agent, as the guide shows it."""

    @workflow.run
    async def run(self, session: str) -> Any:
        given = {"message": "It came in", "session_id": session, "user_id": "intake"}
        triaged = await workflow.execute_child_workflow("triage", given, id=f"triage/{session}")
        return triaged["response"] if triaged["status"] == "complete" else triaged["status"]


@workflow.defn
class Undecided:
    """A workflow that asks when it is told to."""

    def __init__(self) -> None:
        self._may_ask = False

    @workflow.run
    async def run(self) -> Any:
        await workflow.wait_condition(lambda: self._may_ask)
        return await approval("ship")

    @workflow.signal
    def ask(self) -> None:
        self._may_ask = True


@workflow.defn
class Approver:
    """A workflow that has its own signal with the name that `approval` needs."""

    @workflow.run
    async def run(self) -> Any:
        return await approval("ship")

    @workflow.signal
    def approve(self) -> None: ...


@workflow.defn
class Weekly:
    """A workflow that asks, and continues as new."""

    @workflow.run
    async def run(self, week: int = 0) -> Any:
        gate = await approval("ship")
        if week < 1:
            workflow.continue_as_new(week + 1)
        return gate
