"""The activity that writes a run as a checkpoint."""

from typing import Any

from pydantic_core import to_json

from standfast.agent_loop import unanswered
from standfast.checkpoints import Checkpoint, Question, signed
from standfast.messages import Usage
from standfast.temporal.activities.activity_guards import Guard
from standfast.temporal.activities.agent_host import AgentHost
from standfast.temporal.activities.json_activities import json_activity
from standfast.temporal.activities.open_gates import arguments_of, load_edit
from standfast.temporal.activities.transcripts import Transcript
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import Exported, ExportReference
from standfast.temporal.wire.limits import CHECKPOINT_BYTES
from standfast.temporal.wire.turn_records import held_in


class ExportActivities:
    """Exports the runs of a worker's agents."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.export]

    @json_activity(names.EXPORT)
    async def export(self, reference: ExportReference) -> Exported:
        """Return the run as a checkpoint, or the reason why it cannot be exported."""
        with Guard(self._host, beats=False):
            transcript = await Transcript.load(self._host, await self._host.located(reference))
            asked = {question["tool_call_id"] for question in reference["questions"]}
            if "at_gate" not in reference and any(call.id not in asked for call in unanswered(transcript.messages)):
                await transcript.commit(turn=reference["turn"], questions=reference["questions"])
            located = await self._host.located(reference)
            questions = tuple([await self._whole(located, Question(**question)) for question in reference["questions"]])
            usage = reference.get("usage")
            said = await transcript.said()  # no answer was written with them yet
            made = Checkpoint(
                messages=(*transcript.messages, *said),
                iterations=reference["iterations"],
                usage=Usage() if usage is None else Usage(**usage),
                pending_tool_use_id=questions[0].tool_call_id if questions else None,
                questions=questions or None,
                exported_from=transcript.session.key,
            )
            key = self._host.checkpoint_key
            checkpoint = signed(made, self._host.agent().name, key).model_dump(mode="json")
            if (size := len(to_json(checkpoint))) > CHECKPOINT_BYTES:
                error = f"export: the run is {size:,} bytes, more than {CHECKPOINT_BYTES:,}; read it from the store"
                return {"error": error, "seq": transcript.seq}
            return {"checkpoint": checkpoint, "seq": transcript.seq}

    async def _whole(self, reference: ExportReference, question: Question) -> Question:
        """Return a gate with the arguments, or the held content, that are too large for a history."""
        if question.gate is None:
            return question
        run = reference["run"]
        record = await self._host.load_record(run, reference["turn"])
        if question.is_held:
            return held_in(record, question.gate)
        approvals = [dict(one) for one in question.gate["approvals"]]
        for one in approvals:
            if one.get("edit") is not None:
                one["edit"] = await load_edit(self._host, run, one["edit"]["digest"])
        arguments = arguments_of(record, str(question.tool_call_id))
        return question.model_copy(update={"gate": {**question.gate, "approvals": approvals, "arguments": arguments}})
