"""The table and the picture."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

from leadline.bench.picture import draw, ticks
from leadline.bench.results import Result, Row, Verdict
from leadline.bench.table import interval, print_result
from leadline.statistics import Median

SVG = "{http://www.w3.org/2000/svg}"


def median(middle: float, low: float, high: float) -> Median:
    return Median(median=middle, low=low, high=high, coverage=0.961, values=9)


def model_result(**more: object) -> Result:
    rows = (
        Row(name="prenorm", label="prenorm", backend="-", time=median(0.1, 0.09, 0.11), ratio=median(1.0, 1.0, 1.0),
            numbers={"saved_bytes": 2e6, "saved_ratio": 1.0, "peak_bytes": 5e6, "peak_ratio": 1.0}),
        Row(name="mgr lean", label="mgr", backend="lean", time=median(0.12, 0.11, 0.13),
            ratio=median(1.2, 1.15, 1.25),
            numbers={"saved_bytes": 3e6, "saved_ratio": 1.5, "peak_bytes": 6e6, "peak_ratio": 1.2},
            verdicts=(Verdict(what="time", target=1.05, met=False, by_median=False),
                      Verdict(what="saved", target=1.6, met=True, by_median=True))),
        Row(name="a<b", label="a<b", backend="lean", failed="loss is not finite"),
    )  # fmt: skip
    values = {
        "bench": "models",
        "title": "a decoder: 2 blocks",
        "method": "wall time",
        "baseline": "prenorm",
        "options": {},
        "machine": {},
        "rows": rows,
        "notes": ("something is left out",),
        "rounds": 9,
        **more,
    }
    return Result(**values)


def shown(result: Result) -> list[str]:
    out = io.StringIO()
    print_result(result, out)
    return out.getvalue().splitlines()


def test_the_table() -> None:
    lines = shown(model_result())
    assert lines[0] == "a decoder: 2 blocks"
    assert lines[1].split() == [
        "design", "backend", "ms", "time", "/", "prenorm", "saved", "MB", "ratio", "peak", "MB", "ratio", "targets",
    ]  # fmt: skip
    assert lines[2].split() == [
        "prenorm", "-", "100.0", "[90.0,", "110.0]", "1.000", "[1.000,", "1.000]", "2.0", "1.000", "5.0", "1.000",
    ]  # fmt: skip
    assert "1.200 [1.150, 1.250]" in lines[3]
    assert lines[3].endswith("time target 1.05: not met; saved target 1.6: met")
    assert lines[4].split() == ["a<b", "lean", "check", "failed", "loss", "is", "not", "finite"]
    assert lines[5:] == [
        "targets met, row by row: 1 of 2",
        "9 rounds, intervals of 96.1\u00a0%; wall time",
        "note: something is left out",
    ]


def test_targets_that_only_the_interval_reaches_are_counted_apart() -> None:
    wide = Verdict(what="time", target=1.05, met=True, by_median=False)
    row = Row(name="mgr", label="mgr", backend="lean", ratio=median(1.6, 0.7, 2.0), verdicts=(wide, wide))
    lines = shown(model_result(rows=(row,)))
    assert lines[2].endswith("time target 1.05: met by the interval alone; time target 1.05: met by the interval alone")
    assert lines[3] == "targets met, row by row: 2 of 2, 2 of them by the interval alone"


def test_an_interrupted_table_says_so() -> None:
    assert shown(model_result(interrupted=True))[-1] == "interrupted: what had been measured is above"


def test_checks_only() -> None:
    rows = (Row(name="a", label="a", backend="-"), Row(name="b", label="b", backend="lean", failed="wrong"))
    lines = shown(model_result(rows=rows, rounds=0, notes=()))
    assert lines[-1] == "checks only: 1 passed, 1 failed"
    assert lines[2].split() == ["a", "-", "checked"]


def test_speed_ups_are_ratios_turned_over() -> None:
    verdict = Verdict(
        what="faster than stacked read", target=6.0, met=True, by_median=True, found=median(7.0, 6.0, 8.0)
    )
    row = Row(name="x: lean", group="x", label="lean", backend="lean", time=median(0.001, 0.001, 0.001),
              ratio=median(0.25, 0.2, 0.5), verdicts=(verdict,))  # fmt: skip
    line = shown(model_result(bench="ops", rows=(row,)))[2]
    assert "4.00 [2.00, 5.00]" in line
    assert "7.00 [6.00, 8.00] × faster than stacked read, target at least 6: met" in line


def test_intervals_in_few_digits() -> None:
    assert interval(median(1.23456, 1.2, 1.3)) == "1.235 [1.200, 1.300]"
    assert interval(median(123.456, 120, 130)) == "123.5 [120.0, 130.0]"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_same_words() -> None:
    out = Terminal()
    print_result(model_result(), out)
    text = out.getvalue()
    for word in ("prenorm", "check failed", "1.200", "targets met, row by row: 1 of 2"):
        assert word in text


def test_the_picture() -> None:
    root = ElementTree.fromstring(draw(model_result()))
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.get("class") == "bar"]
    widths = [float(bar.get("width", "0")) for bar in bars]
    assert len(widths) == 2
    assert abs(widths[1] / widths[0] - 1.2) < 0.01
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert "a<b, lean" in words
    assert "check failed" in words
    assert "a decoder, time as a multiple of prenorm" in words
    assert [line.get("class") for line in root.iter(f"{SVG}line")].count("mark") == 1
    assert [line.get("class") for line in root.iter(f"{SVG}line")].count("one") == 1
    assert "prefers-color-scheme:dark" in draw(model_result())


def test_an_empty_picture() -> None:
    ElementTree.fromstring(draw(model_result(rows=(), rounds=0)))


def test_ticks() -> None:
    assert ticks(1.3) == [0.0, 0.5, 1.0]
    assert ticks(12.0) == [0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
