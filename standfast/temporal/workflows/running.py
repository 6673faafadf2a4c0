"""What a run waits for now, and how a cancel reaches it."""

from typing import Any


class Running:
    """The activities and children that run now.

    In the order in which they began, which is that of the commands when they are cancelled: a set's is another one at
    each replay.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._handles: dict[Any, None] = {}

    def cancel(self) -> None:
        """Cancel what runs and what will. Each is waited for, so that its outcome is known."""
        self.cancelled = True
        for handle in list(self._handles):
            handle.cancel()

    async def wait(self, handle: Any) -> Any:
        """Return the result of an activity or child, which a cancel reaches."""
        self._handles[handle] = None
        try:
            if self.cancelled:
                handle.cancel()
            return await handle
        finally:
            self._handles.pop(handle, None)
