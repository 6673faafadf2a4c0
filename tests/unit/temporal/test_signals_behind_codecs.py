"""A signal that a codec refuses is nobody's; while the codec is away, whoever reads the history tries again."""

from collections.abc import Sequence

import pytest
from support.codecs import OtherKey, Reversed
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter

from standfast.errors import InputError, StandfastError
from standfast.temporal.client.converters import DATA_CONVERTER, with_codec
from standfast.temporal.client.run_ends import read_signal


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
    with pytest.raises(StandfastError, match="The codec is away") as away:
        await read_signal(converter(codec), payloads)
    assert not isinstance(away.value, InputError)
