"""Tells people apart by their names, however these are spelled; every comparison of people uses it."""

import unicodedata
from collections.abc import Iterable


def person(name: str | None) -> str:
    """Return what is the same for all spellings of somebody's name; "" if there is none.

    Upper and lower case, full-width and other forms of a letter, spaces around it and invisible characters do not make
    another person.
    """
    if name is None:
        return ""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(sign for sign in plain if unicodedata.category(sign) not in _UNSEEN).strip()


_UNSEEN = ("Cf", "Cc")


def distinct_people(names: Iterable[str | None]) -> tuple[str, ...]:
    """Return each person once, in the order and the spelling in which they come first."""
    found: dict[str, str] = {}
    for name in names:
        if name is not None and (who := person(name)):
            found.setdefault(who, name)
    return tuple(found.values())
