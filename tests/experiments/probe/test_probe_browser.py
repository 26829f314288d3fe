"""A probe's page in a real browser: nothing complains, nothing is wider than the screen, boxes hide models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import browser
import pytest
from probe_report_fixture import results

from leadline.experiments.probe.report import write_report

BINARY = browser.find()
pytestmark = pytest.mark.skipif(BINARY is None, reason=f"needs a browser: one of {', '.join(browser.NAMES)}")

WIDER = """
[...document.querySelectorAll('body *')].filter(element => {
  if (element.closest('.scroll, .legend, pre') && !element.matches('.scroll, .legend, pre')) return false;
  if (element.matches('.skip') || element.closest('svg') && !element.matches('svg')) return false;
  const box = element.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map(element => element.outerHTML.slice(0, 120))
"""
HIDDEN = """
(() => {
  document.querySelector('#show-1').click();
  const shown = selector =>
    [...document.querySelectorAll(selector)].filter(e => getComputedStyle(e).display !== 'none').length;
  return [shown('.pictures .series.d1, .pictures .panel.d1, .pictures .said .d1'), shown('.pictures .series.d0')];
})()
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    assert BINARY is not None
    with browser.Browser.start(BINARY) as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(results(blocks=(12, 12, 8)), path)
    return path


@pytest.mark.parametrize(("width", "height", "dark"), [(1280, 800, False), (390, 844, False), (360, 740, True)])
def test_nothing_complains_and_nothing_is_too_wide(
    chromium: browser.Browser, report: Path, width: int, height: int, dark: bool
) -> None:
    page = chromium.open(report, width=width, height=height, dark=dark, script=True)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(WIDER) == []
    assert page.complaints() == []
    page.close()


def test_a_model_can_be_hidden(chromium: browser.Browser, report: Path) -> None:
    page = chromium.open(report, width=1280, height=800)
    hidden, other = page.evaluate(HIDDEN)
    assert hidden == 0
    assert other > 20
    page.close()


def test_a_table_that_is_wider_than_a_phone_shows_that_it_scrolls(chromium: browser.Browser, report: Path) -> None:
    """A shadow on the edge beyond which the table goes on, and none where it ends."""
    page = chromium.open(report, width=390, height=844)
    table = "document.querySelector('.scroll')"
    assert page.evaluate(f"{table}.scrollWidth > {table}.clientWidth")
    style = page.evaluate(f"(s => [s.backgroundImage, s.backgroundAttachment])(getComputedStyle({table}))")
    assert style[0].count("linear-gradient") == 4
    assert style[1] == "local, local, scroll, scroll"
    page.close()
