"""Reads the answers of runs about themselves: the items that wait for people, and the progress.

Any workflow may answer these queries with any value, and people who decide are shown the result. So the answers are
read strictly for every caller; unreadable parts become one card.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from standfast.errors import InputError
from standfast.messages import JSONObject, explain, with_article
from standfast.temporal.wire.inputs import CHECKPOINT_BYTES, INLINE_BYTES, ITEM_NAME, check_json
from standfast.tools import Scope, read_shown

_ITEMS = 1_000  # of a run
_PEOPLE = 20_000  # of an item
_BYTES = 2 * CHECKPOINT_BYTES  # of a run's full answer; Temporal's limit


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("must have a time zone")
    return text


_Name = Annotated[str, Field(max_length=ITEM_NAME)]
_Names = Annotated[list[_Name], Field(max_length=_PEOPLE)]
_Text = Annotated[str, Field(max_length=INLINE_BYTES)]
_Time = Annotated[str, Field(max_length=50), AfterValidator(_moment)]


_STRICT = ConfigDict(frozen=True, strict=True, extra="forbid")
_OPEN = ConfigDict(frozen=True, strict=True, extra="allow")  # further fields are not shown


class Item(BaseModel):
    """A waiting item, as `Waiting.plain` writes it."""

    model_config = _STRICT

    kind: Literal["question", "unknown", "approval", "pause", "worker", "store"]
    name: _Name
    message: _Text
    since: _Time
    deadline: _Time | None = None
    then: _Text | None = None
    digest: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    approvers: _Names | None = None
    tool: _Name | None = None
    arguments: Any = None
    edit: JSONObject | None = None
    quorum: Annotated[int, Field(ge=1, le=_PEOPLE)] | None = None
    approved_by: _Names | None = None
    size: Annotated[int, Field(ge=0)] | None = None
    reference: JSONObject | None = None
    shown: Annotated[list[JSONObject], AfterValidator(read_shown)] | None = None
    retry_at: _Time | None = None
    retry_every: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    can_skip: bool | None = None
    groups: _Names | None = None
    requesters: _Names | None = None
    remember: Scope | None = None
    edited_by: Annotated[str, Field(max_length=1_000)] | None = None
    changes: _Text | None = None

    @model_validator(mode="after")
    def _check(self) -> "Item":
        if self.kind == "approval" and self.digest is None:
            raise ValueError("an approval needs its digest")
        if (self.tool is None) != (self.arguments is None) or (self.quorum is None) != (self.approved_by is None):
            raise ValueError("tool and arguments go together, and quorum and approved_by")
        return self


class _Usage(BaseModel):
    model_config = _OPEN

    input_tokens: Annotated[int, Field(ge=0)]
    output_tokens: Annotated[int, Field(ge=0)]
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class _Running(BaseModel):
    model_config = _OPEN

    tool: _Name


class _State(BaseModel):
    """The progress of a run, as in `status`."""

    model_config = _OPEN

    status: _Name
    run_key: _Name | None = None
    journal_key: _Name | None = None
    turn: int | None = None
    iterations: int | None = None
    max_iterations: int | None = None
    usage: _Usage | None = None
    running: Annotated[list[_Name | _Running], Field(max_length=10_000)] = []
    done: Annotated[list[_Name], Field(max_length=100_000)] = []
    unheard: Annotated[list[_Text], Field(max_length=2_000)] = []
    error: _Text | None = None


class _Result(BaseModel):
    """The result of a run; a pipeline's has outputs."""

    model_config = _OPEN

    status: _Name
    run_key: _Name | None = None
    journal_key: _Name | None = None
    iterations: int | None = None
    usage: _Usage | None = None
    response: str | None = None
    outputs: JSONObject | None = None
    error: str | None = None
    failed_step: _Name | None = None


def read_items(found: object) -> list[JSONObject]:
    """Return the waiting items from a run's answer; all unreadable parts are one item of kind "unreadable"."""
    if not isinstance(found, list):
        return [unreadable(f"it is {with_article(type(found).__name__)}, not a list")]
    items, odd = [], []
    for item in found[:_ITEMS]:
        try:
            check_json(item, "an item", INLINE_BYTES)
            Item.model_validate(item)
        except (InputError, ValidationError) as error:
            odd.append(_why(error))
        else:
            items.append({name: value for name, value in item.items() if value is not None})
    if len(found) > _ITEMS:
        odd.append(f"{len(found):,} items, more than {_ITEMS:,}")
    return [*items, *([unreadable(odd[0])] if odd else [])]


def unreadable(why: str) -> JSONObject:
    """Return the item that represents all unreadable parts of a run's answer."""
    return {"kind": "unreadable", "name": "", "message": f"the waiting items of this run cannot be read: {why[:500]}"}


def read_state(found: object) -> JSONObject:
    """Return a run's report about itself, with its waiting items as `read_items` returns them.

    Raises:
        InputError: it is not an answer of a standfast run.
    """
    try:
        check_json(found, "status", _BYTES)
        _State.model_validate(found)
    except (InputError, ValidationError) as error:
        raise InputError(f"its status cannot be read: {_why(error)}") from error
    state = cast(JSONObject, found)
    return {**state, "waiting": read_items(state.get("waiting", []))}


def read_result(found: object) -> JSONObject:
    """Return the result of a standfast run, or nothing for other workflows, which may return any value."""
    try:
        check_json(found, "result", _BYTES)
        _Result.model_validate(found)
    except (InputError, ValidationError):
        return {}
    return cast(JSONObject, found)


def _why(error: InputError | ValidationError) -> str:
    return explain(error) if isinstance(error, ValidationError) else str(error)
