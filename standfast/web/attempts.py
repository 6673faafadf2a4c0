"""Counts wrong attempts at signing in: after a few, an address has to wait, longer each time."""

import time
from ipaddress import IPv6Address, ip_address

_FREE = 5  # wrong attempts without a wait
_LONGEST = 60.0  # seconds
_FORGOTTEN = 900.0  # seconds after the last one
_MOST = 10_000  # addresses that are remembered


class Attempts:
    """Counts wrong attempts by address; all addresses of one IPv6 network are one."""

    def __init__(self) -> None:
        self._wrong: dict[str, tuple[int, float]] = {}  # how many, and when the last one was; the latest last

    def wait(self, address: str) -> float:
        """Return for how many seconds an address has to wait."""
        wrong, last = self._wrong.get(_network(address), (0, 0.0))
        if wrong < _FREE:
            return 0.0
        return max(0.0, last + min(2.0 ** (wrong - _FREE), _LONGEST) - time.monotonic())

    def failed(self, address: str) -> int:
        """Note a wrong attempt, and return how many there were."""
        network, now = _network(address), time.monotonic()
        wrong, last = self._wrong.pop(network, (0, now))
        wrong = 1 if now - last > _FORGOTTEN else wrong + 1
        if len(self._wrong) >= _MOST:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[network] = (wrong, now)
        return wrong


def _network(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(int(found) >> 64) if isinstance(found, IPv6Address) and found.ipv4_mapped is None else address
