"""The page of a probe: every picture where there are values, none where there are not, and true words."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from html_structure import Structure
from probe_example import PLAIN_PROBE, PROBE
from probe_report_fixture import results

from leadline.drawing.page import render
from leadline.study.probe_report import write_report
from leadline.study.probe_report.findings import _grows, headline, sentences, summary
from leadline.study.probe_report.page import build
from leadline.study.probe_report.values import ModelValues, ProbeValues, front_half, growth, least_needed

PICTURES = {
    "ablation",
    "ablation-sublayers",
    "share-against-removal",
    "block-rms",
    "update",
    "massive",
    "largest",
    "kurtosis",
    "sublayer-rms",
    "sublayer-massive",
    "block-influence",
    "angular-distance",
    "cka",
    "effective-rank",
    "lens-loss",
    "lens-kl",
    "lens-agreement",
    "lens-entropy",
    "gradient-share",
    "training-share",
    "gradient-share-sublayers",
    "gradient-rank",
    "gradient-cosine",
    "stream-reads",
    "gates",
    "stream-diversity",
    "stream-angles",
    "bhyt-ratio",
    "bhyt-variance",
    "bhyt-second-moment",
}
INSIDE = {
    "stream-reads",
    "gates",
    "stream-diversity",
    "stream-angles",
    "bhyt-ratio",
    "bhyt-variance",
    "bhyt-second-moment",
}


def one(**probe: Any) -> dict[str, Any]:
    """Results of one model whose measurement is the example's, with `probe`'s entries changed."""
    found = results(blocks=(3,))
    found["models"][0]["probe"] = {**PROBE, **probe}
    found["models"][0]["training_gradient"]["share"] = [0.5, 0.3, 0.2]
    return found


def shown(found: dict[str, Any]) -> str:
    return render(build(found))


def pictures(page: str) -> set[str]:
    return set(re.findall(r'<article class="picture" id="([\w-]+)">', page))


def words(page: str) -> str:
    return " ".join(" ".join(Structure(page).text).split())


def model(**probe: Any) -> ModelValues:
    return ProbeValues.read(one(**probe)).models[0]


def test_every_picture_is_there_for_several_models(tmp_path: Path) -> None:
    write_report(results(), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    structure = Structure(page)
    assert structure.open == []
    assert pictures(page) == PICTURES
    assert all(found.get("aria-label") for found in structure.all("svg") if found.get("aria-hidden") != "true")
    assert page.count("<summary>The numbers</summary>") == len(PICTURES)
    assert [found["id"] for found in structure.all("input")] == ["show-0", "show-1", "show-2"]


def test_what_measure_stack_gives_is_drawn_whole() -> None:
    assert pictures(shown(one())) == PICTURES


def test_a_model_without_leadline_s_parts_lacks_their_pictures() -> None:
    found = one()
    found["models"][0].update(probe=PLAIN_PROBE, training_gradient=None)
    assert pictures(shown(found)) == PICTURES - INSIDE - {"training-share"}


def test_reads_from_sources_are_no_reads_from_streams() -> None:
    weights = {"depth_weights": [[1.0], [0.5, 0.5], [0.2, 0.3, 0.5]]}
    page = shown(one(connection=weights))
    assert "depth-weights" in pictures(page)
    assert "stream-reads" not in pictures(page)
    mixed = {"depth_weights": [[1.0, 1.0]], "gates": [[1.0, 1.0]], "stream_diversity": [0.5], "mixing": [[[1.0, 0.0]]]}
    assert {"stream-reads", "stream-diversity", "mixing"} <= pictures(shown(one(connection=mixed)))
    # What hyper-connections write with replaces nothing, so it is no gate.
    assert "gates" not in pictures(shown(one(connection=mixed)))


@pytest.mark.parametrize("kept", ["activations", "similarity", "lens", "gradients", "ablation", "connection", "bhyt"])
def test_parts_that_were_not_measured_have_no_pictures(kept: str) -> None:
    found = results(blocks=(4,))
    probe = PROBE[kept]
    parts = ("activations", "similarity", "lens", "gradients", "ablation", "connection", "bhyt")
    found["models"][0]["probe"] = {**PROBE, **dict.fromkeys(parts), kept: probe}
    found["models"][0]["training_gradient"] = None
    page = shown(found)
    assert pictures(page)
    assert pictures(page) < PICTURES
    assert Structure(page).open == []


def test_models_of_different_depth_stand_on_one_axis() -> None:
    page = shown(results(blocks=(12, 12, 8)))
    picture = page[page.index('id="block-rms"') : page.index('id="update"')]
    rows = re.findall(r'<tr><th scope="row">(\d+)</th>(.*?)</tr>', picture)
    assert [row for row, _ in rows] == [str(block) for block in range(1, 13)]
    assert rows[8][1].endswith('<td class="n">–</td>')


def test_both_countings_of_a_block_stand_beside_each_other() -> None:
    page = shown(one())
    rows = re.findall(r'<tr><th scope="row">(\d)</th>\s*<td class="n ">(\d)</td>\s*<td class="n ">(\d)</td>', page)
    assert rows == [("1", "0", "3"), ("2", "1", "2"), ("3", "2", "1")]
    assert "prune --blocks counts them from 0" in words(page)


def test_growth_is_from_block_2_on() -> None:
    assert growth(model()) == pytest.approx(0.97 / 0.52)
    assert growth(model(activations=None)) is None


def test_the_first_half_s_worth_ignores_falls_of_the_loss() -> None:
    nats = {"blocks": {"nats": [3.0, 1.0, -2.0, 1.0]}}
    assert front_half(model(ablation=nats)) == pytest.approx(0.8)
    assert front_half(model(ablation={"blocks": {"nats": [1.0, None]}})) is None
    assert front_half(model(ablation=None)) is None


def test_blocks_are_ordered_by_ablation_and_else_by_block_influence() -> None:
    assert least_needed(model()) == [2, 1, 0]
    influence = {"block_influence": [0.3, 0.1, 0.2]}
    assert least_needed(model(ablation=None, similarity=influence)) == [1, 2, 0]
    assert least_needed(model(ablation={"blocks": {"nats": [None, 0.3, 0.1]}})) == [2, 1]


def test_the_headline_says_what_was_measured() -> None:
    def said(**probe: Any) -> str:
        return headline(ProbeValues.read(one(**probe)))

    assert (
        said() == "prenorm needs block 1 of 3 most and block 3 least: alone they are worth 1.4 and 0.050 nats a token"
    )
    assert said(ablation=None) == "The stream of prenorm grows 1.9-fold from block 2 to the end"
    assert said(ablation=None, activations=None) == "Block 3 of prenorm changes the stream least, block 1 most"
    assert said(ablation=None, activations=None, similarity=None) == "prenorm along depth"
    several = headline(ProbeValues.read(results()))
    assert several.startswith("SmolLM2 leans on its first half of blocks most, mgr-bhyt least: 97\u00a0% and 76\u00a0%")


def test_what_gets_smaller_does_not_grow() -> None:
    assert _grows(1.9) == "grows 1.9-fold"
    assert _grows(0.83) == "shrinks to 0.83 of its size"


def test_without_a_loss_none_is_told() -> None:
    bare = summary(ProbeValues.read(one(ablation=None, lens=None)))[0]
    assert bare == "prenorm: 3 blocks"


def test_a_loss_that_is_no_number_is_told() -> None:
    nothing = {"loss": None, "tokens": 96}
    told = summary(ProbeValues.read(one(ablation=nothing, lens={"final": {"loss": None}, "tokens": 96})))
    assert told[1] == "  its loss is not a finite number: it has diverged, or its weights hold NaN"


def test_sentences_name_blocks_for_the_reader_and_for_prune() -> None:
    found = sentences(ProbeValues.read(results(blocks=(12,))).models[0])
    assert "blocks 10, 11 and 12 are needed least, each left out by itself (prune --blocks 9,10,11)" in found
    assert "the first half of the blocks is worth 96\u00a0% of what all are" in found
    assert "massive activations reach 900 times the median, after block 5" in found
    assert "half of all guesses are already the final ones after block 6 of 12" in found
    assert "the first half of the blocks gets 73\u00a0% of the gradient over training" in found
    small = sentences(model())
    assert "block 3 is needed least (prune --blocks 2)" in small
    assert "block 3 changes the stream least (prune --blocks 2)" in sentences(model(ablation=None))
    # Blocks 0 to 11 with a gradient that falls evenly: 57 of 78 parts.
    assert round(100 * 57 / 78) == 73


def test_a_correlation_stands_with_its_interval() -> None:
    text = words(shown(results(blocks=(12,))))
    assert re.search(
        r"prenorm: Spearman 0\.\d\d \(0\.\d\d to 1\.00\): they rise together \(share over training\)", text
    )
    assert "Spearman 1.00" in words(shown(one()))
    assert "Spearman is not defined" in words(shown(one(ablation={"blocks": {"nats": [1.0, 1.0, 1.0]}})))


def test_what_lies_on_the_lower_edge_is_told() -> None:
    """A fall of the loss, in the line, in its shade alone, or among the points."""

    def edges(nats: list[float], low: list[float]) -> int:
        blocks = {**PROBE["ablation"]["blocks"], "nats": nats, "nats_low": low, "nats_high": [4.0, 4.0, 4.0]}
        ablation = {**PROBE["ablation"], "blocks": blocks, "sublayers": {}}
        return words(shown(one(ablation=ablation))).count("On the lower edge lie rises under 0.001")

    assert edges([2.0, 1.0, 3.0], [1.0, 0.5, 2.0]) == 0
    assert edges([2.0, 1.0, 3.0], [1.0, -0.5, 2.0]) == 1, "the shade"
    assert edges([2.0, -0.1, 3.0], [1.0, -0.5, 2.0]) == 2, "line and points"


def test_one_that_failed_is_told_of_and_the_others_are_drawn() -> None:
    found = results(failed="mgr-bhyt")
    page = shown(found)
    text = words(page)
    assert "Failed: mgr-bhyt. What went wrong stands below the table." in text
    assert "mgr-bhyt the loss is not finite" in text
    assert pictures(page) == PICTURES - INSIDE
    assert 'id="show-1"' not in page
    assert "mgr-bhyt: failed: the loss is not finite" in summary(ProbeValues.read(found))


def test_models_with_different_tokens_come_with_a_warning() -> None:
    found = results()
    assert "into different tokens" not in words(shown(found))
    found["models"][2]["probe"]["bytes_per_token"] = 4.3
    assert "The models cut text into different tokens: compare bits per byte" in words(shown(found))


def test_words_of_a_user_stay_words() -> None:
    found = results(blocks=(4,))
    hostile = '"><script>alert(1)</script>'
    found["models"][0].update(name=hostile, path=hostile, kind=hostile, tokenizer=hostile)
    found["data"]["name"] = found["command"] = hostile
    structure = Structure(shown(found))
    assert structure.open == []
    assert "script" not in {tag for tag, _ in structure.elements}


@pytest.mark.parametrize("found", [{}, {"models": []}, {"models": [{}]}, {"models": [None, {"probe": 3}]}])
def test_nearly_nothing_still_makes_a_page(found: dict[str, Any]) -> None:
    assert Structure(shown(found)).open == []


@pytest.mark.parametrize("new", [None, float("nan"), -1.0, "text", [], {}], ids=repr)
def test_any_part_of_a_measurement_may_be_missing_or_odd(new: Any) -> None:
    base = results(blocks=(3, 3))
    parts = base["models"][1]["probe"]
    whole = [(part,) for part in parts]
    inner = [(part, key) for part, found in parts.items() if isinstance(found, dict) for key in found]
    for places in [whole[i::3] for i in range(3)] + [inner[i::5] for i in range(5)]:
        found = copy.deepcopy(base)
        for *outer, last in places:
            changed = found["models"][1]["probe"]
            for key in outer:
                changed = changed[key]
            changed[last] = new
        page = shown(found)
        assert not re.search(r"\b(nan|inf|None|NaN)\b", page[page.index("</style>") :]), places


def test_a_page_of_a_real_size_stays_readable_in_size() -> None:
    found = results(blocks=(30, 30, 30))
    assert len(json.dumps(found)) < 400_000
    assert len(shown(found)) < 2_000_000
