"""Draws a pipeline as SVG, without style or script: the order of its steps, and the progress of each.

A step runs before the steps to its right, and at the same time as those above or below it. A step that runs several
times, in a map or a loop, has a frame with a count.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from standfast.messages import visible
from standfast.pipeline_loop import Planned
from standfast.pipelines.paths import place_of
from standfast.web.page.runs import STATES, Progress

_LETTER, _SMALL = 8.0, 6.4  # maximum width of a letter in pixels
_GAP, _PAD, _BOX, _TITLE = 30.0, 12.0, 46.0, 22.0
_CLASSES = {"not run": "not-run", "to come": "to-come", "not looked up": "to-come", "not known": "to-come"}
_WIDEST = 930.0  # pixels of a row
_LONGEST = 26  # letters of a name that are shown


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A part of the picture; lines enter at the middle of its left side and leave at the middle of its right side.

    Args:
        at: draws it with its upper left corner there.
    """

    width: float
    height: float
    at: Callable[[float, float], Iterator[Markup]]


def draw(progress: Progress, *, ended: bool, link: Callable[[str], str]) -> Markup:
    """Return the picture.

    Args:
        ended: whether the run has ended: the remaining steps will not run.
        link: returns the address of the page of an agent's run at a path.
    """
    by_place: dict[str, dict[str, str]] = {}
    for path, how in progress.states.items():
        by_place.setdefault(place_of(path), {})[path] = how
    otherwise = "not looked up" if progress.is_cut else "not run" if ended else "to come"
    whole = _Picture(by_place, progress.counts, progress.failed, otherwise, link).rows(progress.plan)
    width, height = whole.width + 2 * _PAD, whole.height + 2 * _PAD
    return Markup(
        '<svg class="steps" role="group" aria-label="Steps" width="{0}" height="{1}" viewBox="0 0 {0} {1}">{2}</svg>'
    ).format(round(width), round(height), _joined(whole.at(_PAD, _PAD)))


@dataclass(frozen=True, slots=True)
class _Picture:
    """The data for the parts of one picture."""

    by_place: Mapping[str, Mapping[str, str]]
    counts: Mapping[str, int]
    failed: str | None
    otherwise: str
    link: Callable[[str], str]

    def rows(self, steps: Sequence[Planned]) -> _Drawing:
        """Return the whole picture, in as many rows as it needs."""
        rows: list[list[_Drawing]] = [[]]
        for part in (self.part(step, step.name) for step in steps):
            if rows[-1] and sum(one.width + _GAP for one in rows[-1]) + part.width > _WIDEST:
                rows.append([])
            rows[-1].append(part)
        return _rows([_row(row) for row in rows])

    def row(self, steps: Sequence[Planned], above: str) -> _Drawing:
        return _row([self.part(step, f"{above}{step.name}") for step in steps])

    def part(self, step: Planned, place: str) -> _Drawing:
        has_failed = self._has_failed(place)
        match step.kind:
            case "parallel":
                return _fork([self.part(one, f"{place}/{one.name}") for one in step.steps])
            case "branch":
                chosen = any(at.startswith(f"{place}/") for at in self.by_place)
                rest = replace(self, otherwise="not run") if chosen or has_failed else self
                keys = ["otherwise" if key is None else key for key in step.keys]
                fork = _fork([rest.part(one, f"{place}/{one.name}") for one in step.steps], keys)
                return _framed(f"{step.name}: failed", fork, has_failed) if has_failed else fork
            case "map" | "loop":
                title = f"{step.name}: {self._counted(step, place)}"
                return _framed(title, self.part(step.steps[0], place), has_failed)
            case "pipeline":
                return _framed(step.name, self.row(step.steps, f"{place}/"), has_failed)
            case _:
                return self._step(step, place)

    def _step(self, step: Planned, place: str) -> _Drawing:
        runs = self.by_place.get(place, {})
        how = min(runs.values(), key=STATES.index, default=self.otherwise)
        what = step.runs if step.runs not in (None, step.name) else step.kind
        path = next(iter(runs)) if len(runs) == 1 and step.kind == "agent" else None
        return _box(step.name, f"{what} · {how}", how, None if path is None else self.link(path))

    def _has_failed(self, place: str) -> bool:
        return self.failed is not None and place_of(self.failed) == place

    def _counted(self, step: Planned, place: str) -> str:
        """Return how often the step of a map or loop has run."""
        begun: dict[tuple[str, ...], str] = {}  # by the numbers of an item or round
        for at, runs in self.by_place.items():
            if at == place or at.startswith(f"{place}/"):
                for path, how in runs.items():
                    item = _item(path, place)
                    begun[item] = min(how, begun.get(item, how), key=STATES.index)
        if self._has_failed(place):
            return f"failed after {len(begun)} of at most {step.max} rounds" if step.kind == "loop" else "failed"
        if step.kind == "loop":
            return f"round {len(begun)} of at most {step.max}" if begun else f"at most {step.max} rounds"
        states, counts = Counter(begun.values()), [n for path, n in self.counts.items() if place_of(path) == place]
        told = ", ".join(f"{number} {how}" for how in STATES if (number := states[how])) or "each"
        return f"{told} of {sum(counts)}" if counts else told


