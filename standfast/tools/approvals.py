"""Approvals: the message that people read, who may decide, and what happens at the deadline."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, Literal, Union, cast, get_args

from pydantic import BaseModel
from typing_extensions import TypeVar

from standfast.durations import Duration
from standfast.errors import DefinitionError, InputError
from standfast.messages import clean_text, distinct_people, with_article
from standfast.tools.checks import check_choice, check_count, check_function, seconds, suggesting
from standfast.tools.shown_values import shown_values

_LONGEST_NAME = 256
_MOST_REJECTIONS = 100
_LEAST_REMINDER = 1.0  # seconds
_FEW = "name more of them, or a smaller quorum; an escalation inherits what it leaves out"

OnTimeout = Literal["fail", "approve", "reject", "escalate"]
Scope = Literal["run", "session", "agent"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # each wider than the one before
DepthFirst = dict[str, None]  # a set that keeps its order
T = TypeVar("T", default=None)  # the model of the value that people may edit


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class Approval(Generic[T]):
    """A gate: nothing continues until people have decided, or the deadline has passed.

    Args:
        message: the text that people read, or a function of `StepContext` that returns it; for a tool, of the
            `ToolCall`.
        show: of a pipeline's gate, the values that people see beside the message: a value, a mapping from labels to
            values, or a function of `StepContext` that returns one. A value is a `Markdown`, `Table`, `Diff`, an
            `Image` with its data, a text, or other JSON data. A decision is bound to the digest of all of it. By
            default, people see the outputs of the steps since the last gate; with `{}` they see nothing.
        edit: of a pipeline's gate, the pydantic model of a value that people may edit before they approve it; the
            edited value is then the gate's output. The value is the one of this model in `show`, or else the output of
            the step before.
        on_reject: of a pipeline's gate, what a rejection does. "end" ends the pipeline with "approval-rejected".
            "continue" continues with the rejection as the gate's output. The name of an earlier stage goes back to it:
            that stage runs again with the comment in `ctx.feedback`, then the stages after it, and then the gate asks
            again.
        max_rejections: how often a rejection goes back (3); the next one ends the pipeline.
        timeout: how long it waits: seconds, a text like "7d", or None for ever.
        on_timeout: "fail" ends the pipeline with "approval-timeout", "reject" with "approval-rejected"; "approve"
            continues; "escalate" asks `escalate_to`. For a tool, the first two are errors that the model reads.
        remind_every: how often people are reminded.
        approvers: the people who may decide: users and names of `groups`; anyone if empty. Names are compared without
            regard to spelling: "Ada" and "ada" are the same person.
        groups: users, and names of other groups, by name.
        quorum: how many different people must approve (1). More than one requires `approvers`, since anyone can use two
            names. One rejection is enough.
        exclude_requester: people who have taken part in the run (started it, sent a message or answered) cannot
            approve; and a person who edits a call cannot approve the edited call.
        escalate_to: an approval that replaces this one at the deadline, with its own timeout. It inherits the settings
            that it leaves out: message, approvers, groups, quorum, exclude_requester, remember.
        remember: of a tool, the widest scope in which an approver may also approve later calls like this one, by a
            standing approval: "run", "session" or "agent". None, the default, does not allow it.

    Raises:
        DefinitionError: naming the setting and the rule.
    """

    message: str | Callable[[Any], str] = ""
    show: Any = None
    edit: type[T] | None = None
    on_reject: str = "end"
    max_rejections: int | None = None
    timeout: Duration | None = None
    on_timeout: OnTimeout = "fail"
    remind_every: Duration | None = None
    approvers: Sequence[str] | None = None  # None, here and below: not given
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    quorum: int | None = None
    exclude_requester: bool | None = None
    escalate_to: Union["Approval[Any]", None] = None
    remember: Scope | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.message, str):
            check_function("approval.message, if it is not text,", self.message, "StepContext or ToolCall")
        self._check_shown()
        self._check_edited()
        self._check_rejections()
        check_choice("approval.on_timeout", self.on_timeout, ("fail", "approve", "reject", "escalate"))
        check_choice("approval.remember", self.remember or SCOPES[0], SCOPES)
        for name in ("timeout", "remind_every"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, seconds(getattr(self, name), f"approval.{name}"))
        if self.remind_every is not None and cast(float, self.remind_every) < _LEAST_REMINDER:
            raise DefinitionError(f"approval.remind_every must be at least {_LEAST_REMINDER:g} s")
        if self.approvers is not None:
            object.__setattr__(self, "approvers", _names(self.approvers, "approvers"))
        if not isinstance(self.groups, Mapping):
            raise DefinitionError(f"approval.groups must map names to users, got {self.groups!r}")
        groups = {name: _names(members, f"groups[{name!r}]") for name, members in self.groups.items()}
        object.__setattr__(self, "groups", MappingProxyType(groups))
        if not isinstance(self.exclude_requester, bool | None):
            raise DefinitionError(f"approval.exclude_requester must be True or False, got {self.exclude_requester!r}")
        for name in groups:
            _ = self._members(name, ())
        self._check_escalation()
        if groups and not any(one.approvers for one in self.chain):
            raise DefinitionError("approval.groups without approvers: anybody could decide; name groups in approvers=")
        self._check_quorum()

    def _check_shown(self) -> None:
        if callable(self.show):
            check_function("approval.show, if it is not a value,", self.show, "StepContext")
        elif self.show is not None:
            object.__setattr__(self, "show", copy.deepcopy(self.show))
            try:
                self.values(None)
            except InputError as error:
                raise DefinitionError(str(error)) from error

    def _check_edited(self) -> None:
        if self.edit is None:
            return
        if not (isinstance(self.edit, type) and issubclass(self.edit, BaseModel)):
            raise DefinitionError(f"approval.edit must be a pydantic model, got {self.edit!r:.80}")
        if self.on_reject == "continue":
            raise DefinitionError(
                f'approval.edit with on_reject="continue": a rejection would be the output instead of '
                f'{with_article(self.edit.__name__)}; use "end", or the name of an earlier stage'
            )

    @property
    def of_gate(self) -> list[str]:
        """The settings that only a pipeline's gate can have, and that also apply to its escalations."""
        usual = {"show": None, "edit": None, "on_reject": "end", "max_rejections": None}
        return [name for name, value in usual.items() if getattr(self, name) != value]

    @property
    def goes_back(self) -> bool:
        """Whether a rejection goes back to an earlier stage."""
        return self.on_reject not in ("end", "continue")

    def _check_rejections(self) -> None:
        if not isinstance(self.on_reject, str):
            raise DefinitionError(f'approval.on_reject: "end", "continue" or a stage\'s name, got {self.on_reject!r}')
        if self.max_rejections is not None:
            check_count("approval.max_rejections", self.max_rejections, 1)
            if self.max_rejections > _MOST_REJECTIONS:
                raise DefinitionError(f"approval.max_rejections must be at most {_MOST_REJECTIONS}")
            if not self.goes_back:
                raise DefinitionError("approval.max_rejections goes with on_reject=, an earlier stage's name")

    def shown(self, context: Any) -> str:
        """Return the message that people read.

        Args:
            context: the argument of the message, if the message is a function.

        Raises:
            InputError: the message is not text.
        """
        text = self.message if isinstance(self.message, str) else self.message(context)
        if not isinstance(text, str):
            raise InputError(f"approval.message must give a text, got {text!r:.80}")
        return clean_text(text)

    def values(self, context: Any) -> list[dict[str, Any]]:
        """Return the values that people see beside the message, as plain JSON.

        Raises:
            InputError: it cannot be shown.
        """
        return shown_values(self.given(context))

    def given(self, context: Any) -> Any:
        """Return the value of `show`."""
        return self.show(context) if callable(self.show) else self.show

    def _check_quorum(self) -> None:
        if self.quorum is not None:
            check_count("approval.quorum", self.quorum, 1)
        quorum, users = self.quorum or 1, self.users
        if quorum > 1 and not users:
            raise DefinitionError(
                f"approval.quorum is {quorum}: name approvers=, or one person could approve under several names"
            )
        if users and quorum > len(users):
            raise DefinitionError(f"approval.quorum is {quorum}, of {len(users)} people who may decide: {_FEW}")

    def _check_escalation(self) -> None:
        if self.on_timeout != "fail" and self.timeout is None:
            raise DefinitionError(f'approval.on_timeout="{self.on_timeout}" needs a timeout')
        if (self.on_timeout == "escalate") != (self.escalate_to is not None):
            raise DefinitionError('approval.on_timeout="escalate" goes with escalate_to=Approval(…), and only with it')
        if self.escalate_to is None:
            return
        if not isinstance(self.escalate_to, Approval):
            raise DefinitionError(f"approval.escalate_to must be an Approval, got {self.escalate_to!r}")
        to = self.escalate_to
        if given := to.of_gate:
            raise DefinitionError(f"approval.{given[0]} also applies to escalations; set it only in the first approval")
        approvers = self.approvers if to.approvers is None else to.approvers
        inherited = replace(
            to,
            message=to.message or self.message,
            show=self.show,
            edit=self.edit,
            approvers=approvers,
            groups=(to.groups or self.groups) if approvers else {},
            quorum=self.quorum if to.quorum is None else to.quorum,
            exclude_requester=self.exclude_requester if to.exclude_requester is None else to.exclude_requester,
            remember=to.remember or self.remember,
        )
        object.__setattr__(self, "escalate_to", inherited)

    @property
    def chain(self) -> "tuple[Approval[Any], ...]":
        """This approval, and the approvals that replace it at their deadlines."""
        return (self,) if self.escalate_to is None else (self, *self.escalate_to.chain)

    @property
    def users(self) -> tuple[str, ...]:
        """The people who may decide, including members of groups; if empty, anyone may."""
        return distinct_people(self._expanded(self.approvers or (), ()))

    @property
    def asked_groups(self) -> tuple[str, ...]:
        """The groups among the approvers."""
        return tuple(name for name in self.approvers or () if name in self.groups)

    def _expanded(self, names: Sequence[str], above: tuple[str, ...]) -> DepthFirst:
        found: DepthFirst = {}
        for name in names:
            found |= self._members(name, above) if name in self.groups else {name: None}
        return found

    def _members(self, group: str, above: tuple[str, ...]) -> DepthFirst:
        if group in above:
            raise DefinitionError(f"approval.groups: {' > '.join((*above, group))} is a cycle")
        members = self._expanded(self.groups[group], (*above, group))
        if not members:
            raise DefinitionError(f"approval.groups: {group!r} has no members")
        return members


def is_wider(scope: str, widest: str) -> bool:
    """Whether a scope of standing approvals is wider than another."""
    return [*SCOPES].index(scope) > [*SCOPES].index(widest)  # type: ignore[arg-type]


def check_of_call(approval: Approval[Any], tool: str) -> Approval[Any]:
    """Return a tool's approval, unless it has a setting that is only for a pipeline's gate.

    Raises:
        DefinitionError: it has one.
    """
    if given := approval.of_gate:
        own = "; people edit its arguments, by its own schema" if given[0] == "edit" else ""
        raise DefinitionError(f"Tool '{tool}': approval.{given[0]} is for a pipeline's gate, not for a call{own}")
    return approval


def _names(value: object, what: str) -> tuple[str, ...]:
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence | set | frozenset):
        raise DefinitionError(f"approval.{what} must be a list of names, got {value!r}")
    names = tuple(sorted(value) if isinstance(value, set | frozenset) else value)
    for name in names:
        if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME:
            raise DefinitionError(
                f"approval.{what} must be a list of names of at most {_LONGEST_NAME} characters, got {name!r:.80} in it"
            )
    return cast("tuple[str, ...]", names)
