"""The page in a real browser: nothing complains, every picture is seen, nothing is wider than the screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
import report_fixture as fixture

from leadline.experiments.compare.page import make_page
from leadline.files import write_text
from leadline.report.page import render

BINARY = browser.find()
pytestmark = pytest.mark.skipif(
    BINARY is None,
    reason=f"needs a browser to look at the report: one of {', '.join(browser.NAMES)}; apt-get install chromium",
)

# Every picture that is shown, as [name, width, height, marks inside it].
SEEN = """
[...document.querySelectorAll('article.picture')].flatMap(article =>
  [...article.querySelectorAll('.drawing svg:not(.bar)')].filter(
    svg => getComputedStyle(svg).display !== 'none').map(svg => {
    const box = svg.getBoundingClientRect();
    const marks = [...svg.querySelectorAll('path, circle, text')].filter(mark => {
      const inner = mark.getBoundingClientRect();
      return inner.width > 0 || inner.height > 0;
    });
    return [article.id, box.width, box.height, marks.length];
  }))
"""
WIDER = """
[...document.querySelectorAll('body *')].filter(element => {
  if (element.closest('.scroll, .legend, pre') && !element.matches('.scroll, .legend, pre')) return false;
  if (element.matches('.skip') || element.closest('svg') && !element.matches('svg')) return false;
  const box = element.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map(element => element.outerHTML.slice(0, 120))
"""
SIZES = [(1280, 800), (390, 844), (360, 740)]


def write_report(results: dict[str, Any], path: Path) -> None:
    write_text(path, render(make_page(results)))


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    assert BINARY is not None
    with browser.Browser.start(BINARY) as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(fixture.results(), path)
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_picture_is_seen_and_nothing_complains(
    chromium: browser.Browser, report: Path, tmp_path: Path, width: int, height: int, dark: bool
) -> None:
    page = chromium.open(report, width=width, height=height, dark=dark)
    seen = page.evaluate(SEEN)
    names = [name for name, *_ in seen]
    assert len(set(names)) == 13
    assert names.count("angular-distance") == 8
    assert names.count("depth-weights") == 2
    for name, wide, high, marks in seen:
        assert wide > 100, name
        assert high > 30, name
        assert marks > 10, name
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(WIDER) == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 22, 26)" if dark else "rgb(252, 251, 248)")
    page.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 100_000
    assert page.complaints() == []
    page.close()


def test_the_verdict_and_its_table_are_on_the_first_screen(chromium: browser.Browser, report: Path) -> None:
    page = chromium.open(report, width=1280, height=800)
    assert page.evaluate("document.querySelector('.results tbody tr:last-child').getBoundingClientRect().bottom") < 800
    assert page.evaluate(
        "document.querySelector('.scroll').scrollWidth <= document.querySelector('.scroll').clientWidth"
    )
    page.close()
    page = chromium.open(report, width=390, height=844)
    assert page.evaluate("document.querySelector('.results .tone').getBoundingClientRect().right") < 390
    assert (
        page.evaluate("document.querySelector('.results tbody tr:nth-child(4)').getBoundingClientRect().bottom") < 844
    )
    page.close()


def test_designs_can_be_hidden_without_a_script(chromium: browser.Browser, report: Path) -> None:
    page = chromium.open(report, width=1280, height=800)
    hidden = """
    (() => {
      const box = document.querySelector('#show-2');
      box.click();
      const shown = selector =>
        [...document.querySelectorAll(selector)].filter(e => getComputedStyle(e).display !== 'none').length;
      return [shown('.pictures .series.d2, .pictures .panel.d2'), shown('.pictures .series.d1'), shown('.results .d2')];
    })()
    """
    none, others, table = page.evaluate(hidden)
    assert none == 0
    assert others > 5
    assert table > 0
    assert page.complaints() == []
    page.close()


def test_the_keyboard_reaches_what_scrolls_and_what_opens(chromium: browser.Browser, report: Path) -> None:
    page = chromium.open(report, width=390, height=844)
    reached: list[Any] = []
    for _ in range(16):
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className || 'SUMMARY'"))
    assert reached[:2] == ["skip", "scroll"]
    assert [f"show-{i}" for i in range(8)] == [name for name in reached if name.startswith("show-")]
    assert "SUMMARY" in reached
    page.close()


def test_hostile_names_run_nothing(chromium: browser.Browser, tmp_path: Path) -> None:
    names = ["prenorm", "<script>document.title='owned'</script>", '"><img src=x onerror="document.title=1">',
             "mgr(streams=8, gate=independent) + bhyt, a name without any end " * 3]  # fmt: skip
    results = fixture.results(names=names, blocks=6, failed=names[1])
    results["verdict"]["headline"] = "</title><svg onload=\"document.title='owned'\">" + "x" * 400
    write_report(results, tmp_path / "report.html")
    for width in (1280, 360):
        page = chromium.open(tmp_path / "report.html", width=width, height=800)
        assert page.evaluate("document.title").startswith("</title><svg onload=")
        assert page.evaluate("document.querySelectorAll('script, img').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(WIDER) == []
        assert page.complaints() == []
        page.close()


def test_small_and_one_seed_pages_have_no_complaints(chromium: browser.Browser, tmp_path: Path) -> None:
    small = fixture.results(names=["prenorm"], blocks=1, seeds=1)
    for name, results in (("one", fixture.results(seeds=1, failed="bhyt")), ("small", small)):
        write_report(results, tmp_path / f"{name}.html")
        page = chromium.open(tmp_path / f"{name}.html", width=390, height=800)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert all(marks > 1 for *_, marks in page.evaluate(SEEN))
        assert page.complaints() == []
        page.close()


def test_complaints_are_heard(chromium: browser.Browser, tmp_path: Path) -> None:
    broken = "<p style='width:3000px'>wide</p><script src='https://example.org/x.js'></script><script>x.y()</script>"
    (tmp_path / "broken.html").write_text(broken, encoding="utf-8")
    page = chromium.open(tmp_path / "broken.html", width=390, height=800)
    complaints = " ".join(page.complaints())
    assert "asked for https://example.org/x.js" in complaints
    assert "ReferenceError" in complaints
    assert page.evaluate(WIDER)
    page.close()


def test_printing(chromium: browser.Browser, report: Path, tmp_path: Path) -> None:
    page = chromium.open(report, width=1280, height=800, dark=True)
    page.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes()[:5] == b"%PDF-"
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--page').trim()") == "#fff"
    page.close()
