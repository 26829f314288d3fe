"""Pictures of matrices: a panel per model on one scale of colours, and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from leadline.report import heat
from leadline.report.heat import Shades
from leadline.report.pictures import Entry, Numbers, Picture, PictureSpec, Row
from leadline.report.reading import some
from leadline.report.svg import tag
from leadline.report.words import fixed

MOST_TIPS = 6000
"""A picture with more cells than this goes without their words, which would make the page too large."""
MOST_NUMBERS = 4000
"""And one with more than this without its numbers, which the file beside the page has."""

Matrix = Sequence[Row]


def panels(entries: Sequence[Entry], draw: Callable[[int], Markup], size: str) -> Markup:
    """A titled panel for each entry, hidden with it. `draw` gets the entry's place in `entries`.

    `size` is "small" (many in a row), "large" (about two) or "strips" (each as wide as the page).
    """
    shown = [
        tag(
            "figure",
            tag("figcaption", tag("span", "", class_="swatch"), entry.name),
            draw(place),
            class_=f"panel d{entry.index}",
        )
        for place, entry in enumerate(entries)
    ]
    return tag("div", *shown, class_=f"panels {size}")


def triangles(
    found: Sequence[tuple[Entry, Matrix]],
    spec: PictureSpec,
    *,
    high: float | None = None,
    numbers: bool = True,
    last: str = "readout",
) -> Picture | None:
    """Symmetric matrices over what the blocks read: a triangle each; None where none has values.

    Args:
        found: row and column i are what block i reads, the last row is what the last block leaves.
        high: the value of the strongest colour; the largest one that is there unless given.
        last: what the last row is called.
    """
    kept = [(entry, values) for entry, values in found if any(some(row) for row in values)]
    if not kept:
        return None
    everything = [v for _, values in kept for row in values for v in some(row)]
    shades = Shades.of(everything, high=high)
    told = len(everything) / 2 <= MOST_TIPS

    def draw(place: int) -> Markup:
        entry, values = kept[place]

        def tip(i: int, j: int, v: float) -> str:
            return f"{j} to {last if i + 1 == len(values) else i}: {fixed(v)}"

        return heat.triangle(values, shades, spec.label.format(name=entry.name), tip if told else None)

    body = shades.bar(spec.bar) + panels([entry for entry, _ in kept], draw, "small")
    shown = _square_numbers(kept, last) if numbers and len(everything) <= MOST_NUMBERS else None
    return spec.picture(body, shown)


def _square_numbers(found: Sequence[tuple[Entry, Matrix]], last: str) -> Numbers:
    size = max(len(values) for _, values in found)

    def head(entry: Entry, row: int, rows: int) -> str:
        place = last if row + 1 == rows else str(row)
        return f"{entry.name}, {place}" if len(found) > 1 else place

    return Numbers(
        head="block",
        columns=[str(column) for column in range(size)],
        rows=[
            (head(entry, i, len(values)), [fixed(row[j] if j < len(row) else None) for j in range(size)])
            for entry, values in found
            for i, row in enumerate(values)
        ],
    )
