"""Draws small charts as SVG, without style or script; each one has a table of the same values."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from standfast.messages import visible

_WIDTH, _NAME, _ROW = 560, 130, 26
_HEIGHT, _FOOT, _TOP = 150, 20, 18
COLORS = 6  # classes `c0` to `c5`; the last represents all others


def bars(label: str, rows: Sequence[tuple[str, int]]) -> Markup:
    """Return a bar for each name and count."""
    most, room = max([count for _, count in rows] or [1]) or 1, _WIDTH - _NAME - 60
    drawn = [
        Markup(
            '<text class="name" x="{0}" y="{1}" text-anchor="end">{2}</text>'
            '<rect class="track" x="{3}" y="{4}" width="{5}" height="14" rx="3"/>'
            '<rect class="c0" x="{3}" y="{4}" width="{6:.1f}" height="14" rx="3"/>'
            '<text class="value" x="{7:.1f}" y="{1}">{8:,}</text>'
        ).format(
            _NAME - 10, at + 16, visible(name), _NAME, at + 5, room, room * count / most,
            _NAME + room * count / most + 8, count,
        )
        for at, (name, count) in zip(range(0, _ROW * len(rows), _ROW), rows, strict=True)
    ]  # fmt: skip
    return _chart(label, _ROW * len(rows), drawn)


def stacks(label: str, columns: Sequence[tuple[str, Sequence[float]]], top: str) -> Markup:
    """Return a column for each name, with a part for each of its values, the first at the bottom.

    Args:
        top: the text beside the highest column.
    """
    most = max([sum(values) for _, values in columns] or [1]) or 1
    step, room = (_WIDTH - 20) / max(len(columns), 1), _HEIGHT - _FOOT - _TOP
    drawn = [Markup('<text x="0" y="12">{}</text>').format(top)]
    for number, (name, values) in enumerate(columns):
        x, y = 10 + number * step, float(_HEIGHT - _FOOT)
        drawn.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x + step / 2, _HEIGHT - 5, name)
        )
        for color, value in enumerate(values):
            height = room * value / most
            y -= height
            drawn.append(
                Markup('<rect class="c{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                    min(color, COLORS - 1), x + step * 0.18, y, step * 0.64, height
                )
            )
    return _chart(label, _HEIGHT, drawn)


def _chart(label: str, height: int, drawn: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" role="img" aria-label="{0}" width="{1}" height="{2}" viewBox="0 0 {1} {2}">{3}</svg>'
    ).format(visible(label), _WIDTH, height, Markup().join(drawn))


def largest(costs: Mapping[str, float]) -> list[str]:
    """Return the names that have a separate color: those with the highest costs."""
    return sorted(costs, key=lambda name: -costs[name])[: COLORS - 1]
