"""An unreadable signal belongs to no one; while a codec or a storage is unavailable, its reader retries."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.codecs import OtherKey, Reversed
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import WorkflowExecutionSignaledEventAttributes
from temporalio.converter import DataConverter, ExternalStorage, StorageDriver

from standfast.temporal.activities.gates.gate_activities import _digest
from standfast.temporal.client.converters import DATA_CONVERTER, with_codec
from standfast.temporal.client.runs.ended_runs import UnreadableError, read_signal
from standfast.temporal.wire.turn_records import edit_digest


class Away(Reversed):
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise RuntimeError("no key server")

    decode = encode


class Unreachable(Reversed):
    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise ConnectionRefusedError("refused")


def converter(codec: Reversed) -> DataConverter:
    return with_codec(DATA_CONVERTER, codec)


async def test_what_another_key_has_written_is_read_as_nothing() -> None:
    payloads = await converter(OtherKey()).encode([{"id": "d1"}])
    assert list(await read_signal(converter(OtherKey()), payloads)) == [{"id": "d1"}]
    assert list(await read_signal(converter(Reversed()), payloads)) == []


@pytest.mark.parametrize("codec", [Away(), Unreachable()])
async def test_a_codec_that_is_away_is_tried_again(codec: Reversed) -> None:
    payloads = await converter(Reversed()).encode([{"id": "d1"}])
    with pytest.raises(UnreadableError, match="The codec is unavailable"):
        await read_signal(converter(codec), payloads)


class NoStorage(StorageDriver):
    def name(self) -> str:
        return "none"

    async def store(self, context: Any, payloads: Any) -> Any:
        raise NotImplementedError

    async def retrieve(self, context: Any, claims: Any) -> Any:
        raise RuntimeError("the storage is away")


JUNK = Payload(metadata={"encoding": b"json/plain"}, data=b"{nonsense")
STORED = Payload(
    metadata={"encoding": b"json/external-storage-reference"},
    data=b'{"driver_name": "none", "driver_claim": {"claim_data": {}}}',
)


async def test_junk_beside_an_external_storage_is_read_as_nothing() -> None:
    stored = replace(DATA_CONVERTER, external_storage=ExternalStorage(drivers=[NoStorage()]))
    assert list(await read_signal(stored, [JUNK])) == []
    with pytest.raises(UnreadableError, match="The external storage does not return a payload: the storage is away"):
        await read_signal(stored, [STORED])


async def test_the_digest_of_a_signal_waits_for_the_codec_and_junk_has_none() -> None:
    async def digest(codec: Reversed, *payloads: Payload) -> str | None:
        signal = WorkflowExecutionSignaledEventAttributes()
        signal.input.payloads.extend(payloads)
        client: Any = SimpleNamespace(data_converter=converter(codec))
        return await _digest(client, signal)

    written = await converter(Reversed()).encode([{"id": "d1"}])
    assert await digest(Reversed(), *written) == edit_digest({"id": "d1"})
    assert await digest(Reversed()) == edit_digest(None)
    assert await digest(Reversed(), JUNK) is None
    assert await digest(OtherKey(), JUNK) is None
    with pytest.raises(UnreadableError, match="The codec is unavailable"):
        await digest(Away(), *written)
