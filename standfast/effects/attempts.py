"""Claims a call for an attempt, and ends the attempt, for coroutines and for plain functions.

No attempt waits for a call that does not run: a cancelled, interrupted or forgotten attempt gives its call back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from standfast.effects import failures
from standfast.effects.calls import EffectCall, Ending, Found
from standfast.effects.keeper import keeper, on_keeper, recorded
from standfast.effects.kept import Kept
from standfast.effects.keys import is_cancel
from standfast.errors import InputError
from standfast.tools import Unknown
from standfast.tools.attempts import Verdict

_running: ContextVar[tuple[EffectCall, ...]] = ContextVar("_running", default=())  # the calls that run around this one


async def begin(call: EffectCall, ask: Callable[[str], Awaitable[Verdict | Unknown]]) -> Kept | Found:
    """Claim a call, or return its outcome.

    Args:
        ask: looks up a call that was lost, for the reason that it is given.
    """
    try:
        _check_not_inside(call)
        found = await on_keeper(call.claim())
        while found is Found.LOST:
            found = await on_keeper(call.settle(await ask(call.reason)))
        return found
    except InputError as error:
        raise failures.refused(error) from None
    except asyncio.CancelledError:
        await recorded(call.leave(), is_cancelled=True)
        raise
    except GeneratorExit:  # the event loop was closed, and nothing can be awaited
        keeper().begin(call.leave())
        raise


def begin_plain(call: EffectCall, ask: Callable[[str], Verdict | Unknown]) -> Kept | Found:
    """Do what `begin` does, in any thread."""
    try:
        _check_not_inside(call)
        found = keeper().begin(call.claim()).result()
        while found is Found.LOST:
            found = keeper().begin(call.settle(ask(call.reason))).result()
        return found
    except InputError as error:
        raise failures.refused(error) from None
    except BaseException:
        keeper().begin(call.leave())
        raise


async def end(call: EffectCall, error: BaseException, outcome: Kept | Ending) -> None:
    """Record how an attempt was broken off by an error, which the caller raises again."""
    if isinstance(error, GeneratorExit):
        keeper().begin(call.end(outcome))
    else:
        await recorded(call.end(outcome), is_cancelled=is_cancel(error))


def _check_not_inside(call: EffectCall) -> None:
    """Check that a call does not wait for itself.

    Raises:
        InputError: it would.
    """
    for outer in _running.get():
        if outer.is_ours and outer.given is not None and outer.given == call.given and outer.store is call.store:
            raise InputError(
                f"Effect '{call.name}' was called from within itself with the key '{outer.key.id}', for which it would "
                "wait for ever, and nothing was run: guard the function once, or give the inner call another key"
            )


@contextmanager
def inside(call: EffectCall) -> Iterator[None]:
    """Let what is called inside the block know that a call runs."""
    token = _running.set((*_running.get(), call))
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that is closed by the garbage collector ends in another context
            _running.reset(token)
