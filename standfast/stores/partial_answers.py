"""What a store may tell of answers that models still give: a Protocol of its own, since not every store has it."""

from typing import Protocol, runtime_checkable

from standfast.messages import Record


class PartialAnswer(Record):
    """What a model has said of an answer that it still gives, or gave when its worker died.

    Args:
        turn: of the run.
        attempt: at this turn; of two texts the greater one has the later.
        offset: where `text` begins in what was said, in characters.
    """

    turn: int
    attempt: str
    offset: int
    text: str

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.offset + len(self.text)


@runtime_checkable
class PartialAnswers(Protocol):
    """What models say while they say it, for whoever looks on: at most one answer a run, and nothing depends on it."""

    async def add_partial(self, run_key: str, part: PartialAnswer) -> None:
        """Add what was said since; once, however often it is added. What an earlier attempt says is left out."""
        ...

    async def load_partial(self, run_key: str, *, after: PartialAnswer | None = None) -> PartialAnswer | None:
        """Return what was said, only what is new `after` an earlier look; None if nobody speaks.

        What another attempt says is returned from its beginning.
        """
        ...

    async def drop_partial(self, run_key: str, *, turn: int, attempt: str) -> None:
        """Forget what was said up to this attempt at a turn: the answer is known, or there will be none."""
        ...
