"""The page that reports share: whole, escaped, self-contained, and without what has nothing to show."""

from __future__ import annotations

import dataclasses
import re

import pytest
from html_structure import Structure
from markupsafe import Markup

from leadline.report.page import Cell, Column, Entry, Page, Table, TableRow, Verdict, render
from leadline.report.pictures import Numbers, Picture, Section

HOSTILE = '"><script>alert(1)</script>&'


def example() -> Page:
    """A page with one of everything."""
    models = [Entry(index=0, name="prenorm", baseline=True), Entry(index=1, name="mgr", key="M")]
    table = Table(
        label="Loss of both models",
        head="Model",
        columns=[Column(heading="Loss", unit="nats a token"), Column(heading="Better?", words=True)],
        rows=[
            TableRow(head="prenorm", cells=[Cell(text="2.70", below="± 0.02", strong=True), "–"], entry=models[0]),
            TableRow(head="mgr", cells=["2.66", Cell(text="yes", tone="better")], entry=models[1], remark="2 seeds"),
            TableRow(head="lns", cells=["–", "failed"], failed=True),
        ],
        notes="Lowest first.",
    )
    picture = Picture(
        name="growth",
        heading="Growth",
        reading="Higher is larger.",
        body=Markup('<svg viewBox="0 0 1 1" role="img" aria-label="Growth"><path class="line d0" d="M0 0"/></svg>'),
        note="From block 2 on.",
        numbers=Numbers(head="block", columns=["prenorm"], rows=[("1", ["0.5"])]),
    )
    return Page(
        headline="Depth goes to the first half",
        version="1.2.3",
        summary=["sotu", "2 models"],
        lead=["The last blocks do little."],
        further=["And more."],
        warnings=["One seed."],
        verdicts=[Verdict(claim="G1: it correlates", verdict="holds", evidence="ρ = 0.81", tone="better")],
        table=table,
        failures=[("lns", "the loss was not finite")],
        entries=models,
        sections=[
            Section(name="depth", heading="Along depth", opening="What blocks do.", pictures=[picture]),
            Section(name="nothing", heading="Nothing", opening="No pictures.", pictures=[]),
        ],
        tables=[("The models", dataclasses.replace(table, label="Settings", notes=""))],
        facts=[("Data", "sotu")],
        command="leadline probe runs/prenorm",
        install="pip install leadline",
    )


def words(page: str) -> str:
    return " ".join(" ".join(Structure(page).text).split())


def test_a_page_shows_all_it_was_given() -> None:
    page = render(example())
    assert Structure(page).open == []
    shown = words(page)
    for part in (
        "Depth goes to the first half · Leadline",
        "Leadline sotu 2 models",
        "The last blocks do little.",
        "One seed.",
        "holds G1: it correlates ρ = 0.81",
        "Model Loss nats a token Better?",
        "prenorm 2.70 ± 0.02 –",
        "mgr 2 seeds 2.66 yes",
        "Lowest first.",
        "And more.",
        "lns the loss was not finite",
        "Along depth",
        "What blocks do.",
        "Growth Higher is larger. From block 2 on.",
        "The numbers block prenorm 1 0.5",
        "The models",
        "pip install leadline leadline probe runs/prenorm",
        "Data sotu",
        "Written by Leadline 1.2.3 from results.json",
    ):
        assert part in shown


def test_the_parts_come_in_reading_order() -> None:
    page = render(example())
    order = ["<h1", 'class="warning"', 'class="claims"', 'class="results"', 'class="further"', 'id="failed"']
    order += ['class="legend"', 'id="depth"', 'id="growth"', 'class="listed"', 'id="repeat"', "<footer>"]
    places = [page.index(part) for part in order]
    assert places == sorted(places)


def test_what_is_empty_is_left_out() -> None:
    page = render(Page(headline="Nothing", version="1"))
    found = Structure(page)
    assert found.open == []
    assert not {"table", "pre", "ul", "nav", "article", "fieldset"} & {tag for tag, _ in found.elements}
    classes = {attributes.get("class") for _, attributes in found.elements}
    assert not {"legend", "claims", "warning", "failures", "lead", "pictures", "further"} & classes
    assert 'id="nothing"' not in render(example())


def test_the_page_asks_nothing_of_the_network_and_runs_no_script() -> None:
    elements = Structure(render(example())).elements
    assert not {"script", "iframe", "img", "object", "form"} & {tag for tag, _ in elements}
    policy = next(found["content"] for tag, found in elements if found.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert [found.get("href") for tag, found in elements if tag in ("link", "a")] == ["data:,", "#verdict"]


def test_words_of_a_user_stay_words() -> None:
    page = example()
    cells = [TableRow(head=HOSTILE, cells=[Cell(text=HOSTILE, below=HOSTILE)], remark=HOSTILE)]
    hostile = dataclasses.replace(
        page,
        **dict.fromkeys(("headline", "version", "command", "install", "beside", "legend"), HOSTILE),
        **{key: [HOSTILE] for key in ("summary", "lead", "further", "warnings")},
        verdicts=[Verdict(claim=HOSTILE, verdict=HOSTILE, evidence=HOSTILE)],
        entries=[Entry(index=0, name=HOSTILE, key=HOSTILE)],
        failures=[(HOSTILE, HOSTILE)],
        table=Table(label=HOSTILE, head=HOSTILE, columns=[Column(heading=HOSTILE, unit=HOSTILE)], rows=cells),
        facts=[(HOSTILE, HOSTILE)],
    )
    found = Structure(render(hostile))
    assert found.open == []
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in Structure(render(page)).elements}
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)


def test_every_entry_has_a_box_that_hides_it_and_a_colour() -> None:
    page = render(example())
    boxes = [found for found in Structure(page).all("input") if found["type"] == "checkbox"]
    assert [found["id"] for found in boxes] == ["show-0", "show-1"]
    style = page[page.index("<style>") : page.index("</style>")]
    for index in range(2):
        assert f"body:has(#show-{index}:not(:checked)) .pictures .d{index}{{display:none}}" in style
    assert ".d0{--c:var(--ink)" in style
    assert ".d1{--c:var(--line-0)" in style
    assert re.findall(r'<span class="key" aria-hidden="true">(.)</span>', page) == ["1", "M"]
    assert 'aria-label="Models in the pictures"' in page


def test_an_entry_without_pictures_has_no_box() -> None:
    entries = [Entry(index=0, name="a"), Entry(index=1, name="b", drawn=False)]
    page = render(dataclasses.replace(example(), entries=entries))
    assert 'id="show-0"' in page
    assert 'id="show-1"' not in page


def test_numbers_stand_right_and_words_left() -> None:
    page = render(example())
    table = page[page.index('<table class="results">') : page.index("</table>")]
    assert '<th scope="col" class="n">Loss' in table
    assert '<th scope="col">Better?' in table
    assert '<td class="n strong">2.70' in table
    assert "<td>–</td>" in table
    assert '<span class="tone better">yes</span>' in table


def test_a_row_has_a_cell_for_every_column() -> None:
    with pytest.raises(ValueError, match="row 'a' has 2 cells for 1 columns"):
        Table(label="", head="", columns=[Column(heading="x")], rows=[TableRow(head="a", cells=["1", "2"])])


def test_names_on_a_page_are_there_once() -> None:
    section = example().sections[0]
    with pytest.raises(ValueError, match="twice there: depth, growth"):
        Page(headline="", version="", sections=[section, section])
