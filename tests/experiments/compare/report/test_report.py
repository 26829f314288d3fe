"""The page as text: complete, self-contained, escaped, and calm about what is missing."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import report_fixture as fixture
from html_structure import Structure

from leadline.experiments.compare.page import make_page
from leadline.files import write_text
from leadline.report.page import render as render_page

PICTURES = (
    "learning-curves",
    "distance",
    "growth",
    "reads",
    "outputs",
    "gradient-share",
    "removal",
    "angular-distance",
    "depth-weights",
    "gates",
    "stream-diversity",
    "mixing",
    "learning-rates",
)


def render(results: dict[str, Any]) -> str:
    return render_page(make_page(results))


@pytest.fixture(scope="module")
def page() -> str:
    return render(fixture.results())


def words(page: str) -> str:
    return " ".join(" ".join(Structure(page).text).split())


def test_every_picture_is_there_with_one_sentence_on_how_to_read_it(page: str) -> None:
    for name in PICTURES:
        assert f'<article class="picture" id="{name}">' in page
    readings = re.findall(r'<p class="reading">(.*?)</p>', page)
    assert len(readings) == len(PICTURES)
    for reading in readings:
        assert reading.endswith(".")
        assert not re.search(r"[.!?] [A-Z]", reading), reading


def test_page_is_small_quick_and_well_formed(tmp_path: Path) -> None:
    results = fixture.results()
    start = time.perf_counter()
    write_text(tmp_path / "report.html", render(results))
    assert time.perf_counter() - start < 3
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 1_500_000
    structure = Structure(page)
    assert structure.open == []
    assert structure.all("html") == [{"lang": "en"}]
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_same_results_give_the_same_page() -> None:
    results = fixture.results(blocks=6)
    assert render(results) == render(json.loads(json.dumps(results)))


def test_nothing_is_fetched(page: str) -> None:
    structure = Structure(page)
    for tag, attributes in structure.elements:
        assert tag not in ("script", "iframe", "object", "embed", "img", "use", "image"), tag
        assert not any(name.startswith("on") for name in attributes), attributes
        if tag == "link":
            assert attributes["href"] == "data:,"
        if tag == "a":
            assert str(attributes["href"]).startswith(("#", "https://arxiv.org/abs/"))
    assert "@import" not in page
    assert "url(" not in page


def test_accessible_names_and_unique_ids(page: str) -> None:
    structure = Structure(page)
    for attributes in structure.all("svg"):
        named = attributes.get("role") == "img" and attributes.get("aria-label")
        assert named or attributes.get("aria-hidden") == "true"
    assert all("scope" in attributes for attributes in structure.all("th"))
    ids = [str(attributes["id"]) for _, attributes in structure.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in structure.elements:
        if attributes.get("class") == "scroll":
            assert attributes.get("tabindex") == "0"
            assert attributes.get("aria-label")
    labels = set(re.findall(r'aria-labelledby="([^"]+)"', page))
    assert labels <= set(ids)


def test_table_says_who_is_beyond_noise(page: str) -> None:
    found = words(page)
    assert "yes, better" in found
    assert "yes, worse" in found
    assert "± is the 95 % interval over 3 seeds" in found
    rows = re.findall(r'<tr><th scope="row">.*?</tr>|<tr>\n<th scope="row">.*?</tr>', page, flags=re.DOTALL)
    assert [re.search(r"</svg>([\w-]+)</span>", row).group(1) for row in rows[:8]] == [
        "attnres-block",
        "attnres",
        "mgr-competitive",
        "mgr-independent",
        "prenorm",
        "mhc-lite",
        "lns",
        "bhyt",
    ]


def test_one_seed_says_so() -> None:
    found = words(render(fixture.results(seeds=1, blocks=3)))
    assert "One seed: no interval can be shown" in found
    assert "one seed: unknown" in found
    assert "±" not in found
    assert "yes, better" not in found


def test_one_pair_of_several_seeds_is_unknown() -> None:
    results = fixture.results(blocks=3)
    results["arms"][2]["difference"].update(low=None, high=None, beyond_noise=None, pairs=[-0.1])
    assert "one pair: unknown" in words(render(results))


def test_an_interval_without_zero_that_is_within_noise_says_why() -> None:
    results = fixture.results(blocks=3)
    results["arms"][2]["difference"].update(low=-0.15, high=-0.05, beyond_noise=False)
    results["arms"][3]["difference"].update(low=-0.15, high=0.05, beyond_noise=False)
    assert words(render(results)).count("no, as one of several") == 1


def test_failed_and_partial_designs_show_their_error() -> None:
    results = fixture.results(failed="bhyt", blocks=3)
    results["arms"][1].update(status="partial", error="seed 2: the disk is full")
    results["arms"][1]["bits_per_byte"]["values"][2] = None
    found = words(render(results))
    assert "Failed: bhyt." in found
    assert "the loss was not finite at step 212" in found
    assert "2 of 3 seeds" in found
    assert "seed 2: the disk is full" in found


def test_a_failed_baseline_leaves_the_others() -> None:
    page = render(fixture.results(failed="prenorm", blocks=3))
    assert "Failed: prenorm." in words(page)
    assert 'id="learning-curves"' in page
    assert 'id="distance"' not in page


def test_how_to_repeat(page: str) -> None:
    found = words(page)
    for part in (
        "leadline compare --data sotu",
        "pip install",
        "9f2c41d07be3a8815c0e",
        "AMD EPYC 7B13",
        "torch 2.13.0+cpu",
        "Python 3.11.9",
        "Leadline 0.1.0",
        "1,170 steps",
    ):
        assert part in found


HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;{{ 7*7 }}]]></style>"


def test_every_text_of_a_user_is_escaped() -> None:
    results = fixture.results(failed="lns", blocks=3)

    def poison(value: Any) -> Any:
        if isinstance(value, str):
            return value if value in ("ok", "failed", "tokens") else f"{value}{HOSTILE}"
        if isinstance(value, list):
            return [poison(entry) for entry in value]
        if isinstance(value, dict):
            return {key: poison(entry) for key, entry in value.items()} | (
                {HOSTILE: HOSTILE} if "heads" in value else {}
            )
        return value

    page = render(poison(results))
    structure = Structure(page)
    assert structure.open == []
    assert {tag for tag, _ in structure.elements} == {tag for tag, _ in Structure(render(results)).elements}
    assert not any(name.startswith("on") for _, attributes in structure.elements for name in attributes)
    assert page.count("</style>") == 1
    assert "49" not in page[page.index("<title>") : page.index("</title>")]
    assert HOSTILE in "".join(structure.text)
    links = [str(attributes["href"]) for attributes in structure.all("a")]
    assert all(re.fullmatch(r"#verdict|https://arxiv\.org/abs/[\d.]+", link) for link in links)


def test_a_link_is_made_of_digits_only() -> None:
    results = fixture.results(blocks=3)
    results["arms"][0]["source"] = "javascript:alert(1) https://evil.example"
    assert "evil" not in str([a.get("href") for a in Structure(render(results)).all("a")])


@pytest.mark.parametrize(
    "missing",
    [
        *("difference", "speed", "curve", "depth", "loss", "bits_per_byte", "peak_memory_bytes", "tokens_per_second"),
        *(f"depth.{name}" for name in ("removal", "gates", "mixing", "depth_weights", "block_output_rms")),
    ],
)
def test_what_was_not_measured_is_left_out(missing: str) -> None:
    """Of a design that failed, and of measurements that it has none of, the results hold null."""
    results = fixture.results(names=["prenorm", "attnres", "mgr-competitive", "mhc-lite"], blocks=2, seeds=2)
    part, _, name = missing.partition(".")
    for arm in results["arms"]:
        (arm if not name else arm[part])[name or part] = None
    page = render(results)
    assert not re.search(r"\b(nan|inf|None|NaN)\b", page[page.index("</style>") :])
    assert Structure(page).open == []


def test_zero_and_negative_values_stay_on_the_page() -> None:
    results = fixture.results(blocks=4)
    results["arms"][0]["depth"]["removal"] = [0.0, -0.01, -0.2, 0.0]
    results["arms"][0]["depth"]["output_rms"] = [0.0] * 8
    results["arms"][5]["depth"]["mixing"][2][0] = [1.2, -0.1, -0.1, 0.0]
    page = render(results)
    assert "−0.2000" in page
    assert 'class="b' in page


def test_large_comparisons_stay_readable_in_size() -> None:
    names = [*fixture.NAMES, *(f"mgr(streams={n}, gate=independent) + bhyt" for n in range(2, 12))]
    assert len(render(fixture.results(names=names, blocks=48))) < 3_500_000
