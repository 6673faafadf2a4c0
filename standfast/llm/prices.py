"""Computes the cost of a call: from a price given by the user, or from the maintained library `genai-prices`.

A `Meter` also reports the usage of an answer that is cut off.
"""

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from standfast.errors import DefinitionError
from standfast.messages import LLMResponse, Usage

_MILLION = 1_000_000
# US dollars for one call of a hosted tool, on top of its tokens; by the provider's name for the tool.
_FEES = {"anthropic": {"web_search": 0.01}, "openai": {"web_search": 0.01, "file_search": 0.0025}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a model's tokens, in US dollars per million.

    Args:
        input, output: the prices of all tokens; reasoning is output.
        cached, cache_write: the prices of input that is read from the provider's cache or written to it; `input` by
            default.
        hosted: the price of one call, by the provider's name for a hosted tool, such as "web_search".

    Raises:
        DefinitionError: a price is not a number of at least 0.
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None
    hosted: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached", "cache_write"):
            value = getattr(self, name)
            if value is None and name in ("cached", "cache_write"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise DefinitionError(f"price.{name} must be US dollars per million tokens, got {value!r}")

        for name, value in self.hosted.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise DefinitionError(f"price.hosted[{name!r}] must be US dollars per call, got {value!r}")

    def of(self, usage: Usage) -> float:
        """Return the cost of a call."""
        read, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        rest = max(0, usage.input_tokens - read - written)  # some servers count those separately
        cached = self.input if self.cached is None else self.cached
        cache_write = self.input if self.cache_write is None else self.cache_write
        return (
            rest * self.input + read * cached + written * cache_write + usage.output_tokens * self.output
        ) / _MILLION


def priced(response: LLMResponse, *, provider: str, model: str, price: Price | None) -> LLMResponse:
    """Return an answer with its cost, if known."""
    usage = response.usage
    if usage is None or response.cost is not None:
        return response
    cost = price.of(usage) if price is not None else _listed(usage, provider, model)
    if cost is None or cost < 0:
        return response
    fees = {**_FEES.get(provider, {}), **({} if price is None else price.hosted)}
    called = sum(fees.get(call.name, 0.0) for call in response.hosted or () if call.outcome != "failed")
    return response.model_copy(update={"cost": cost + called})


class Meter:
    """Notes what a provider reports while it answers. An error that cuts the answer off gets that as its `usage`.

    Args:
        price: returns an answer with its cost.
    """

    def __init__(self, price: Callable[[LLMResponse], LLMResponse]) -> None:
        self._price = price
        self._noted: Any = None

    def note(self, usage: Usage | Mapping[str, Any] | None) -> None:
        """Take the usage of the whole answer so far."""
        self._noted = usage or self._noted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._noted is None:
            return
        with suppress(Exception):  # the error matters more
            note_usage_before(error, self._price(LLMResponse.read({"usage": self._noted})).used)


def note_usage_before(error: BaseException, usage: Usage | None) -> None:
    """Add to what an error reports of the usage before it."""
    if usage is not None:
        with suppress(Exception):  # an error without attributes is raised unchanged
            error.usage = usage + usage_before(error)  # type: ignore[attr-defined]


def usage_before(error: BaseException) -> Usage | None:
    """Return what the provider had reported when this error cut its answer off; None if nothing is known."""
    usage = getattr(error, "usage", None)
    return usage if isinstance(usage, Usage) else None


def _listed(usage: Usage, provider: str, model: str) -> float | None:
    """Return the cost from the library's list, if it is installed and has the model."""
    if importlib.util.find_spec("genai_prices") is None:
        return None
    prices: Any = importlib.import_module("genai_prices")
    used = prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        return float(prices.calc_price(used, model_ref=model, provider_id=provider).total_price)
    except (LookupError, ValueError):
        return None


def check_price(price: object) -> None:
    if price is not None and not isinstance(price, Price):
        raise DefinitionError(f"price must be a Price, got {price!r:.80}")
