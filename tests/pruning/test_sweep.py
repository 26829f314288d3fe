"""All criteria, ratios and seeds; what is measured is what a single cut measures; the page holds it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leadline.errors import UsageError
from leadline.pruning import Amount, Reading, Wish, open_subject, prune
from leadline.pruning.criteria import CRITERIA
from leadline.pruning.report import headline, write_sweep
from leadline.pruning.sweep import SweepWish, sweep
from leadline.pruning.tasks import Question, Task

READING = Reading(context=16, stride=16, tokens=64)
BASE = Wish(criterion="random", amount=Amount(count=0), reading=READING, calibration_tokens=64)


def wish(*ratios: float, **more: Any) -> SweepWish:
    return SweepWish(ratios=ratios or (0.5, 0.25), base=more.pop("base", BASE), **more)


def test_models_of_several_seeds(trained: Any, tmp_path: Path) -> None:
    subjects = [open_subject(trained(seed=seed)) for seed in range(3)]
    data = subjects[0].data(str(trained.data))
    results = sweep(subjects, data, wish())
    assert tuple(results["criteria"]) == CRITERIA
    assert results["ratios"] == [0.25, 0.5]
    assert (results["seeds_are"], results["seeds"]) == ("models", [0, 1, 2])
    for name, one in results["criteria"].items():
        assert len(one["scores"]) == 3
        assert [len(cut) for point in one["points"] for cut in point["cut"]] == [1, 1, 1, 2, 2, 2]
        assert one["stability"]["pairs"] == 3
        # Models that lose the same blocks are still measured each by itself.
        assert all(len({q["loss"] for q in point["quality"]}) == 3 for point in one["points"])
        if name == "angular":
            continue
        for point in one["points"]:
            for scores, cut in zip(one["scores"], point["cut"], strict=True):
                kept = [score for block, score in enumerate(scores) if str(block) not in cut]
                assert max(scores[int(block)] for block in cut) <= min(kept)
    # A single cut says the same of the second model.
    single = dataclasses.replace(BASE, criterion="taylor", amount=Amount(ratio=0.5))
    record = prune(subjects[1], data, single, None)
    point = results["criteria"]["taylor"]["points"][1]
    assert record["cut"] == point["cut"][1]
    assert record["after"]["loss"] == point["quality"][1]["loss"]
    assert record["before"]["loss"] == results["whole"][1]["loss"]
    write_sweep(results, tmp_path / "out", "leadline prune a b c")
    assert json.loads((tmp_path / "out" / "results.json").read_text())["verdict"] == results["verdict"]
    page = (tmp_path / "out" / "report.html").read_text()
    for words in (headline(results), results["verdict"]["claim"], "context 16", "stride 16", "leadline prune a b c"):
        assert words in page
    assert all(f">{name}<" in page for name in CRITERIA)


def test_calibration_texts_of_one_model(trained: Any) -> None:
    subject = open_subject(trained())
    results = sweep([subject], subject.data(str(trained.data)), wish(0.5, seeds=(3, 7)))
    assert (results["seeds_are"], results["seeds"]) == ("calibration texts", [3, 7])
    assert results["criteria"]["cfp"]["stability"]["kendall"] == 1.0
    first, second = results["criteria"]["taylor"]["scores"]
    assert first != second
    assert results["verdict"]["verdict"] != "holds"


def test_sublayers_and_protected_ends(trained: Any) -> None:
    subject = open_subject(trained())
    base = dataclasses.replace(BASE, unit="sublayer", amount=Amount(count=0, protect_first=1, protect_last=1))
    results = sweep([subject], subject.data(str(trained.data)), wish(0.25, base=base, seeds=(0,)))
    assert results["left_out"] == {"angular": "it chooses contiguous blocks"}
    for one in results["criteria"].values():
        assert all(unit[0] in "12" for unit in one["points"][0]["cut"][0])
        assert one["stability"] is None


def test_similarity_of_sublayers_is_left_out_where_nothing_adds_up(saved: Any, trained: Any) -> None:
    subject = open_subject(saved("mgr(streams=2)"))
    base = dataclasses.replace(BASE, unit="sublayer")
    results = sweep([subject], subject.data(str(trained.data)), wish(0.25, base=base, seeds=(0,)))
    assert set(results["left_out"]) == {"cfp", "angular", "similarity"}
    assert "CFP was not measured" in results["verdict"]["evidence"]


def test_a_task(trained: Any) -> None:
    subject = open_subject(trained())
    task = Task(name="marks", questions=(Question(question="By the ", choices=("deep", "zzz"), answer=0),))
    results = sweep([subject], subject.data(str(trained.data)), wish(0.5, criteria=("cfp",), seeds=(0,), task=task))
    assert results["task"] == {"name": "marks", "questions": 1}
    assert results["criteria"]["cfp"]["points"][0]["quality"][0]["task"] in (0.0, 1.0)


def test_what_does_not_fit(trained: Any, saved: Any) -> None:
    subject, other = open_subject(trained()), open_subject(saved("prenorm"))
    data = subject.data(str(trained.data))
    with pytest.raises(UsageError, match=r"--criteria cfp: .* has no record of gradients"):
        sweep([other], data, wish(0.5, criteria=("cfp",)))
    with pytest.raises(UsageError, match=r"--sweep 0.1 of 4 blocks is none"):
        sweep([subject], data, wish(0.1))
    for ratios in ((0.0,), (1.0,), (0.5, 0.5)):
        with pytest.raises(UsageError, match="--sweep has"):
            wish(*ratios)
    with pytest.raises(UsageError, match="--criteria simlarity is not known"):
        wish(0.5, criteria=("simlarity",))


def test_models_of_different_tokenizers(trained: Any) -> None:
    one, two = (open_subject(trained(seed=seed)) for seed in (0, 1))
    tokenizer: Any = SimpleNamespace(hash="another")
    two.opened = dataclasses.replace(two.opened, tokenizer=tokenizer)
    with pytest.raises(UsageError, match="has another tokenizer than"):
        sweep([one, two], one.data(str(trained.data)), wish())


def test_models_of_different_depth(trained: Any, tmp_path: Path) -> None:
    subject = open_subject(trained())
    data = subject.data(str(trained.data))
    cut = dataclasses.replace(BASE, criterion=None, amount=Amount(blocks="1"))
    prune(subject, data, cut, tmp_path / "smaller")
    with pytest.raises(UsageError, match="has other blocks than"):
        sweep([subject, open_subject(tmp_path / "smaller")], data, wish(0.5))
