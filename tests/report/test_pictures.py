"""The pictures that any report may use: what they draw, what they leave out, and their numbers."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
from html_structure import Structure
from markupsafe import Markup

from leadline.report import inside
from leadline.report.bars import Bar, bars
from leadline.report.curves import Curve, Value, curves
from leadline.report.lines import Panel
from leadline.report.over_blocks import by_block, by_sublayer, linear_below, over_blocks, series
from leadline.report.pictures import Entry, Picture, PictureSpec, Row
from leadline.report.scatter import Cloud, scatter, together

A = Entry(index=0, name="deep")
B = Entry(index=1, name="wide", key="W")


def spec(**more: Any) -> PictureSpec:
    return PictureSpec(**{"name": "n", "heading": "H", "reading": "R.", "label": "Label", **more})


def titles(body: Markup) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", body)


def drawings(picture: Picture | None) -> list[dict[str, str | None]]:
    """The attributes of the picture's SVGs, after a look at whether all elements are closed."""
    assert picture is not None
    structure = Structure(picture.body)
    assert structure.open == []
    return structure.all("svg")


def lines(*panels: Panel, **more: object) -> Picture | None:
    return over_blocks(panels, spec(**{"y": "RMS", "tip": "{name} {x} {part}: {y}", **more}))


def test_lines_of_models_of_different_depth_share_an_axis() -> None:
    panel = Panel(title="", series=[series(A, by_block([1.0, 2.0, 3.0, 4.0])), series(B, by_block([5.0, 6.0]))])
    picture = lines(panel)
    wide, narrow = drawings(picture)
    assert (wide["class"], narrow["class"]) == ("wide", "narrow")
    assert wide["aria-label"] == "Label, for deep and wide."
    assert picture is not None
    assert picture.numbers is not None
    assert picture.numbers.columns == ["deep", "wide"]
    assert picture.numbers.rows[0] == ("0", ["1.00", "5.00"])
    assert picture.numbers.rows[3] == ("3", ["4.00", "–"])
    circles = re.findall(r'<circle cx="([\d.]+)"[^>]*><title>(\w+) (\d)', picture.body)
    place = {(who, block): float(at) for at, who, block in circles}
    assert place["deep", "1"] == place["wide", "1"] < place["deep", "3"]


def test_a_line_has_its_shade_and_the_numbers_their_interval() -> None:
    band = [(0.0, 0.5, 1.5), (1.0, 1.0, 9.0)]
    picture = lines(Panel(title="", series=[series(A, by_block([1.0, 2.0]), band)]), decimals=1)
    assert picture is not None
    assert picture.numbers is not None
    assert 'class="band"' in picture.body
    assert picture.numbers.rows[1] == ("1", ["2.0 (1.0 to 9.0)"])
    # The axis has room for the shade.
    assert "8" in re.findall(r'class="tick" text-anchor="end">([\d.]+)<', picture.body)


def test_places_of_sublayers_have_names() -> None:
    picture = lines(Panel(title="", series=[series(A, by_sublayer([1.0, 2.0, 3.0, 4.0, 5.0]))]), sublayers=True)
    assert picture is not None
    assert picture.numbers is not None
    assert [head for head, _ in picture.numbers.rows] == [
        "block 0 attention",
        "block 0 MLP",
        "block 1 attention",
        "block 1 MLP",
        "readout",
    ]


def test_what_has_no_place_on_a_logarithmic_axis_is_a_gap() -> None:
    gap = lines(Panel(title="", series=[series(A, by_block([1.0, -2.0, 10.0]))]), log=True)
    assert gap is not None
    assert gap.numbers is not None
    assert gap.numbers.rows[1] == ("1", ["–"])


def test_a_signed_logarithm_has_room_on_both_sides_of_zero() -> None:
    values = [1.0, 0.1, 0.0, -0.1, -1.0]
    picture = lines(Panel(title="", series=[series(A, by_block(values))]), linear=0.01)
    assert picture is not None
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)" r="4"', picture.body)]
    assert heights == sorted(heights)
    steps = [below - above for above, below in itertools.pairwise(heights)]
    # A decade is as wide on both sides and everywhere beyond the linear part.
    assert steps[0] == pytest.approx(steps[3], abs=0.2)
    assert steps[1] == pytest.approx(steps[2], abs=0.2)
    assert steps[0] == pytest.approx(steps[1] * math.log(10) / math.asinh(10), abs=0.5)
    assert {"−1", "−0.1", "0", "0.1", "1"} <= set(re.findall(r'class="tick" text-anchor="end">([^<]+)<', picture.body))
    assert linear_below([2.0, -0.5]) == 0.001
    assert linear_below([0.02, -0.03]) == pytest.approx(3e-4)
    assert 0 < linear_below([]) <= linear_below([0.0])


