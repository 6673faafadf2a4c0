"""Uses a LangGraph checkpointer from the event loop of a worker's handlers; internal.

Async checkpointers belong to the event loop on which they were made, and plain ones refuse async calls.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

T = TypeVar("T")


class SaverAnywhere(BaseCheckpointSaver[Any]):
    """A checkpointer that works from any event loop."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver

    @property
    def config_specs(self) -> list[Any]:
        return list(self._saver.config_specs)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Any) -> "SaverAnywhere":
        return SaverAnywhere(self._saver.with_allowlist(extra_allowlist))

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return await self._call(lambda: self._saver.aget_tuple(config), lambda: self._saver.get_tuple(config))

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        async def found() -> list[CheckpointTuple]:
            return [one async for one in self._saver.alist(config, **options)]

        for one in await self._call(found, lambda: list(self._saver.list(config, **options))):
            yield one

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        given = (config, checkpoint, metadata, new_versions)
        return await self._call(lambda: self._saver.aput(*given), lambda: self._saver.put(*given))

    async def aput_writes(self, config: Any, writes: Sequence[Any], task_id: str, task_path: str = "") -> None:
        given = (config, writes, task_id, task_path)
        await self._call(lambda: self._saver.aput_writes(*given), lambda: self._saver.put_writes(*given))

    async def _call(self, begin: Callable[[], Awaitable[T]], plain: Callable[[], T]) -> T:
        home = getattr(self._saver, "loop", None)
        try:
            if home is None or home is asyncio.get_running_loop() or not home.is_running():
                return await begin()
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(begin), home))
        except NotImplementedError:
            return await asyncio.to_thread(plain)


async def _awaited(begin: Callable[[], Awaitable[T]]) -> T:
    return await begin()
