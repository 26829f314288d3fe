"""What a picture on a report's page is, and what its colours stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from markupsafe import Markup

Row = list[float | None]
"""Numbers in a row, with gaps."""


def some(values: Row) -> list[float]:
    """The values that are there."""
    return [v for v in values if v is not None]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a colour stands for: a model, a run, a criterion.

    Attributes:
        index: its number, from 0; pictures use it as `Series.index` and as the class `d{index}`.
        key: the short name that small pictures write; the number counted from 1 unless given.
        baseline: drawn in the text's colour, dashed.
        drawn: whether the legend has a box for it; one without pictures needs none.
    """

    index: int
    name: str
    key: str = ""
    baseline: bool = False
    drawn: bool = True

    @property
    def short(self) -> str:
        return self.key or str(self.index + 1)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The values of a picture as a table: a heading for the rows, the columns, and the rows by their first cell."""

    head: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True, kw_only=True)
class Described:
    """The words of a picture.

    Attributes:
        name: its place in the address: `#name`.
        reading: one sentence on how to read it.
        note: what else a reader must know, if anything.
    """

    name: str
    heading: str
    reading: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture(Described):
    """A picture on the page."""

    body: Markup
    numbers: Numbers | None = None


@dataclass(frozen=True, kw_only=True)
class PictureSpec(Described):
    """What a picture is called, how it is read, and its axes.

    Attributes:
        label: what screen readers say; the names of what is drawn are added, or stand at {name}.
        x, y: the axes' labels.
        log, x_log: logarithmic axes; values that are not positive are gaps.
        linear: a signed logarithm on the y axis, linear up to about this size.
        zero: whether zero has to be on the y axis.
        rule: a value to draw a line at, and its words.
        decimals: fixed ones for the values; three significant digits without.
        tip: the words of a point, with {name}, {x}, {y} and {part} (`block 3 attention`).
        sublayers: two places a block on the x axis.
        head: what the rows of the numbers are; of points, what a point is.
        bar: what the colours mean.
        root: colours by the root of the values, so that small ones show.
        values: where the values are found, such as ["lens", "kl"].
        scale: by what they are multiplied: 100 for percent.
    """

    label: str = ""
    x: str = ""
    y: str = ""
    log: bool = False
    x_log: bool = False
    linear: float | None = None
    zero: bool = False
    rule: tuple[float, str] | None = None
    decimals: int | None = None
    tip: str = ""
    sublayers: bool = False
    head: str = ""
    bar: str = ""
    root: bool = False
    values: tuple[str, ...] = ()
    scale: float = 1

    def picture(self, body: Markup, numbers: Numbers | None = None) -> Picture:
        """The picture, drawn."""
        words = {field.name: getattr(self, field.name) for field in fields(Described)}
        return Picture(**words, body=body, numbers=numbers)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page: a heading, an opening sentence, and its pictures."""

    name: str
    heading: str
    opening: str
    pictures: Sequence[Picture]
