"""Decisions of people at gates, and who may make one by the access rule of an agent or a pipeline."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from standfast.agent_loop.argument_patterns import Remember
from standfast.messages import Record, check_whole, clean_text, cut, error_text, json_problem


class Decision(Record):
    """What a person decided at a gate.

    Args:
        gate: its name: the path of the step, or the id of the tool call.
        by: who; needed where not everybody may decide.
        digest: of the version that the person saw, if known; a decision with another digest than the gate's is refused.
        edit: replaces the value shown.
        remember: also approves later calls like this one, where the tool's `Approval` allows it.
        standing: the id of the standing approval that made it in advance. Senders cannot set this.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gate: Annotated[str, Field(max_length=1_000)]
    decision: Literal["approve", "reject"]
    by: Annotated[str, Field(max_length=256)] | None = None
    comment: Annotated[str, Field(max_length=4_096)] | None = None
    digest: Annotated[str, Field(max_length=256)] | None = None
    edit: Any = None
    remember: Remember | None = None
    standing: Annotated[str, Field(max_length=64)] | None = None

    @field_validator("gate", "by", "digest")
    @classmethod
    def _check(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if value is None else check_whole(value, str(info.field_name))

    @field_validator("comment")
    @classmethod
    def _clean(cls, value: str | None) -> str | None:
        return value if value is None else clean_text(value)

    @field_validator("edit", mode="before")
    @classmethod
    def _is_json(cls, value: Any) -> Any:
        if problem := json_problem(value):
            raise ValueError(problem)
        return value


def access_problem(rule: Callable[[str | None], object] | None, user: str | None) -> str | None:
    """Return why an access rule of an agent or a pipeline refuses somebody, or None if it does not."""
    if rule is None:
        return None
    try:
        verdict = rule(user)
    except (Exception, SystemExit) as error:
        return f"the access rule raised {type(error).__name__} for {user}: {cut(error_text(error), 500)}"
    if not isinstance(verdict, bool):
        return f"the access rule gave {verdict!r:.80} for {user}, not True or False"
    return None if verdict else f"{user} may not"


def decider_problem(rule: Callable[[str | None], object] | None, decision: Decision) -> str | None:
    """Return why an access rule keeps a person from deciding at a gate; None if it does not."""
    denied = access_problem(rule, decision.by)
    return None if denied is None else f"gate {decision.gate}: {denied} decide it"
