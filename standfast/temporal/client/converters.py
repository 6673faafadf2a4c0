"""Converts values to payloads with pydantic, and encodes them with a codec if there is one."""

import copy
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec
from temporalio.exceptions import FailureError

from standfast.errors import InputError
from standfast.messages import error_text, with_article

CODEC = "STANDFAST_CODEC"
STORAGE = "The external storage"
_HOW = f"{CODEC}=MODULE:ATTRIBUTE names the codec, as do --codec and connect(codec=…)"


class _Converter(PydanticPayloadConverter):
    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        try:
            return super().from_payloads(payloads, type_hints)
        except KeyError as error:  # of an encoding
            what = str(error.args[0]).removeprefix("Unknown payload encoding ")
            raise InputError(f"A value is encoded as {what!r}, which needs the codec that wrote it: {_HOW}") from error


_ONE = _Converter()


class _Shared(_Converter):
    """One shared converter. The SDK would keep one per activation: 20 KB more for each parked run (measured)."""

    def __new__(cls) -> PydanticPayloadConverter:  # type: ignore[misc]
        return _ONE


DATA_CONVERTER = replace(pydantic_data_converter, payload_converter_class=_Shared)


@dataclass(frozen=True)
class _WithoutStorage(DataConverter):
    """Never reads a payload as a reference to an external storage, since there is none.

    The SDK would do so for any sender. Without the storage, the SDK then fails the workflow task again and again
    (measured).
    """

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


@dataclass(frozen=True)
class _WithStorage(DataConverter):
    """Explains the failures of an external storage in words."""

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        try:
            return await super()._external_retrieve_payload_sequence(payloads)
        except FailureError:  # the storage decides whether the run fails
            raise
        except Exception as error:
            raise InputError(f"{STORAGE} cannot read a value: {error_text(error)}") from error


def of_worker(converter: DataConverter) -> DataConverter:
    """Return the converter of a worker: the given one, but only its own storage's payloads can wedge a run."""
    if type(converter) is not DataConverter:
        return converter
    kind = _WithoutStorage if converter.external_storage is None else _WithStorage
    return kind(**{one.name: getattr(converter, one.name) for one in fields(converter) if one.init})


def client_of_worker(client: Client) -> Client:
    """Return a client like the given one, with the converter of a worker."""
    config = client.config(active_config=True)
    if (converter := of_worker(config["data_converter"])) is config["data_converter"]:
        return client
    other = copy.copy(client)
    other._init_from_config({**config, "data_converter": converter})
    return other


class _Codec(PayloadCodec):
    """A codec that explains its failures in words."""

    def __init__(self, codec: PayloadCodec) -> None:
        self._codec = codec

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self._codec.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        try:
            return await self._codec.decode(payloads)
        except Exception as error:
            kind = type(self._codec).__name__
            raise InputError(
                f"The codec {kind} cannot read a value ({type(error).__name__}: {error}): was it "
                f"written by this codec, with the same key? {_HOW}"
            ) from error


def with_codec(converter: DataConverter, codec: PayloadCodec | str | None) -> DataConverter:
    """Return a converter that encodes all values, including failure messages, with a codec.

    Args:
        codec: a codec, or the `module:attribute` of one or of a callable that makes one. If None, the converter's own,
            or else the one that STANDFAST_CODEC names.

    Raises:
        InputError: no codec was found there.
    """
    if codec is None and converter.payload_codec is None:
        codec = os.environ.get(CODEC) or None
    if codec is None:
        return converter
    found = _load(codec) if isinstance(codec, str) else codec
    return replace(
        converter, payload_codec=_Codec(found), failure_converter_class=DefaultFailureConverterWithEncodedAttributes
    )


def _load(where: str) -> PayloadCodec:
    module, _, attribute = where.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        made = found() if callable(found) else found
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"There is no codec at {where!r}: {error}. {_HOW}") from error
    except Exception as error:  # whatever the user's code raises
        raise InputError(f"The codec at {where!r} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, PayloadCodec):
        raise InputError(
            f"{where!r} is {with_article(type(made).__name__)}, not a temporalio.converter.PayloadCodec. {_HOW}"
        )
    return made
