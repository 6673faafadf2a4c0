"""The Protocol of stores that also keep answers while models still give them; not every store does."""

from typing import Protocol, runtime_checkable

from standfast.messages import Record


class PartialAnswer(Record):
    """What a model has said of an answer that it still gives, or gave when its worker died.

    Args:
        turn: of the run.
        attempt: at this turn; the greater one of two is the later.
        offset: where `text` begins in what was said, in characters.
    """

    turn: int
    attempt: str
    offset: int
    text: str

    @property
    def end(self) -> int:
        """The position of its end."""
        return self.offset + len(self.text)


@runtime_checkable
class PartialAnswers(Protocol):
    """Models' answers while they are given, for anybody who watches: at most one per run. Nothing depends on them."""

    async def add_partial(self, journal_key: str, part: PartialAnswer) -> None:
        """Add what was said since; adding it again changes nothing. What an earlier attempt says is ignored."""
        ...

    async def load_partial(self, journal_key: str, *, after: PartialAnswer | None = None) -> PartialAnswer | None:
        """Return what was said, or only what is new `after` an earlier look; None if no answer is being given.

        What another attempt says is returned from its beginning.
        """
        ...

    async def drop_partial(self, journal_key: str, *, turn: int, attempt: str) -> None:
        """Forget what was said up to this attempt at a turn: the answer is known, or there will be none."""
        ...
