"""Assembles the parts that every run has, and reads the run's input."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from standfast.errors import InputError
from standfast.temporal.wire.boards import Whose
from standfast.temporal.wire.inbox import Mailbox
from standfast.temporal.wire.snapshots import Surroundings
from standfast.temporal.workflows.board.run_board import Board, Details
from standfast.temporal.workflows.inbox.arrivals import Inbox
from standfast.temporal.workflows.run.activity_results import refuse
from standfast.temporal.workflows.run.pauses import Pauses
from standfast.temporal.workflows.run.run_lifetime import Running
from standfast.temporal.workflows.run.workers import Opening, Workers

T = TypeVar("T")


def read_input(read: Callable[[Any], T], data: Any, extra: tuple[Any, ...], **ours: bool) -> T:
    """Return the input of a run; fail the run if the input is invalid.

    Args:
        extra: arguments after the input.
        ours: for each key reserved for standfast, whether standfast itself started this run.
    """
    try:
        if extra:
            raise InputError(f"The input is one JSON object, got {1 + len(extra)} arguments")
        given = read(data)
        for name, is_ours in ours.items():
            if getattr(given, name) is not None and not is_ours:
                raise InputError(f"The input: {name!r} is for runs that standfast itself starts")
    except InputError as error:
        refuse(str(error))
    return given


class RunParts:
    """The parts shared by the runs of agents, pipelines and users' workflows."""

    def __init__(
        self,
        details: Details,
        opening: Callable[[], Opening],
        learn: Callable[[Surroundings], None] = lambda found: None,
        whose: Callable[[], Whose] = lambda: {"run": ""},
        *,
        asks_groups: bool = False,
        taken: Callable[[], None] = lambda: None,
        patience: Callable[[], Any] = lambda: None,
        choose_model: Callable[[str], None] = lambda model: None,
    ) -> None:
        self.mailbox = Mailbox()
        self.running = Running()
        self.board = Board(self.mailbox, details, whose, asks_groups=asks_groups)
        self.running.when_reset(self.board.rows.was_reset)
        self.inbox = Inbox(self.mailbox, self.board, self.running, taken)
        self.pauses = Pauses(self.board, self.inbox, self.running, patience, choose_model)
        self.workers = Workers(self.board, self.running, self.pauses, opening, learn)

    def learn(self, found: Mapping[str, Any]) -> None:
        """Take in the run's surroundings; see `Surroundings`."""
        self.board.search, self.board.notices = found.get("search", False), found.get("notices", False)
        self.workers.give_receipts, self.running.wakes = found.get("receipts", False), found.get("wakes", False)
        self.running.attaches = found.get("attaches", False)
        self.board.rows.is_kept = found.get("board", False)
        self.board.rows.changed()
