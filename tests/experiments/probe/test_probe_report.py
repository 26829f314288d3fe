"""The page of a probe: every picture where there are values, none where there are not, and true words."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from html_structure import Structure
from probe_example import PLAIN_PROBE, PROBE, SOURCES_PROBE
from probe_report_fixture import results

from leadline.config import from_dict, to_dict
from leadline.errors import UsageError
from leadline.experiments.probe.report import write_report
from leadline.experiments.probe.report.findings import _grows, compared, headline, named, sentences, summary
from leadline.experiments.probe.report.page import build
from leadline.experiments.probe.results import Bounds, Measured, ModelValues, ProbeValues
from leadline.report.page import render

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
    assert [row for row, _ in rows] == [str(block) for block in range(12)]
    assert rows[8][1].endswith('<td class="n">–</td>')


def test_blocks_are_counted_from_0_with_the_places_that_they_may_have() -> None:
    ablation = {
        **PROBE["ablation"],
        "blocks": {**PROBE["ablation"]["blocks"], "place_low": [3, 1, 1], "place_high": [3, 2, 2]},
    }
    page = shown(one(ablation=ablation))
    table = page.partition("Every block of")[2].partition("</table>")[0]
    rows = re.findall(r'<tr><th scope="row">(\d)</th>\s*<td class="n">([^<]+)</td>', table)
    assert rows == [("0", "3"), ("1", "1 to 2"), ("2", "1 to 2")]
    assert "Blocks are counted from 0, as prune --blocks counts them." in words(page)


def test_growth_is_from_block_1_on() -> None:
    assert model().growth.value == pytest.approx(0.97 / 0.52)
    assert model(activations=None).growth == Bounds(None, None, None)


def places(low: list[int], high: list[int], half: tuple[float, float, float] = (0.8, 0.7, 0.9)) -> dict[str, Any]:
    """The example's ablation with other places and another share of the first half."""
    blocks = {**PROBE["ablation"]["blocks"], "place_low": low, "place_high": high}
    share = dict(zip(("value", "low", "high"), half, strict=True))
    return {**PROBE["ablation"], "blocks": blocks, "first_half": share}


def test_blocks_that_cannot_be_told_apart_are_named_together() -> None:
    assert (model().least("ablation"), model().most("ablation")) == ([2], [0])
    assert "block 2 is needed least (prune --blocks 2)" in sentences(model())
    together = model(ablation=places([3, 1, 1], [3, 2, 2]))
    assert together.least("ablation") == [1, 2]
    assert "blocks 1 and 2 are needed least and can't be told apart, each left out by itself" in sentences(together)
    none = model(ablation=places([1, 1, 1], [3, 3, 3]))
    assert "no block can be told from the others by what leaving it out costs" in sentences(none)
    assert "prune --blocks 2" not in " ".join(sentences(none))


def test_the_first_half_is_said_only_where_chance_does_not_make_it() -> None:
    def said(*half: float) -> bool:
        return any("total ablation loss" in s for s in sentences(model(ablation=places([3, 2, 1], [3, 2, 1], half))))

    # Of three blocks the first half is one: an even share is a third.
    assert said(0.8, 0.7, 0.9)
    assert said(0.1, 0.0, 0.2)
    assert not said(0.8, 0.3, 1.3)
    assert not any(
        "total ablation loss" in s
        for s in sentences(model(ablation={**PROBE["ablation"], "first_half": {"value": 0.8}}))
    )


def test_the_headline_says_what_the_text_bears() -> None:
    def said(**probe: Any) -> str:
        return headline(ProbeValues.read(one(**probe)))

    assert said() == (
        "prenorm needs block 0 of 3 most and block 2 least: left out alone they cost 1.4 and 0.050 nats a token"
    )
    assert said(ablation=places([3, 1, 1], [3, 2, 2])) == (
        "prenorm needs block 0 of 3 most and blocks 1 and 2 least: left out alone they cost 1.4 and 0.050 to 0.30 nats "
        "a token"
    )
    assert said(ablation=places([1, 1, 1], [3, 3, 3])) == (
        "No block of prenorm can be told from the others by what leaving it out costs"
    )
    # Block 1 can't be told from either of the others.
    assert said(ablation=places([2, 1, 1], [3, 3, 2])) == (
        "Most blocks of prenorm can't be told apart by what leaving one out costs"
    )
    assert said(ablation=None) == "prenorm: block-output RMS grows 1.9× from block 1 to the end"
    assert said(ablation=None, activations=None) == "Block 2 of prenorm changes the stream least, block 0 most"
    assert said(ablation=None, activations=None, similarity=None) == "prenorm along depth"


