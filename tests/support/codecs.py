"""A user's payload codec, and faulty ones, importable by name for commands."""

from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

ENCODING = b"binary/secret"


class Reversed(PayloadCodec):
    """Its output cannot be read by chance."""

    key = b"ours"

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": ENCODING}, data=self.key + payload.SerializeToString()[::-1])
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decoded(payload) for payload in payloads]

    def _decoded(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        if not payload.data.startswith(self.key):
            raise ValueError("another key")
        return Payload.FromString(payload.data[len(self.key) :][::-1])


class OtherKey(Reversed):
    key = b"other"


CODEC = Reversed()
NO_CODEC = 7


def broken() -> PayloadCodec:
    raise RuntimeError("the key is not there")
