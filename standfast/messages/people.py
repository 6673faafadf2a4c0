"""Compares people by name, regardless of spelling; every comparison of people uses it."""

import unicodedata
from collections.abc import Iterable


def person(name: str | None) -> str:
    """Return a key that is the same for all spellings of a person's name; "" without a name.

    Case, full-width and other forms of a letter, spaces around the name and invisible characters do not make a
    different person.
    """
    if name is None:
        return ""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(sign for sign in plain if unicodedata.category(sign) not in _UNSEEN).strip()


_UNSEEN = ("Cf", "Cc")


def distinct_people(names: Iterable[str | None]) -> tuple[str, ...]:
    """Return each person once, in the order and the spelling of the first appearance."""
    found: dict[str, str] = {}
    for name in names:
        if name is not None and (who := person(name)):
            found.setdefault(who, name)
    return tuple(found.values())