def test_two_models_are_said_to_differ_only_where_their_intervals_do_not_overlap() -> None:
    found = results()
    assert headline(ProbeValues.read(found)).startswith(
        "The first half of the blocks accounts for 97\u00a0% of the total ablation loss in SmolLM2, for 76\u00a0% in "
    )
    for entry in found["models"]:
        entry["probe"]["ablation"]["first_half"].update(low=0.7, high=0.99)
    assert headline(ProbeValues.read(found)).startswith("From block 1 to the end block-output RMS grows 9× in")
    for entry in found["models"]:
        entry["probe"]["activations"]["growth"].update(low=1.1, high=9.9)
    assert headline(ProbeValues.read(found)).startswith("Depth of prenorm, mgr-bhyt and SmolLM2")
    assert len(compared(ProbeValues.read(found))) == 2
    found["models"][0]["probe"]["ablation"]["first_half"].update(low=0.4)
    assert len(compared(ProbeValues.read(found))) == 1


@pytest.mark.parametrize(("loss", "guesses"), [(5.6, True), (5.3, True), (4.9, False)])
def test_a_loss_of_guessing_is_said_and_importance_is_not(loss: float, guesses: bool) -> None:
    """ln 256 is 5.545."""
    found = one(lens={**PROBE["lens"], "final": {"loss": loss}})
    report = ProbeValues.read(found)
    told = " ".join(sentences(report.models[0]))
    assert ("the loss is that of guessing among 256 tokens (ln 256 = 5.545)" in told) == guesses
    assert ("needed least" in told) != guesses
    assert ("total ablation loss" in told) != guesses
    assert ("already the final ones" in told) != guesses
    assert (headline(report) == "prenorm only guesses: its loss is that of an untrained model") == guesses
    assert ("importance means nothing yet" in words(shown(found))) == guesses
    del found["models"][0]["vocab_size"]
    assert "needed least" in " ".join(sentences(ProbeValues.read(found).models[0]))


def test_criteria_that_differ_are_said() -> None:
    assert not any("criteria differ" in s for s in sentences(model()))
    other = {**PROBE["similarity"], "place_low": [1, 3, 2], "place_high": [1, 3, 2]}
    assert (
        "criteria differ on what is needed least: block 2 by leaving it out and block 0 by Block Influence"
        in sentences(model(similarity=other))
    )
    # What can't tell the blocks apart doesn't differ.
    nothing = {**PROBE["similarity"], "place_low": [1, 1, 1], "place_high": [3, 3, 3]}
    assert not any("criteria differ" in s for s in sentences(model(similarity=nothing)))
    found = one()
    found["models"][0]["training_gradient"]["share"] = [0.3, 0.2, 0.5]
    (said,) = [s for s in sentences(ProbeValues.read(found).models[0]) if "criteria differ" in s]
    assert said.endswith("block 2 by leaving it out and block 1 by gradient share")


def test_what_may_be_noise_neither_grows_nor_settles() -> None:
    assert _grows(Bounds(1.9, 1.8, 2.0)) == "grows 1.9×"
    assert _grows(Bounds(0.83, 0.8, 0.9)) == "shrinks to 0.83×"
    assert _grows(Bounds(1.02, 0.97, 1.07)) == "stays level (1.02×, 0.97 to 1.07)"
    assert _grows(Bounds(1.5, None, None)) == "is 1.5× as large (one sequence, so no interval)"
    assert any("predictions are already the final ones after block 1 of 0 to 2" in s for s in sentences(model()))
    near = {**PROBE["lens"], "agreement_low": [0.3, 0.49, 1.0]}
    assert not any("already the final ones" in s for s in sentences(model(lens=near)))
    found = one()
    found["models"][0]["training_gradient"] = None
    assert any("(45 to 55) of the gradient on this text" in s for s in sentences(ProbeValues.read(found).models[0]))
    found["models"][0]["probe"]["gradients"] = {
        **PROBE["gradients"],
        "first_half": {"value": 0.5, "low": 0.2, "high": 0.8},
    }
    assert not any("of the gradient" in s for s in sentences(ProbeValues.read(found).models[0]))


def test_runs_of_blocks_are_named_by_their_ends() -> None:
    assert named([3]) == "block 3"
    assert named([9, 1, 2, 4, 5, 6]) == "blocks 1, 2, 4 to 6 and 9"


def test_without_a_loss_none_is_told() -> None:
    bare = summary(ProbeValues.read(one(ablation=None, lens=None)))[0]
    assert bare == "prenorm: 3 blocks"


def test_a_loss_that_is_no_number_is_told() -> None:
    nothing = {"loss": None, "tokens": 96}
    told = summary(ProbeValues.read(one(ablation=nothing, lens={"final": {"loss": None}, "tokens": 96})))
    assert told[1] == "  its loss is not a finite number: it has diverged, or its weights hold NaN"


