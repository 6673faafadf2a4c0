"""Forms, read and sent as a browser does."""

from html.parser import HTMLParser


def sent_by(page: str) -> list[tuple[str, str]]:
    """Return the names and values that a browser would send of the forms of a page, with line breaks as typed."""
    return _Browser(page).sent


def sent_to(page: str, action: str) -> dict[str, str]:
    """Return what a browser would send of the untouched form with this action."""
    form = page.split(f'action="{action}"')[1].split("</form>")[0]
    return {name: text.replace("\n", "\r\n") for name, text in sent_by(f"<form{form}</form>")}


class _Browser(HTMLParser):
    """Reads a form as a browser does, and has what it would send."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.sent: list[tuple[str, str]] = []
        self._in: tuple[str, str | None] | None = None
        self._text = ""
        self._options: list[tuple[str, bool]] = []
        self.feed(page.replace("\r\n", "\n").replace("\r", "\n"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        if tag == "input" and has.get("type") == "checkbox":
            self.sent += [(has["name"], has["value"])] if "checked" in has else []
        elif tag == "input":
            typed = has.get("type", "text") != "hidden"
            self.sent.append((has["name"], has["value"].replace("\n", "") if typed else has["value"]))
        elif tag in ("textarea", "select"):
            self._in, self._text, self._options = (tag, has["name"]), "", []
        elif tag == "option":
            self._options.append((has["value"], "selected" in has))

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if self._in is None or tag != self._in[0]:
            return
        name = str(self._in[1])
        if tag == "textarea":
            self.sent.append((name, self._text.removeprefix("\n")))
        else:
            chosen = [value for value, is_chosen in self._options if is_chosen] or [self._options[0][0]]
            self.sent.append((name, chosen[-1]))
        self._in = None
