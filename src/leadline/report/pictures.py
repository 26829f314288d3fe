"""What a picture on a report's page is, and what its colours stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

Row = list[float | None]
"""Numbers in a row, with gaps."""


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
class Picture:
    """A picture on the page.

    Attributes:
        name: its place in the address: `#name`.
        reading: one sentence on how to read it.
        note: what else a reader must know, if anything.
    """

    name: str
    heading: str
    reading: str
    body: Markup
    note: str = ""
    numbers: Numbers | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page: a heading, an opening sentence, and its pictures."""

    name: str
    heading: str
    opening: str
    pictures: Sequence[Picture]
