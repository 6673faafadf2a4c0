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
    names: list[str] = []  # of the parameters whose descriptions go on
    style, indent = "", ""
    for at, line in enumerate(lines[start:], start):
        if _begins_section(lines, at) and _FIELD.match(line) is None:
            is_of_parameters = line.strip().removesuffix(":") in _OF_PARAMETERS
            names, indent, style = [], "", ("numpy" if _is_numpy(lines, at) else "google") if is_of_parameters else ""
        elif (entry := _read_entry(line, style, indent)) is None:
            for name in names:
                found[name].append(line)
        else:
            names, text = entry
            indent = indent or line[: len(line) - len(line.lstrip())]
            found |= {name: [text] for name in names}
    return {name: " ".join(part.strip() for part in parts if part.strip()) for name, parts in found.items()}


def _read_entry(line: str, style: str, indent: str) -> tuple[list[str], str] | None:
    """Return the parameters that a line describes, and how it begins to; None if the line continues another one."""
    if (field := _FIELD.match(line)) is not None:
        is_of_parameter = field[1] in _FIELDS_OF_PARAMETERS and field[2].strip()
        return ([field[2].split()[-1].lstrip("*\\")] if is_of_parameter else []), field[3]
    if style == "google" and (entry := _GOOGLE_ENTRY.fullmatch(line)) and indent in ("", entry[1]):
        return [entry[2]], entry[3]
    if style == "numpy" and (entry := _NUMPY_ENTRY.fullmatch(line)):
        return [name.strip() for name in entry[1].split(",")], ""
    return ([], "") if line[:1].strip() else None  # text that belongs to no parameter