def _item(path: str, place: str) -> tuple[str, ...]:
    """Return the part of a path that names an item or round of a stage, with the stages around it."""
    parts, at = path.split("/"), 0
    for name in place.split("/"):
        at = parts.index(name, at) + 1
    return tuple(parts[: at + 1])


def _short(text: str, most: int) -> str:
    return visible(text if len(text) <= most else f"{text[: most - 1]}…")


def _joined(parts: Iterator[Markup]) -> Markup:
    return Markup("").join(parts)


def _box(name: str, below: str, how: str, href: str | None) -> _Drawing:
    shown, below = _short(name, _LONGEST), _short(below, _LONGEST + 12)
    width = max(len(shown) * _LETTER, len(below) * _SMALL) + 2 * _PAD

    def at(x: float, y: float) -> Iterator[Markup]:
        box = Markup(
            '<g class="step {}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="6"/>'
            '<text x="{}" y="{}">{}</text><text class="below" x="{}" y="{}">{}</text></g>'
        ).format(
            _CLASSES.get(how, how),
            visible(name),
            x,
            y,
            width,
            _BOX,
            x + width / 2,
            y + 19,
            shown,
            x + width / 2,
            y + 36,
            below,
        )
        yield box if href is None else Markup('<a href="{}">{}</a>').format(href, box)

    return _Drawing(width, _BOX, at)


def _row(parts: Sequence[_Drawing]) -> _Drawing:
    """Draw parts one after the other."""
    width = sum(part.width for part in parts) + _GAP * (len(parts) - 1)
    height = max(part.height for part in parts)

    def at(x: float, y: float) -> Iterator[Markup]:
        middle = y + height / 2
        for number, part in enumerate(parts):
            if number:
                yield _line(x, middle, x + _GAP, middle)
                x += _GAP
            yield from part.at(x, middle - part.height / 2)
            x += part.width

    return _Drawing(width, height, at)


def _rows(parts: Sequence[_Drawing]) -> _Drawing:
    """Draw one row below the other; a line goes back from the end of each to the start of the next."""
    width, height = max(part.width for part in parts), sum(part.height + _GAP for part in parts) - _GAP

    def at(x: float, y: float) -> Iterator[Markup]:
        for number, part in enumerate(parts):
            if number:
                before, end = parts[number - 1], x + parts[number - 1].width
                yield Markup('<path d="M{} {}h{}V{}H{}V{}h{}"/>').format(
                    end,
                    y - _GAP - before.height / 2,
                    _PAD / 2,
                    y - _GAP / 2,
                    x - _PAD / 2,
                    y + part.height / 2,
                    _PAD / 2,
                )
            yield from part.at(x, y)
            y += part.height + _GAP

    return _Drawing(width, height, at)


def _fork(parts: Sequence[_Drawing], keys: Sequence[str] = ()) -> _Drawing:
    """Draw parts one above the other, between two points; the lines to them have the keys of a branch."""
    keys = [_short(key, _LONGEST) for key in keys]
    before = max([_GAP, *(len(key) * _SMALL + 2 * _PAD for key in keys)])
    inner = max(part.width for part in parts)
    height = sum(part.height for part in parts) + _PAD * (len(parts) - 1)

    def at(x: float, y: float) -> Iterator[Markup]:
        middle, left, right = y + height / 2, x + before, x + before + inner
        for number, part in enumerate(parts):
            here = y + part.height / 2
            yield _line(x, middle, left, here)
            if keys:
                beside = here - 6 if here <= middle else here + 14  # where the line does not pass
                yield Markup('<text class="key" x="{}" y="{}">{}</text>').format(left - 6, beside, keys[number])
            yield from part.at(left, y)
            yield _line(left + part.width, here, right + _GAP, middle, bends_at=right)
            y += part.height + _PAD

    return _Drawing(before + inner + _GAP, height, at)


def _framed(title: str, part: _Drawing, has_failed: bool) -> _Drawing:
    title = _short(title, 3 * _LONGEST)
    width = max(part.width, len(title) * _SMALL) + 2 * _PAD
    height = part.height + 2 * _TITLE  # as much below as above, so that its middle is that of the part

    def at(x: float, y: float) -> Iterator[Markup]:
        yield Markup(
            '<g class="{}"><rect class="frame" x="{}" y="{}" width="{}" height="{}" rx="8"/>'
            '<text class="title" x="{}" y="{}">{}</text></g>'
        ).format("failed" if has_failed else "", x, y, width, height - _TITLE / 2, x + _PAD, y + 15, title)
        middle, left = y + height / 2, x + (width - part.width) / 2
        yield _line(x, middle, left, middle)
        yield _line(left + part.width, middle, x + width, middle)
        yield from part.at(left, y + _TITLE)

    return _Drawing(width, height, at)


def _line(x: float, y: float, to_x: float, to_y: float, *, bends_at: float | None = None) -> Markup:
    """Return a line that is level at both ends."""
    start = x if bends_at is None else bends_at
    half = (start + to_x) / 2
    path = f"M{x:.1f} {y:.1f}H{start:.1f}C{half:.1f} {y:.1f} {half:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
    return Markup('<path d="{}"/>').format(path)