def test_gates_of_several_models_have_a_panel_each() -> None:
    rows: list[Row] = [[], [0.1, 0.2], [0.1, 0.3]]
    alone, several = (inside.gates([(Entry(index=i, name=f"m{i}"), rows) for i in range(n)]) for n in (1, 4))
    assert alone is not None
    assert several is not None
    assert 'class="panel-title"' not in alone.body
    wide = several.body[: several.body.index("</svg>")]
    assert re.findall(r'class="panel-title">(\w+)<', wide) == ["m0", "m1", "m2", "m3"]
    tops = [float(y) for y in re.findall(r'y="([\d.]+)" class="panel-title"', wide)]
    assert tops[0] == tops[1] == tops[2] < tops[3]
    assert 'class="end-label"' not in wide
    assert 'class="end-label"' in alone.body


def test_panels_are_columns_of_their_own() -> None:
    both = [Panel(title=t, series=[series(A, by_block(v))]) for t, v in (("attention", [1.0]), ("MLP", [2.0]))]
    picture = lines(*both)
    assert picture is not None
    assert picture.numbers is not None
    assert picture.numbers.columns == ["deep, attention", "deep, MLP"]


def test_no_values_make_no_picture() -> None:
    nothing: Row = [None, None]
    assert lines(Panel(title="", series=[series(A, by_block(nothing))])) is None
    assert inside.triangles([(A, [nothing])], spec(bar="b")) is None
    assert scatter([Cloud(entry=A, points=[])], spec(x="x", y="y")) is None
    assert curves([Curve(entry=A, values=[Value(x=1.0, mean=None)])], spec(x="x", y="y")) is None
    assert bars([("row", [Bar(entry=A, value=None)])], spec(y="a", head="h")) is None
    assert inside.depth_weights([(A, [])]) is None
    assert inside.stream_reads([(A, [[], []])]) is None
    assert inside.gates([(A, [[], []])]) is None
    assert inside.diversity([(A, [])]) is None
    assert inside.mixing([(A, [])]) is None


def test_triangles_share_their_colours_and_have_numbers() -> None:
    first: list[Row] = [[0.0, 0.2], [0.2, 0.0]]
    second: list[Row] = [[0.0, 0.4, 0.1], [0.4, 0.0, None], [0.1, None, 0.0]]
    picture = inside.triangles([(A, first), (B, second)], spec(bar="angle"))
    assert picture is not None
    assert picture.numbers is not None
    _, small, large = drawings(picture)
    assert small["class"] == large["class"] == "square"
    assert titles(picture.body) == ["0 to readout: 0.200", "0 to 1: 0.400", "0 to readout: 0.100"]
    # 0.2 is half of 0.4, the strongest colour, though it is the largest of its own model.
    assert re.findall(r'class="(h\d+)"><title>', picture.body)[:2] == ["h12", "h23"]
    assert [head for head, _ in picture.numbers.rows] == [
        "deep, 0",
        "deep, readout",
        "wide, 0",
        "wide, 1",
        "wide, readout",
    ]
    assert picture.numbers.rows[0][1] == ["0.000", "0.200", "–"]


def test_a_scatter_says_how_far_both_go_together() -> None:
    points = [(0.1, 1.0, "1"), (0.2, 2.0, "2"), (0.4, 5.0, "3")]
    clouds = [Cloud(entry=A, points=points, words="Spearman 1.00"), Cloud(entry=B, points=points[:1])]
    picture = scatter(clouds, spec(x="share", y="rise"))
    assert picture is not None
    assert picture.numbers is not None
    assert len(drawings(picture)) == 2
    assert "deep: Spearman 1.00</li>" in picture.body
    assert "wide:" not in picture.body
    assert "deep, block 2: share 0.200, rise 2.00" in titles(picture.body)
    assert picture.numbers.rows[0] == ("deep, 1", ["0.100", "1.00"])
    assert picture.body.count('class="point-label">3<') == 2


