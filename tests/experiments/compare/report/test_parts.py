"""Numbers, ticks, places, colours: the parts that the pictures are made of."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from leadline.report import colours, svg, words
from leadline.report.heat import Shades, cells
from leadline.report.lines import clipped

PAGE = {"light": "#fcfbf8", "dark": "#14161a"}
TEXT = {"light": ("#1d1d1b", "#55534d", "#6d6a62", "#1d4f91"), "dark": ("#ecebe6", "#b9b7ae", "#9a988f", "#8fb8f5")}
PAIRS = [
    ("#1a6b46", "#e2f1e7"),
    ("#a3271b", "#fae5e0"),
    ("#5d4408", "#fbf1d9"),
    ("#7fd3a6", "#17352a"),
    ("#ff9d8c", "#42201b"),
    ("#f0d792", "#33290f"),
]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (0.0123456, "0.0123"),
        (4321.0, "4,320"),
        (-0.5, "−0.500"),
        (1e-7, "1.00e−7"),
        (2e12, "2.00e12"),
        (0.09999, "0.100"),
    ],
)
def test_significant(value: float | None, shown: str) -> None:
    assert words.significant(value) == shown


def test_numbers_in_words() -> None:
    assert words.plain(0.004) == "0.004"
    assert words.plain(100.0) == "100"
    assert words.fixed(-0.1234) == "−0.123"
    assert words.fixed(-0.00001, sign=True) == "0.000"
    assert words.fixed(0.1234, sign=True) == "+0.123"
    assert words.count(1_486_000, 4) == "1.486 M"
    assert words.count(999_999) == "1.00 M"
    assert words.count(812) == "812"
    assert words.memory(412_000_000) == "412 MB"
    assert words.memory(12) == "12 B"
    assert words.duration(48.2) == "48 s"
    assert words.duration(192) == "3 min 12 s"
    assert words.duration(7500) == "2 h 5 min"
    assert words.interval(1.0, 0.9, 1.1) == "± 0.100"
    assert words.interval(1.0, 0.9, 1.4) == "0.900 to 1.400"
    assert words.interval(1.0, None, None) == ""
    assert words.listed(["a", "b", "c"]) == "a, b and c"
    assert words.shortened("a long name of a design", 8) == "a long…"


@given(st.lists(st.floats(-50, 250), max_size=30), st.floats(1, 40))
def test_labels_are_moved_apart_and_kept_in_order(places: list[float], gap: float) -> None:
    found = svg.spread(places, gap, 0.0, 200.0)
    assert len(found) == len(places)
    room = min(gap, 200.0 / (len(places) - 1)) if len(places) > 1 else gap
    assert all(-1e-6 <= place <= 200 + 1e-6 for place in found)
    for low, high in itertools.pairwise(sorted(found)):
        assert high - low >= room - 1e-6
    order = sorted(range(len(places)), key=lambda i: places[i])
    assert [found[i] for i in order] == sorted(found)


def test_labels_with_room_stay_where_they_are() -> None:
    assert svg.spread([10.0, 50.0, 90.0], 16, 0, 100) == [10.0, 50.0, 90.0]


@given(st.floats(1e-6, 1e6), st.floats(1.001, 1e9), st.booleans())
def test_ticks_lie_within_the_limits(low: float, ratio: float, log: bool) -> None:
    high = low * ratio
    found = svg.ticks(low, high, log)
    assert 1 <= len(found) <= 14
    assert all(low * (1 - 1e-9) <= v <= high * (1 + 1e-9) for v in found)
    assert found == sorted(set(found))


@given(st.integers(0, 3), st.integers(0, 300))
def test_block_ticks_keep_the_ends(low: int, span: int) -> None:
    found = svg.whole_ticks(low, low + span)
    assert found[0] == low
    assert found[-1] == low + span
    assert len(found) <= 12


def test_limits_are_never_empty() -> None:
    assert svg.limits([]) == (0.0, 1.0)
    for log in (False, True):
        low, high = svg.limits([3.0, 3.0], log=log)
        assert low < 3 < high
    assert svg.limits([2.0, 4.0], zero=True)[0] == 0
    assert svg.limits([0.0], zero=True)[1] > 0


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-50, 150)), min_size=1, max_size=12))
def test_clipped_lines_stay_inside(piece: list[tuple[float, float]]) -> None:
    parts = clipped(piece, 0.0, 100.0)
    assert all(-1e-6 <= y <= 100 + 1e-6 for part in parts for _, y in part)
    kept = [point for part in parts for point in part]
    assert all(point in kept for point in piece if 0 <= point[1] <= 100)
    assert all(parts)


def test_a_line_through_the_whole_picture_is_cut_twice() -> None:
    assert clipped([(0.0, -100.0), (3.0, 200.0)], 0.0, 100.0) == [[(1.0, 0.0), (2.0, 100.0)]]


def test_text_and_attributes_are_escaped() -> None:
    found = svg.tag("text", "<b>&", aria_label='"><script>', class_="a")
    assert found == Markup('<text aria-label="&#34;&gt;&lt;script&gt;" class="a">&lt;b&gt;&amp;</text>')


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(theme: str) -> None:
    lines = colours.LINES_LIGHT if theme == "light" else colours.LINES_DARK
    assert all(colours.contrast(line, PAGE[theme]) >= 3 for line in lines)
    assert all(colours.contrast(text, PAGE[theme]) >= 4.5 for text in TEXT[theme])
    css = (Path(colours.__file__).parent / "templates" / "report.css.j2").read_text(encoding="utf-8")
    assert all(colour in css for colour in (PAGE[theme], *TEXT[theme]))


def test_contrast_of_marks() -> None:
    assert all(colours.contrast(text, ground) >= 4.5 for text, ground in PAIRS)


def test_ramps_run_away_from_the_page() -> None:
    for stops, page in ((colours._RAMP_LIGHT, PAGE["light"]), (colours._RAMP_DARK, PAGE["dark"])):
        steps = [colours.contrast(colour, page) for colour in colours.ramp(stops, colours.LEVELS)]
        assert steps == sorted(steps)
        assert colours.ramp(stops, 2) == [stops[0], stops[-1]]


def test_designs_keep_their_colour_and_differ() -> None:
    rules = [colours.design_rule(0, n, baseline=False) for n in range(24)]
    assert len(set(rules)) == 24
    assert "var(--ink)" in colours.design_rule(0, 0, baseline=True)


def test_shades() -> None:
    shades = Shades.of([0.0, 1.0, -0.5], root=True)
    assert shades.class_(0.0) == "h0"
    assert shades.class_(1.0) == shades.class_(7.0) == f"h{colours.LEVELS - 1}"
    assert shades.class_(-0.5) == f"b{colours.LEVELS_BELOW - 1}"
    assert Shades.of([]).class_(0.0) == "h0"


def test_cells_leave_holes_and_share_paths() -> None:
    values = [[1.0, 1.0, None], [0.0]]
    told = cells(values, Shades.of([1.0]), 1, 1, lambda i, j, v: f"{i} {j}")
    assert told.count("<title>") == 3
    assert cells(values, Shades.of([1.0]), 1, 1, None).count("<path") == 2
