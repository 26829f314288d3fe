"""`leadline study gfa` from end to end on a minute model, and its statistics and verdicts on data made by hand."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import run_here
from scipy import stats

from leadline.cli.main import main
from leadline.data import DataSet, prepare
from leadline.errors import UsageError
from leadline.experiments import engine
from leadline.experiments.gradient_fan_in import statistics
from leadline.experiments.gradient_fan_in.arms import KINDS as ARMS
from leadline.experiments.gradient_fan_in.config import GfaConfig
from leadline.experiments.gradient_fan_in.experiment import GradientFanIn, estimate_words, step_of
from leadline.experiments.gradient_fan_in.measure import block_delta
from leadline.experiments.gradient_fan_in.page import make_page
from leadline.experiments.gradient_fan_in.statistics import (
    correlation,
    late,
    late_count,
    over_seeds,
    paired,
)
from leadline.experiments.gradient_fan_in.verdict import judge, rho_words, support
from leadline.probes import TokenBatch, ablation
from leadline.probes.correlation import KINDS, coefficients
from leadline.repeating import repeating
from leadline.stacks import stack_of
from leadline.training import load_model
from leadline.training.config import options_of
from leadline.training.gradient_steps import DEFINITIONS

TEXT = "the depth of a line is what the lead finds when the rope runs out and no more can be let down"
SMALL = "--blocks 4 --context 16 --batch-size 2 --steps 6 --repeat 2x2 --evaluate-tokens 64 --ablation-tokens 128"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    folder = tmp_path_factory.mktemp("data")
    generator = random.Random(0)
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(generator.choices(TEXT.split(), k=12)) for _ in range(600)), encoding="utf-8")
    prepare(text, folder / "set", heldout=0.2)
    return DataSet.open(folder / "set")


def command(dataset: DataSet, out: Path, *more: str) -> list[str]:
    words = [*SMALL.split(), "--jobs", "1", "--threads", "1"]
    return ["study", "gfa", "--data", str(dataset.folder), "--out", str(out), *words, *more]


@pytest.fixture(scope="module")
def studied(dataset: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "run_jobs", run_here)
        assert main(command(dataset, out, "--arms", "repeated", "--seeds", "2")) == 0
    return out


def read(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return content


# ------------------------------------------------------------------------------------------------ end to end


def test_every_seed_of_an_arm_and_its_control_is_trained_and_measured(studied: Path) -> None:
    results = read(studied)
    assert [arm["name"] for arm in results["arms"]] == ["vanilla", "repeated"]
    vanilla, again = results["arms"]
    for arm in results["arms"]:
        assert arm["status"] == "ok"
        for seed, run in enumerate(arm["runs"]):
            folder = studied / run["folder"]
            assert run["seed"] == seed
            assert run["share"] == json.loads((folder / "gradient.json").read_text())["share"]
            assert sum(run["share"]) == pytest.approx(1)
            assert len(run["delta"]["nats"]) == len(run["effective_rank"]) == len(run["cosine"]) == 4
            for low, nats, high in zip(*(run["delta"][key] for key in ("low", "nats", "high")), strict=True):
                assert low <= nats <= high
    assert vanilla["runs"][0]["fan_in"] == [4, 3, 2, 1]
    # Six places: block 3 is at the third and the fifth, block 4 at the fourth and the last.
    assert again["runs"][0]["fan_in"] == [6, 5, 4 + 2, 3 + 1]
    assert again["runs"][0]["order"] == [0, 1, 2, 3, 2, 3]
    assert vanilla["runs"][0]["place_delta"] is None
    assert len(again["runs"][0]["place_delta"]["nats"]) == 6


def test_numbers_over_seeds_are_those_of_the_runs(studied: Path) -> None:
    results = read(studied)
    vanilla, again = results["arms"]
    runs = [run["delta"]["nats"] for run in vanilla["runs"]]
    shares = [run["share"] for run in vanilla["runs"]]
    expected = np.mean([stats.spearmanr(a, b).statistic for a, b in zip(shares, runs, strict=True)])
    assert vanilla["correlations"]["share_delta"]["spearman"]["value"] == pytest.approx(expected)
    assert vanilla["correlations"]["share_delta"]["over"] == "blocks and seeds"
    for arm in results["arms"]:
        for run in arm["runs"]:
            delta = run["delta"]["nats"]
            own = arm["late"]["third"]["by_seed"][str(run["seed"])]
            assert own == (pytest.approx(delta[-1] / np.mean(delta)) if np.mean(delta) > 0 else None)
    lates = [arm["late"]["third"]["by_seed"] for arm in (again, vanilla)]
    known = {
        seed: lates[0][seed] - lates[1][seed] for seed in ("0", "1") if None not in (lates[0][seed], lates[1][seed])
    }
    assert (again["against"]["third"] or {"by_seed": {}})["by_seed"] == pytest.approx(known)


def test_the_report_says_what_was_found(studied: Path) -> None:
    page, results = (studied / "report.html").read_text(encoding="utf-8"), read(studied)
    assert results["headline"] in page
    assert [judgement["claim"].split(":")[0] for judgement in results["judgements"]] == [
        "G1 for vanilla",
        "G1 for vanilla",
        "G2 for repeated",
    ]
    for name in ("share", "fan-in", "delta", "late", "share-delta", "share-fan-in", "curves", "rank", "diversity"):
        assert f'id="{name}"' in page
    assert "leadline study gfa" in page


def test_what_is_done_is_kept_and_another_study_is_an_error(
    studied: Path, dataset: DataSet, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {p: p.stat().st_mtime_ns for p in studied.rglob("*.json*") if p.name not in ("results.json", "job.json")}
    before = read(studied)
    (studied / "runs" / "repeated-seed1" / "gfa.json").unlink()
    assert main(command(dataset, studied, "--arms", "repeated", "--seeds", "2")) == 0
    assert "1 of 4 runs to do" in capsys.readouterr().err
    after = {p: p.stat().st_mtime_ns for p in kept}
    assert {p.parent.name for p in kept if kept[p] != after[p]} == {"repeated-seed1"}
    assert read(studied)["arms"] == before["arms"]
    assert main(command(dataset, studied, "--arms", "repeated", "--seeds", "3")) == 2
    assert "holds another experiment" in capsys.readouterr().err


def test_a_failed_run_is_marked_and_the_others_are_shown(studied: Path, dataset: DataSet, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(studied, out)
    folder = out / "runs" / "repeated-seed1"
    (folder / "summary.json").unlink()
    # A run of other options is in its place, which a run refuses to go on with.
    content = json.loads((folder / "run.json").read_text())
    content["config"]["seed"] = 7
    (folder / "run.json").write_text(json.dumps(content))
    assert main(command(dataset, out, "--arms", "repeated", "--seeds", "2")) == 1
    results = read(out)
    vanilla, again = results["arms"]
    assert (vanilla["status"], again["status"]) == ("ok", "partial")
    assert "holds a run with --seed 7" in again["error"]
    assert [run is None for run in again["runs"]] == [False, True]
    assert again["correlations"]["share_delta"]["over"] == "blocks"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "1 of 2 seeds" in page
    assert "What failed" in page


def test_interrupted_it_saves_and_exits_with_130(dataset: DataSet, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [*command(dataset, out, "--arms", "vanilla", "--seeds", "1")]
    words[words.index("--steps") + 1] = "20000"
    process = subprocess.Popen(
        [sys.executable, "-m", "leadline.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not list(out.glob("runs/*/run.json")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130, said
    assert not (out / "results.json").exists()
    assert not list(out.glob("runs/*/failed.json"))
    assert b"the same command continues" in said


def test_a_blocks_places_are_left_out_together(studied: Path) -> None:
    model, _ = load_model(studied / "runs" / "repeated-seed0")
    vanilla, _ = load_model(studied / "runs" / "vanilla-seed0")
    batch = _Batch(torch.arange(32).view(2, 16) + 60, torch.arange(32).view(2, 16) + 61)
    found = block_delta(stack_of(model), [0, 1, 2, 3, 2, 3], [batch])
    with torch.no_grad():
        whole = _loss(model.logits(model.hidden(batch.tokens)), batch)
        # Places 3 and 5, sublayers 4, 5 and 8, 9, are the third block's.
        without = _loss(model.logits(model.hidden(batch.tokens, skip=frozenset({4, 5, 8, 9}))), batch)
    assert found["loss"] == pytest.approx(whole, rel=1e-5)
    assert found["delta"]["nats"][2] == pytest.approx(without - whole, abs=1e-5)
    single = ablation(stack_of(vanilla), [batch], kinds=("block",))
    assert block_delta(stack_of(vanilla), [0, 1, 2, 3], [batch])["delta"]["nats"] == single["blocks"]["nats"]


@dataclasses.dataclass
class _Batch:
    tokens: torch.Tensor
    targets: torch.Tensor


def _loss(logits: torch.Tensor, batch: TokenBatch) -> float:
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()))


# ------------------------------------------------------------------------------------------------ plan and input


def asked(dataset: DataSet, **options: Any) -> GradientFanIn:
    small = {"blocks": 4, "context": 16, "batch_size": 2, "steps": 6, "repeat": "2x2", "data": str(dataset.folder)}
    return GradientFanIn(GfaConfig().replaced(**{**small, **options}), dataset)


def test_the_plan_has_what_each_arm_varies(dataset: DataSet) -> None:
    decoders = "vanilla,layerskip,equalised-adamw,vanilla-sgd,equalised-sgd,repeated"
    arms = {arm.name: arm for arm in asked(dataset, arms=decoders).arms}
    plain = options_of(arms["vanilla"].config)
    changed = {
        name: {key: value for key, value in options_of(arm.config).items() if value != plain[key] and key != "lr"}
        for name, arm in arms.items()
    }
    skip = {"exit_curriculum": "rotational", "exit_every": 1, "exit_weights": "even"}
    assert changed == {
        "vanilla": {},
        "layerskip": {"layer_dropout": 0.2, "exit_loss": 1.0, **skip},
        "equalised-adamw": {"equalise": True},
        "vanilla-sgd": {"optimizer": "sgd", "momentum": 0.9},
        "equalised-sgd": {"optimizer": "sgd", "momentum": 0.9, "equalise": True},
        "repeated": {"repeat": "2x2"},
    }
    assert arms["vanilla"].tokens == 6 * 2 * 16
    assert arms["repeated"].cost > arms["vanilla"].cost
    assert arms["equalised-sgd"].learning_rate == arms["vanilla-sgd"].learning_rate
    rated = asked(dataset, arms="vanilla", rates="vanilla=1e-3")
    assert [(arm.learning_rate, arm.config.optimizer.lr) for arm in rated.arms] == [(1e-3, 1e-3)]
    alone = asked(dataset, arms="equalised-sgd")
    assert [arm.name for arm in alone.arms] == ["vanilla-sgd", "equalised-sgd"]
    assert asked(dataset, arms="repeated", blocks=9, repeat=None).config.interventions.repeat == "3x2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": "vanila"}, "'vanila' is not known; vanilla, layerskip, .* work. Did you mean vanilla"),
        ({"arms": ","}, "names no arm; vanilla"),
        ({"repeat": "5x2"}, "repeats 5 blocks; this model has 4"),
        ({"repeat": "2x1"}, "repeat='2x1' does not work"),
        ({"blocks": 2, "repeat": "1x2"}, "blocks=2 is too small"),
        ({"layer_dropout": 0.0, "exit_loss": 0.0}, "leaves nothing of layerskip"),
        ({"layer_dropout": 1.0}, "layer_dropout=1 is out of range"),
        ({"tokens": 64}, "tokens=64 and steps=6"),
        ({"ablation_tokens": 0}, "ablation_tokens=0"),
        ({"seeds": "0"}, "--seeds 0"),
        ({"rates": "repeat=1e-3"}, "--rates names 'repeat'"),
        ({"design": "nothing"}, "nothing"),
        ({"images": "pictures", "arms": "vanilla"}, "images=pictures goes with the arm resnet50"),
        ({"layer_dropout": 0.4, "arms": "vanilla"}, "early exits go with the arm layerskip"),
        ({"images": "pictures", "arms": "resnet50"}, "--images pictures is not a folder; digits, "),
        ({"repeat": "1x99999999999"}, "repeat='1x99999999999' does not work; .* 2 to 1,000 times"),
        ({"backend": "triton"}, "--backend triton can't run here"),
        ({"equalise": True}, "equalise=True is not an option of this study; --arms equalised-adamw works"),
        ({"optimizer": "sgd"}, "--arms vanilla-sgd,equalised-sgd works"),
    ],
)
def test_what_cannot_work_is_named(dataset: DataSet, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        asked(dataset, **options)


def test_the_estimate_counts_what_is_left(dataset: DataSet, tmp_path: Path) -> None:
    (arm,) = asked(dataset, arms="vanilla").arms
    queue = [
        dataclasses.replace(arm.job(tmp_path, seed), folder=tmp_path / str(seed), tokens=1000) for seed in range(3)
    ]
    (tmp_path / "0").mkdir()
    for name in ("summary.json", "gfa.json"):
        assert not queue[0].done
        (tmp_path / "0" / name).touch()
    assert queue[0].done
    said = estimate_words(queue, 2, 1, step_of(arm.config))
    assert said.startswith("2 of 3 runs to do, 2.00 k tokens")
    assert "about" in said
    assert "once runs are on their way" in estimate_words(queue, 2, 1, None)


def test_the_command_line_repeats_what_was_asked() -> None:
    given = GfaConfig(out=Path("runs/g"), design="mgr + bhyt").replaced(repeat="2x3", steps=10)
    assert repeating(["study", "gfa"], given) == (
        "leadline study gfa --steps 10 --repeat 2x3 --design 'mgr + bhyt' --out runs/g"
    )


# ------------------------------------------------------------------------------------------------ statistics


def test_coefficients_of_resamples_are_scipys_with_ties() -> None:
    random_ = np.random.default_rng(0)
    x, y = (random_.integers(0, 4, 9).astype(float) for _ in range(2))
    items = random_.integers(0, 9, (5, 9))
    counts = np.stack([np.bincount(row, minlength=9) for row in items]).astype(float)
    found = {kind: coefficients(kind, x, y, counts) for kind in KINDS}
    for row, drawn in enumerate(items):
        assert found["pearson"][row] == pytest.approx(stats.pearsonr(x[drawn], y[drawn]).statistic)
        assert found["spearman"][row] == pytest.approx(stats.spearmanr(x[drawn], y[drawn]).statistic)
        assert found["kendall"][row] == pytest.approx(stats.kendalltau(x[drawn], y[drawn]).statistic)
    for kind in KINDS:
        assert np.isnan(coefficients(kind, np.full(3, 0.1), np.array([1.0, 2.0, 4.0]), np.ones((1, 3)))[0])


def rows(seeds: int, of_block: Any, blocks: int = 12) -> list[list[float]]:
    return [[float(of_block(seed, block)) for block in range(blocks)] for seed in range(seeds)]


def test_correlations_over_blocks_and_seeds() -> None:
    noise = np.random.default_rng(1).normal(size=(3, 12))
    falling = rows(3, lambda seed, block: 12 - block + 0.5 * noise[seed, block])
    fan_in = rows(3, lambda seed, block: 12 - block)
    found = correlation(falling, fan_in)
    assert found["over"] == "blocks and seeds"
    assert 0 < found["spearman"]["low"] <= found["spearman"]["value"] <= found["spearman"]["high"] <= 1
    assert support(found) == "supported"
    assert support(correlation([row[::-1] for row in falling], fan_in)) == "not supported"
    unrelated = correlation(noise.tolist(), fan_in)
    assert unrelated["spearman"]["low"] < 0 < unrelated["spearman"]["high"]
    assert support(unrelated) == "undecided"
    one = correlation(falling[:1], fan_in[:1])
    assert one["over"] == "blocks"
    assert one["spearman"]["low"] > 0
    assert support(one) == "undecided"


def test_an_interval_over_seeds_is_wider_where_seeds_disagree() -> None:
    up, down = list(range(12)), list(range(12))[::-1]
    agree = correlation([up, up], [up, up])["spearman"]
    differ = correlation([up, down], [up, up])["spearman"]
    assert (agree["value"], agree["low"], agree["high"]) == pytest.approx((1, 0.999, 1))
    assert (differ["value"], differ["low"], differ["high"]) == pytest.approx((0, -1, 1))
    assert differ["runs"] == pytest.approx([1, -1])


def test_three_seeds_that_differ_decide_nothing() -> None:
    """A bootstrap of three values stays between the least and the greatest of them, however far apart these are."""
    line, noise = np.arange(24.0), np.random.default_rng(0).normal(size=(3, 24))
    share = [(trend * line + noise[seed]).tolist() for seed, trend in enumerate((5.0, 0.1, 0.06))]
    found = correlation(share, [line.tolist()] * 3)
    assert min(found["spearman"]["runs"]) > 0.2
    assert found["spearman"]["low"] <= statistics.over_seeds_of(found["spearman"]["runs"])[0] < 0
    assert support(found) == "undecided"
    # atanh gives 1.472, 0.203 and 0.100: 0.592 ± 4.303 · 0.441.
    assert statistics.over_seeds_of([0.9, 0.2, 0.1]) == pytest.approx((-0.863, 0.986), abs=1e-3)


def test_two_seeds_decide_nothing() -> None:
    line = [float(block) for block in range(12)]
    assert support(correlation([line] * 2, [line] * 2)) == "undecided"
    assert support(correlation([line] * 3, [line] * 3)) == "supported"


def test_four_blocks_decide_nothing() -> None:
    """They come into a perfect order by chance once in twelve times, up or down; of five it is once in sixty."""
    for blocks, verdict in ((3, "undecided"), (4, "undecided"), (5, "supported")):
        line = [float(block) for block in range(blocks)]
        found = correlation([line] * 3, [line] * 3)
        assert (found["blocks"], found["spearman"]["value"], support(found)) == (blocks, pytest.approx(1), verdict)
    gap = correlation([[None, 1.0, 2.0, 3.0, 4.0]] * 3, [[float(block) for block in range(5)]] * 3)
    assert (gap["blocks"], support(gap)) == (4, "undecided")


def test_the_first_block_can_be_left_out_and_gaps_are() -> None:
    share, delta = [9.0, 1.0, 2.0, 3.0, 4.0], [9.0, 4.0, 3.0, 2.0, 1.0]
    assert correlation([share], [delta])["pearson"]["value"] > 0
    assert correlation([share], [delta], drop_first=True)["pearson"]["value"] == pytest.approx(-1)
    gap = correlation([[None, *share[1:]], share], [delta, delta])
    assert gap["pearson"]["value"] == pytest.approx(-1)
    even = correlation([[0.2] * 5] * 2, [delta] * 2)["spearman"]
    assert even["value"] is None
    assert even["reason"] == "the first list is constant"


def test_late_importance() -> None:
    assert late_count(24) == 8
    assert late_count(4) == late_count(2) == 1
    assert late([1.0] * 6, 2) == pytest.approx(1)
    assert late([6.0, 0.0, 0.0, 0.0, 1.0, 2.0], 2) == pytest.approx(1)
    assert late([6.0, 0.0, 0.0, 0.0, 1.0, 2.0], 2, drop_first=True) == pytest.approx(1.5 / 0.6)
    assert late([1.0, None, 1.0], 1) is None
    assert late([1.0, -2.0, 0.5], 1) is None
    three = over_seeds({0: 1.0, 1: 2.0, 2: 3.0})
    assert three is not None
    # Student's t with two degrees of freedom, 4.303, times 1/√3.
    assert (three["mean"], three["low"]) == pytest.approx((2, 2 - 4.30265 / 3**0.5), rel=1e-4)
    difference = paired({0: 1.0, 1: 2.5, 2: None, 3: 9.0}, {0: 0.5, 1: 1.5, 2: 1.0})
    assert difference is not None
    assert difference["by_seed"] == {"0": 0.5, "1": 1.0}
    assert paired({0: 1.0}, {1: 1.0}) is None


def made(name: str, share: Any, delta: Any, seeds: int = 3, **more: Any) -> dict[str, Any]:
    """An arm of `results.json` with twelve blocks, by functions of (seed, block)."""
    shares, deltas, fan_in = rows(seeds, share), rows(seeds, delta), rows(seeds, lambda seed, block: 12 - block)
    found = {
        f"share_{other}{rest}": correlation(shares, values, drop_first=bool(rest))
        for other, values in (("delta", deltas), ("fan_in", fan_in))
        for rest in ("", "_rest")
    }
    return {
        "name": name,
        "role": ARMS[name].role,
        "control": ARMS[name].control,
        "status": "ok",
        "error": None,
        "blocks": 12,
        "correlations": found,
        "definitions": dict.fromkeys(DEFINITIONS, found),
        "phases": [],
        "fits": {},
        "first_share": 0.3,
        "late": None,
        "against": None,
        **more,
    }


def wobble(seed: int, block: int) -> float:
    return 0.02 * ((7 * seed + 5 * block) % 11 - 5) / 5


def falling(seed: int, block: int) -> float:
    return 1.2 - block / 12 + wobble(seed, block)


def flat(seed: int, block: int) -> float:
    return 1.0 + wobble(seed, block)


def outcomes(arms: list[dict[str, Any]], seeds: int = 3) -> list[str]:
    return [judgement.outcome for judgement in judge(arms, seeds, 4).judgements]


def test_g1_holds_fails_and_stays_open() -> None:
    assert outcomes([made("vanilla", falling, falling)]) == ["holds"]
    assert outcomes([made("vanilla", falling, lambda seed, block: -falling(seed, block))]) == ["does not hold"]
    unrelated = np.random.default_rng(3).normal(size=(3, 12))
    assert outcomes([made("vanilla", falling, lambda seed, block: unrelated[seed, block])]) == ["open"]
    one = judge([made("vanilla", falling, falling, seeds=1)], 1, 4)
    assert one.judgements[0].outcome == "open"
    assert "One seed shows no interval over seeds" in one.judgements[0].evidence
    assert any("no interval over seeds can be shown" in sentence for sentence in one.sentences)


def test_g1_that_rests_on_the_first_block_says_so() -> None:
    arm = made("vanilla", falling, falling)
    noise = np.random.default_rng(3).normal(size=(3, 12))
    arm["correlations"]["share_delta_rest"] = correlation(noise.tolist(), rows(3, flat))
    said = judge([arm], 3, 4).judgements[0]
    assert said.outcome == "holds"
    assert "The first block has 30 % of the gradient" in said.evidence
    assert "without it one can't say that the share goes with ablation importance" in said.evidence
    assert "without it" not in judge([made("vanilla", falling, falling)], 3, 4).judgements[0].evidence


def test_g1_also_says_what_blocks_got_while_they_were_there() -> None:
    arm = made("layerskip", falling, falling)
    assert "took part" not in judge([arm], 3, 4).judgements[0].evidence
    noise = np.random.default_rng(3).normal(size=(3, 12)).tolist()
    arm["correlations"]["share_fan_in_when_present"] = arm["correlations"]["share_fan_in"]
    arm["correlations"]["share_delta_when_present"] = correlation(noise, rows(3, falling))
    said = judge([arm], 3, 4).judgements[0]
    rho = rho_words(arm["correlations"]["share_fan_in"])
    assert f"For each step in which a block took part, the sum's Spearman is {rho} with fan-in" in said.evidence
    assert "within noise with ablation importance" in said.evidence


def test_g1_does_not_rest_on_dropped_steps() -> None:
    arm = made("layerskip", falling, falling)
    noise = np.random.default_rng(3).normal(size=(3, 12)).tolist()
    for other in ("fan_in", "delta"):
        arm["correlations"][f"share_{other}_when_present"] = correlation(noise, rows(3, falling))
    said = judge([arm], 3, 4).judgements[0]
    assert said.outcome == "open"
    assert "By sum it is open" in said.evidence


def test_bits_of_an_image_are_not_bits_of_a_byte(studied: Path) -> None:
    results = read(studied)
    before = make_page(results)
    results["arms"][1]["loss_per"] = "image"
    page = make_page(results)
    cells = [row.cells[0] for row in page.table.rows]
    assert [cell.below.endswith("bits per image") for cell in cells] == [False, True]
    curves = [next(p for p in one.sections[-1].pictures if p.name == "curves") for one in (before, page)]
    assert [[name for name, _ in one.numbers.rows] for one in curves] == [["vanilla", "repeated"], ["vanilla"]]
    assert ["repeated:" in str(one.body) for one in curves] == [True, False]


def test_a_page_without_any_finished_run_is_a_page(studied: Path) -> None:
    results = read(studied)
    for arm in results["arms"]:
        arm.update(status="failed", error="no memory", correlations=None, late=None, against=None, curve=None)
        arm.update(definitions=None, phases=[], fits={})
        arm.update(runs=[None, None], bits_per_byte=None, loss=None, first_share=None, tokens_per_second=None)
    judged = judge(results["arms"], 2, 2)
    assert [judgement.outcome for judgement in judged.judgements] == ["open", "open"]
    page = make_page({**results, "judgements": [dataclasses.asdict(one) for one in judged.judgements]})
    assert [what for what, _ in page.failures] == ["vanilla", "repeated"]