def test_labels_of_points_never_lie_on_each_other() -> None:
    points = [(float(i % 2), float(i // 2), str(100 + i)) for i in range(200)]
    picture = scatter([Cloud(entry=A, points=points)], spec(x="x", y="y"))
    assert picture is not None
    wide = picture.body[: picture.body.index("</svg>")]
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="point-label">(\d+)<', wide)
    places = [(float(x), float(y)) for x, y, _ in found]
    assert 20 < len(places) < 200
    for i, (x, y) in enumerate(places):
        assert all(abs(x - a) > 18 or abs(y - b) > 10 for a, b in places[:i])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((0.81, 0.62, 0.93), "Spearman 0.81 (0.62 to 0.93): they rise together"),
        ((-0.7, -0.9, -0.1), "Spearman −0.70 (−0.90 to −0.10): one falls where the other rises"),
        ((0.2, -0.1, 0.5), "Spearman 0.20 (−0.10 to 0.50): no order beyond chance"),
        ((0.2, None, None), "Spearman 0.20, without an interval"),
        ((None, None, None), "Spearman is not defined: one of the two does not vary"),
    ],
)
def test_a_correlation_in_words(values: tuple[float | None, float | None, float | None], says: str) -> None:
    assert together("Spearman", *values) == says


def test_curves_have_a_mean_a_shade_and_numbers() -> None:
    found = [
        Curve(entry=A, values=[Value(x=0.1, mean=21.0, low=20.0, high=22.0), Value(x=0.5, mean=90.0)]),
        Curve(entry=B, values=[Value(x=0.1, mean=25.0), Value(x=0.3, mean=None)]),
    ]
    picture = curves(found, spec(x="ratio", y="perplexity", log=True, rule=(20.5, "whole")))
    assert picture is not None
    assert picture.numbers is not None
    assert len(drawings(picture)) == 2
    assert picture.body.count('class="band"') == 2
    assert "deep at 0.1: 21.0" in titles(picture.body)
    assert picture.numbers.head == "ratio"
    assert picture.numbers.rows == [
        ("0.1", ["21.0 (20.0 to 22.0)", "25.0"]),
        ("0.3", ["–", "–"]),
        ("0.5", ["90.0", "–"]),
    ]


def test_curves_end_at_the_top_that_is_asked_for() -> None:
    found = [Curve(entry=A, values=[Value(x=0.1, mean=21.0), Value(x=0.5, mean=9000.0)])]
    picture = curves(found, spec(x="ratio", y="perplexity"), top=100.0)
    assert picture is not None
    assert 'class="beyond"' in picture.body
    assert "9,000" not in re.findall(r'class="tick"[^>]*>([^<]+)<', picture.body)


def test_bars_start_at_zero_and_have_their_interval() -> None:
    groups = [
        ("cfp", [Bar(entry=A, value=0.8, low=0.6, high=0.9), Bar(entry=B, value=-0.4)]),
        ("a criterion with a very long name", [Bar(entry=A, value=0.4)]),
        ("none", [Bar(entry=A, value=None)]),
    ]
    picture = bars(groups, spec(y="Kendall τ-b", head="criterion", rule=(0.5, "half")))
    assert picture is not None
    assert picture.numbers is not None
    wide, _ = drawings(picture)
    assert wide["aria-label"] == "Label, for cfp and a criterion with a very long name."
    found = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', picture.body)[:3]
    (start, width), (other, negative), (_, half) = [(float(x), float(w)) for x, w in found]
    assert width == pytest.approx(2 * half, abs=0.2)
    assert other + negative == pytest.approx(start, abs=0.2)
    assert titles(picture.body)[0] == "deep, cfp: 0.800 (0.600 to 0.900)"
    assert picture.body.count('class="bar-interval"') == 2
    assert picture.numbers.rows == [
        ("cfp", ["0.800 (0.600 to 0.900)", "−0.400"]),
        ("a criterion with a very long name", ["0.400", "–"]),
        ("none", ["–", "–"]),
    ]


def test_bars_of_like_values_still_start_at_zero() -> None:
    groups = [(name, [Bar(entry=A, value=value)]) for name, value in (("a", 100.0), ("b", 101.0))]
    picture = bars(groups, spec(y="x", head="h"))
    assert picture is not None
    found = re.findall(r'<rect x="(-?[\d.]+)" y="[\d.]+" width="([\d.]+)"', picture.body)[:2]
    (start, first), (again, second) = [(float(x), float(width)) for x, width in found]
    assert start == again > 0
    assert start + second < 800
    assert second / first == pytest.approx(1.01, abs=0.002)


def test_what_connections_show_has_numbers_unless_they_are_not_wanted() -> None:
    rows: list[Row] = [[1.0], [0.25, 0.75], [0.5, 0.5]]
    shown = [
        inside.depth_weights([(A, rows)]),
        inside.stream_reads([(A, rows)]),
        inside.gates([(A, [[], [0.1, 0.2]])]),
        inside.diversity([(A, [0.0, 0.5])]),
        inside.mixing([(A, [[[1.0, 0.0], [0.0, 1.0]]])]),
        inside.angles([(A, [[0.0, 0.3], [0.3, 0.0]])]),
    ]
    assert all(picture is not None and picture.numbers is not None for picture in shown)
    weights = shown[0]
    assert weights is not None
    assert weights.numbers is not None
    assert weights.numbers.rows[1] == ("deep, block 0 MLP", ["0.250", "0.750"])
    assert weights.numbers.rows[2] == ("deep, readout", ["0.500", "0.500"])
    bare = inside.depth_weights([(A, rows)], numbers=False)
    assert bare is not None
    assert bare.numbers is None