def test_sentences_of_a_model() -> None:
    found = sentences(ProbeValues.read(results(blocks=(12,))).models[0])
    assert "block 10 is needed least (prune --blocks 10)" in found
    assert "the first half of the blocks accounts for 96\u00a0% (94 to 98) of the total ablation loss" in found
    assert "massive activations reach 900 times the median, after block 4" in found
    assert "at least half of all predictions are already the final ones after block 5 of 0 to 11" in found
    assert "the first half of the blocks got 73\u00a0% of the gradient over training" in found
    assert "block 2 changes the stream least (prune --blocks 2)" in sentences(model(ablation=None))


def test_a_correlation_stands_with_its_interval() -> None:
    text = words(shown(results(blocks=(12,))))
    assert re.search(
        r"prenorm: Spearman 0\.\d\d \(0\.\d\d to 1\.00\): they rise together \(share over training\)", text
    )
    assert "Spearman 1.00" in words(shown(one()))
    assert "Spearman is not defined" in words(shown(one(ablation={"blocks": {"nats": [1.0, 1.0, 1.0]}})))


def test_a_fall_of_the_loss_lies_below_zero() -> None:
    blocks = {**PROBE["ablation"]["blocks"], "nats": [2.0, -0.1, 0.0005]}
    page = shown(one(ablation={**PROBE["ablation"], "blocks": blocks}))
    picture = page[page.index('id="ablation"') :]
    points = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="4" class="hit"><title>[^<]* in block (\d)', picture)
    at = {int(block): float(y) for _, y, block in points[:3]}
    rule = float(re.findall(r'd="M[\d.]+ ([\d.]+)L[^"]*" class="rule"', picture)[0])
    assert at[0] < at[2] < rule < at[1]
    assert "Below zero the model is better without the block." in words(page)


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


@pytest.mark.parametrize("found", [{}, {"models": []}, {"models": [{}]}, {"models": [{"probe": {}}]}])
def test_nearly_nothing_still_makes_a_page(found: dict[str, Any]) -> None:
    assert Structure(shown(found)).open == []


@pytest.mark.parametrize(
    ("found", "place"),
    [({"models": [None]}, r"models\[0\] should be a mapping"), ({"models": [{}, {"probe": 3}]}, r"models\[1\]\.probe")],
)
def test_what_is_no_result_is_named_with_its_place(found: dict[str, Any], place: str) -> None:
    with pytest.raises(UsageError, match=rf"^results\.json\.{place}"):
        shown(found)


@pytest.mark.parametrize("new", [None, float("nan"), -1.0, "text", [], {}], ids=repr)
def test_any_part_of_a_measurement_may_be_missing_and_what_is_odd_is_named(new: Any) -> None:
    base = results(blocks=(3, 3))
    parts = base["models"][1]["probe"]
    whole = [(part,) for part in parts]
    inner = [(part, key) for part, found in parts.items() if isinstance(found, dict) for key in found]
    alone = [[place] for place in (*whole, *inner)] if new == "text" else []
    for places in [whole[i::3] for i in range(3)] + [inner[i::5] for i in range(5)] + alone:
        found = copy.deepcopy(base)
        for *outer, last in places:
            changed = found["models"][1]["probe"]
            for key in outer:
                changed = changed[key]
            changed[last] = new
        said, page = "", "</style>"
        try:
            page = shown(found)
        except UsageError as error:
            said = str(error)
        assert not re.search(r"\b(nan|inf|None|NaN)\b", page[page.index("</style>") :]), places
        if new is None or new == "text":
            at = tuple(".".join(("results.json.models[1].probe", *place)) for place in places)
            assert said.startswith(at) if new else not said


@pytest.mark.parametrize("found", [PROBE, SOURCES_PROBE, PLAIN_PROBE])
def test_what_is_measured_is_read_and_written_the_same(found: dict[str, Any]) -> None:
    again = to_dict(from_dict(Measured, found))
    assert json.dumps(again, sort_keys=True) == json.dumps(found, sort_keys=True)


def test_a_page_of_a_real_size_stays_readable_in_size() -> None:
    found = results(blocks=(30, 30, 30))
    assert len(json.dumps(found)) < 400_000
    assert len(shown(found)) < 2_000_000


def test_shares_of_the_gradient_are_on_a_logarithmic_axis() -> None:
    """Where block 0 has most of it, the others can still be told apart."""
    found = one()
    found["models"][0]["training_gradient"]["share"] = [0.96, 0.02, 0.02 / 3]
    page = shown(found)
    picture = page[page.index('id="training-share"') :]
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)" r="4" class="hit"', picture)[:3]]
    assert heights[2] - heights[1] > 0.2 * (heights[1] - heights[0])
    assert "% (logarithmic)" in picture
