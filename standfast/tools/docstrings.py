"""Reads docstrings in the styles of Google, NumPy and Sphinx: the text before the sections, and what parameters mean.

Libraries for this cost 40 to 300 ms at the import of a user's tools, of which only these two parts are needed.
"""

import re
from typing import NamedTuple

_OF_PARAMETERS = ("Args", "Arguments", "Parameters", "Other Parameters", "Keyword Args", "Keyword Arguments")
_GOOGLE = re.compile(rf"({'|'.join(_OF_PARAMETERS)}|Returns|Raises|Yields|Examples?|Notes?):\s*")
_NUMPY = re.compile(
    rf"({'|'.join(_OF_PARAMETERS)}|Returns|Yields|Receives|Raises|Warns|Warnings|See Also|Notes|References|Examples"
    r"|Attributes|Methods)\s*"
)
_UNDERLINE = re.compile(r"-{3,}\s*")
_FIELD = re.compile(r":(param|parameter|arg|argument|key|keyword|type|returns?|rtype|yields?|raises?)\b([^:]*):\s*(.*)")
_FIELDS_OF_PARAMETERS = ("param", "parameter", "arg", "argument", "key", "keyword")
_GOOGLE_ENTRY = re.compile(r"(\s+)(\w+)(?:\s*\(.*?\))?:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")


class Docstring(NamedTuple):
    """The text before the sections, and the descriptions of parameters by name."""

    summary: str
    parameters: dict[str, str]


def read_docstring(text: str) -> Docstring:
    """Read a docstring whose indentation is removed, as `inspect.getdoc` returns it."""
    lines = text.splitlines()
    start = next((at for at in range(len(lines)) if _begins_section(lines, at)), len(lines))
    return Docstring("\n".join(lines[:start]).strip(), _read_sections(lines, start))


def _begins_section(lines: list[str], at: int) -> bool:
    return bool(_GOOGLE.fullmatch(lines[at]) or _FIELD.match(lines[at])) or _is_numpy(lines, at)


def _is_numpy(lines: list[str], at: int) -> bool:
    return bool(_NUMPY.fullmatch(lines[at]) and at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1]))


def _read_sections(lines: list[str], start: int) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    names: list[str] = []  # of the parameters whose description the next lines continue
    style, indent = "", ""
    for at, line in enumerate(lines[start:], start):
        if _begins_section(lines, at):
            names, indent = [], ""
            if (field := _FIELD.match(line)) is not None:
                style = "sphinx"
                if field[1] in _FIELDS_OF_PARAMETERS and field[2].strip():
                    names = [field[2].split()[-1].lstrip("*\\")]
                    found[names[0]] = [field[3]]
            elif line.strip().removesuffix(":") in _OF_PARAMETERS:
                style = "numpy" if _is_numpy(lines, at) else "google"
            else:
                style = ""
        elif style == "google" and (entry := _GOOGLE_ENTRY.fullmatch(line)) and indent in ("", entry[1]):
            indent, names = entry[1], [entry[2]]
            found[entry[2]] = [entry[3]]
        elif style == "numpy" and (entry := _NUMPY_ENTRY.fullmatch(line)):
            names = [name.strip() for name in entry[1].split(",")]
            found |= {name: [] for name in names}
        elif line[:1].isspace():
            for name in names:
                found[name].append(line)
        elif line.strip():  # text that belongs to no parameter
            names = []
    return {name: " ".join(part.strip() for part in parts if part.strip()) for name, parts in found.items()}
