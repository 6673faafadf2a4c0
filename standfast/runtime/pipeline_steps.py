"""Makes the inputs of a pipeline's steps and stores their results; the first stored result stays."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from pydantic_core import to_json

from standfast.agent_loop import digest_of
from standfast.checkpoints import StepResult
from standfast.errors import InputError
from standfast.messages import JSONObject, cut
from standfast.pipeline_loop import REJECTED, Done, Evaluate, Evaluations, RunStep
from standfast.pipeline_loop.evaluations import check_assigned, read_result, read_value
from standfast.pipelines import Step
from standfast.runtime.pipeline_results import Kept
from standfast.runtime.users_functions import read_in_time
from standfast.tools import Approval

_SHOWN_BYTES = 64 * 1024  # of the values that people see at a gate


def verdict_result(output: Any, value: Any = None) -> StepResult:
    """Return a rejection, or an approval of an editable value, as the result of its step."""
    verdict = output if value is None else {**output, "edit": value}
    return StepResult(status="complete", response=to_json(verdict).decode())


CallUsers = Callable[[str, str, Callable[[], Any]], Awaitable[Any]]
"""Calls a function of the user's for a step, in the driver's own way; the second text names its result."""


class StepRecords:
    """The records of the steps of one run.

    Args:
        evaluations: returns the functions of the run, in its current state.
    """

    def __init__(self, kept: Kept, evaluations: Callable[[], Evaluations], call: CallUsers) -> None:
        self._kept, self._evaluations, self._call = kept, evaluations, call

    async def evaluate(self, action: Evaluate, step: Any) -> Done:
        """Return the value of a function of a stage, or of a nested pipeline."""
        path, kept = action.path, self._kept
        if not await kept.find(action.key):
            done, value = await self._call(path, action.what, lambda: self._evaluations().evaluate(action))
            if done.reason is not None:
                await kept.check_type(f"{path}?type", step, done)
                return cast(Done, done)
            await kept.keep(action.key, value)
            if action.what == "input":
                await kept.keep_type(f"{path}?type", step)
        return action.done(kept[action.key])

    async def given_to(self, path: str, step: Step[Any], *, tries: int = 0) -> Any:
        """Return the input for a step's agent or tool.

        Args:
            tries: the number of failed attempts. The input is made again after each, since people may have edited its
                sources.
        """
        check_assigned(step)
        key = f"{path}?with{tries or ''}"
        if not await self._kept.find(key):
            given = await self._call(path, "input", lambda: step.make_input(self._evaluations().context(path)))
            await asyncio.gather(self._kept.keep_type(self.type_key(path, tries), step), self._kept.keep(key, given))
        return self._kept[key]

    async def context_for(self, path: str, step: Step[Any], *, tries: int = 0) -> Any:
        """Return the context for the run of a step's agent, made once per attempt; None if the step gives none."""
        if step.context is None:
            return None
        key = f"{path}?context{tries or ''}"
        if not await self._kept.find(key):
            made = await self._call(path, "context", lambda: step.make_context(self._evaluations().context(path)))
            await self._kept.keep(key, made)
        return self._kept[key]

    @staticmethod
    def type_key(path: str, tries: int = 0) -> str:
        """Return the key of the stored type with which a step began."""
        return f"{path}?type{tries or ''}"

    async def asked_at(self, path: str, step: Step[Any], *, place: str | None = None, **more: Any) -> JSONObject:
        """Return the question to people at a gate, the contents that they see beside it, and the digest of both.

        `later` has the question and its digest for each escalation, whose people see the same contents. If people may
        edit a value, `edits` is set, and the record also has the `value`.

        Args:
            place: the place where its verdict is stored; its path if None.
            more: data that is stored with it.
        """
        place = place or path
        key = f"{place}?gate"
        if not await self._kept.find(key):
            texts = await self._call(path, "message", lambda: self._messages(path, cast(Approval, step.approval)))
            shown, value = await self._call(path, "show", lambda: self._evaluations().shown_at(path, step))
            seen = [shown] if shown else []
            asked: list[JSONObject] = [{"message": text, "digest": digest_of(place, text, *seen)} for text in texts]
            found = {"later": asked[1:], "shown": shown, **more}
            edited = {} if value is None else {"edits": True, "value": value}
            await self._kept.keep(key, {**asked[0], **{name: data for name, data in found.items() if data}, **edited})
        kept: JSONObject = self._kept[key]
        return kept

    def _messages(self, path: str, approval: Approval) -> list[str]:
        context = self._evaluations().context(path)
        return [cut(one.shown(context), _SHOWN_BYTES) for one in approval.chain]

    async def keep_verdict(self, action: RunStep, step: Step[Any], output: Any, place: str | None = None) -> Done:
        """Store the verdict of a gate that does not end the pipeline, and the value that people could edit.

        A rejection, and an approval of such a value, is also a result from which the pipeline continues.

        Args:
            place: the place where its verdict is stored; its path if None.
        """
        place, value = place or action.path, None
        if action.step.edits and action.done(output).value != REJECTED:
            value = await self.keep_value(action.path, step, output, place)
        done = action.done(await self._kept.keep(place, output))
        if done.value == REJECTED or value is not None:
            await self._kept.keep(f"{action.path}?result", verdict_result(output, value).model_dump())
        return done

    async def keep_value(self, path: str, step: Step[Any], output: Any, place: str) -> Any:
        """Store a gate's value, edited or as shown; return the stored one.

        Raises:
            InputError: it does not fit the model after a deploy has changed it.
        """
        kept, value = self._kept, output["edit"]
        if await kept.find(f"{place}?value"):
            return kept[f"{place}?value"]
        if value is None and await kept.find(f"{place}?gate"):
            value = kept[f"{place}?gate"].get("value")
        if value is None:  # it was approved before values were editable
            _, value = await self._call(path, "show", lambda: self._evaluations().shown_at(path, step))
        done, value = await self._call(path, "edit", lambda: read_in_time(step, lambda: read_value(step, value)))
        if done.reason is not None:
            raise InputError(f"{done.error}. It was approved, and does not fit today's {step.shape.__name__}")
        return await kept.keep(f"{place}?value", value)

    async def came_to(self, path: str, step: Step[Any], result: StepResult, began: str | None) -> Done:
        """Return the meaning of a step's result. It is stored with its output, unless the step failed.

        Args:
            began: the key of the type with which the step began; None if it was not begun here.

        Raises:
            InputError: the output does not fit because of a deploy.
        """
        kept = self._kept
        done, output = await self._call(path, "output", lambda: read_in_time(step, lambda: read_result(step, result)))
        if done.reason is None:
            await kept.keep(f"{path}?result", result.model_dump())
            await kept.keep(path, output)
        elif began is not None:
            await kept.check_type(began, step, done)
        return cast(Done, done)
