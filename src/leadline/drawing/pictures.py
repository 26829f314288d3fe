"""What a picture on a report's page is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

Row = list[float | None]
"""Numbers in a row, with gaps."""


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
