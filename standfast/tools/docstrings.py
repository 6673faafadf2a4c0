"""Reads docstrings in the styles of Google, NumPy and Sphinx: the text before the sections, and what parameters are."""

import re
from typing import Literal, NamedTuple

from standfast.messages import clean_text

_HEADING = "Args|Arguments|Parameters|Other Parameters|Keyword Args|Keyword Arguments"
_OTHERS = "Returns|Receives|Raises|Warns|Yields|Examples?|Notes?|Attributes|Methods|See Also|References|Warnings"
_STYLES: list[tuple[Literal["numpy", "google", "sphinx"], re.Pattern[str]]] = [
    ("numpy", re.compile(rf"^({_HEADING}|{_OTHERS})[ \t]*\n-{{3,}}[ \t]*$", re.MULTILINE)),
    ("google", re.compile(rf"^({_HEADING}|{_OTHERS}):[ \t]*$", re.MULTILINE)),
    ("sphinx", re.compile(r"^:(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?)\b", re.MULTILINE)),
]


class Docstring(NamedTuple):
    """The text before the sections, and the descriptions of parameters by name."""

    summary: str
    parameters: dict[str, str]


def read_docstring(text: str) -> Docstring:
    """Read a docstring whose indentation is removed, as `inspect.getdoc` returns it."""
    found = next(((style, match) for style, sections in _STYLES if (match := sections.search(text))), None)
    if found is None:
        return Docstring(text.strip(), {})
    import griffe  # only where there are sections: it takes 0.1 s

    style, first = found
    text = clean_text(text)  # griffe fails at lone surrogates
    parameters = dict[str, str]()
    for section in griffe.Docstring(text).parse(style, warnings=False):
        if section.kind in (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.other_parameters):
            parameters |= {one.name.lstrip("*\\"): " ".join(one.description.split()) for one in section.value}
    return Docstring(text[: first.start()].strip(), parameters)
