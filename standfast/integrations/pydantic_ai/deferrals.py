"""Answers calls that pydantic-ai defers: approvals by the verdicts of gates, others by results that callers provide."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import DeferredToolRequests, DeferredToolResults, ModelRetry, RunContext, ToolApproved, ToolDenied
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturn
from pydantic_core import PydanticSerializationError

from standfast.agent_loop import Decision
from standfast.errors import InputError
from standfast.integrations.pydantic_ai.conversations import KeptTool, Turn
from standfast.integrations.pydantic_ai.gates import Gates, Verdict
from standfast.integrations.pydantic_ai.transcripts import arguments_of
from standfast.messages import ToolCall

_ANY: TypeAdapter[Any] = TypeAdapter(Any)
_RETURN: TypeAdapter[ToolReturn] = TypeAdapter(ToolReturn)


@dataclass(slots=True)
class Deferrals:
    """The calls of a turn that wait for people or callers."""

    turn: Turn
    gates: Gates

    async def answer(
        self, ctx: RunContext[Any], requests: DeferredToolRequests, requesters: Sequence[str | None]
    ) -> tuple[DeferredToolResults, dict[str, Verdict]] | None:
        """Return the results of deferred calls, with the verdicts on them, once all exist; None before."""
        verdicts: dict[str, Verdict] | None = {}
        if requests.approvals:
            calls = [_call(part) for part in requests.approvals]
            tools = [_tool(ctx, part.tool_name) for part in requests.approvals]
            verdicts = await self.gates.reach(self.turn, ctx.run_step, calls, tools, requesters)
        results = {part.tool_call_id: await self._load(ctx, part) for part in requests.calls}
        if verdicts is None or None in results.values():
            return None
        approvals = {call_id: _result(verdict) for call_id, verdict in verdicts.items()}
        metadata = {part.tool_call_id: await self._load_metadata(ctx, part) for part in requests.approvals}
        given = {call_id: one for call_id, one in metadata.items() if one is not None}
        return DeferredToolResults(calls=results, approvals=dict(approvals), metadata=given), verdicts

    async def _load(self, ctx: RunContext[Any], part: ToolCallPart) -> Any:
        kept = await self.turn.load_result(ctx.run_step, _place(ctx, part.tool_call_id))
        match None if kept is None else kept["kind"]:
            case None:
                return None
            case "retry":
                return ModelRetry(kept["message"])
            case "failed":
                return ToolFailed(kept["message"])
        return _RETURN.validate_python(kept["result"])

    async def _load_metadata(self, ctx: RunContext[Any], part: ToolCallPart) -> dict[str, Any] | None:
        kept = await self.turn.load_result(ctx.run_step, _place(ctx, part.tool_call_id))
        return kept["metadata"] if kept is not None and kept["kind"] == "approval" else None

    async def bring(self, results: DeferredToolResults) -> None:
        """Store a caller's decisions, or results; what was stored before stays.

        Raises:
            InputError: a decision does not count, or a call does not wait; or metadata is not JSON.
        """
        decisions, metadata = [], _metadata_of(results)
        pending = {one.gate: one for one in await self.gates.pending()}
        for call_id, approval in results.approvals.items():
            said = {"gate": call_id, "by": results.answered_by.get(call_id)}
            digest = (results.metadata.get(call_id) or {}).get("digest")
            if digest is None and call_id in pending:  # the caller has the requests of this exact turn
                await self._check_not_repeated(call_id)
                digest = pending[call_id].digest
            said["digest"] = digest
            match approval:
                case True | ToolApproved():
                    edit = None if approval is True else approval.override_args
                    decisions.append(Decision(**said, decision="approve", edit=edit))
                case _:
                    comment = approval.message if isinstance(approval, ToolDenied) else None
                    decisions.append(Decision(**said, decision="reject", comment=comment))
        if decisions:
            await self.gates.decide(decisions)
        if not results.calls and not metadata:
            return
        step, waiting = await self.turn.last_calls()
        for call_id, given in metadata.items():
            await self.turn.keep_result(step, waiting.index(call_id), {"kind": "approval", "metadata": given})
        for call_id, result in results.to_tool_call_results().items():
            if call_id in results.calls:
                if call_id not in waiting:
                    raise InputError(f"Conversation {self.turn.conversation.name} has no waiting call {call_id!r}")
                await self.turn.keep_result(step, waiting.index(call_id), _data_of(result))

    async def _check_not_repeated(self, call_id: str) -> None:
        """Check that an id names only one call: repeated results must not decide on a later call.

        Raises:
            InputError: an earlier call of the turn has the same id.
        """
        step, _ = await self.turn.last_calls()
        for earlier in range(1, step):
            if await self.turn.load_verdict(earlier, call_id) is not None:
                raise InputError(
                    f"Conversation {self.turn.conversation.name}: the model has used call id {call_id!r} twice in "
                    "this turn. Specify which call is meant: "
                    f"DeferredToolResults(metadata={{{call_id!r}: {{'digest': …}}}})"
                )


def shown(requests: DeferredToolRequests, pending: Sequence[Any]) -> None:
    """Tell callers that get requests what people are asked, and by which digest they decide."""
    for one in pending:
        told = {"message": one.message, "digest": one.digest, "approvers": list(one.approvers)}
        told |= {} if one.deadline is None else {"deadline": one.deadline.isoformat()}
        requests.metadata[one.gate] = {**requests.metadata.get(one.gate, {}), **told}


def _result(verdict: Verdict) -> ToolApproved | ToolDenied:
    if verdict.refused is not None:
        return ToolDenied(verdict.refused)
    return ToolApproved(override_args=verdict.edit)


def _call(part: ToolCallPart) -> ToolCall:
    return ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=arguments_of(part))


def _tool(ctx: RunContext[Any], name: str) -> KeptTool:
    tools = None if ctx.tool_manager is None else ctx.tool_manager.tools
    declared = (tools or {})[name].tool_def
    return KeptTool(name=name, description=declared.description or "", parameters=declared.parameters_json_schema)


def _place(ctx: RunContext[Any], call_id: str) -> int:
    """Return the position of a call in the model's response."""
    response = next((one for one in reversed(ctx.messages) if isinstance(one, ModelResponse)), None)
    ids = [] if response is None else [call.tool_call_id for call in response.tool_calls]
    return ids.index(call_id) if call_id in ids else len(ids)


def _metadata_of(results: DeferredToolResults) -> dict[str, Any]:
    """Return the extra data for the tools of approved calls, besides their arguments."""
    try:
        return {
            call_id: _ANY.dump_python(results.metadata[call_id], mode="json")
            for call_id in results.approvals
            if call_id in results.metadata
        }
    except PydanticSerializationError as error:
        raise InputError(f"DeferredToolResults.metadata must be JSON: {error}") from None


def _data_of(result: Any) -> dict[str, Any]:
    if isinstance(result, ModelRetry):
        return {"kind": "retry", "message": result.message}
    if isinstance(result, ToolFailed):
        return {"kind": "failed", "message": result.message}
    whole = result if isinstance(result, ToolReturn) else ToolReturn(result)
    return {"kind": "return", "result": _ANY.dump_python(whole, mode="json")}
