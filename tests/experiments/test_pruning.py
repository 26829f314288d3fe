"""`leadline study pruning`: what is refused before anything is trained, and one small study from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leadline.cli.main import main
from leadline.data import resolve
from leadline.errors import LeadlineError, UsageError
from leadline.experiments.pruning.config import PruningConfig
from leadline.experiments.pruning.experiment import Pruning
from leadline.experiments.results import Judgement
from leadline.experiments.statistics import SMALLEST_EFFECT
from leadline.training.gradient_steps import DEFINITIONS


def study(**options: Any) -> Pruning:
    return Pruning(PruningConfig().replaced(**options), resolve("sotu"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": "1"}, "2 or more"),
        ({"blocks": 1}, "2 or more work"),
        ({"tokens": 0}, "tokens=0"),
        ({"sweep": "0.2,1.0"}, "between 0 and 1"),
        ({"criteria": "cpf"}, "cfp"),
        ({"unit": "head"}, "unit=head is not known; block and sublayer work"),
        ({"sweep": "some"}, "sweep='some' is not a list of numbers"),
        ({"design": "prenrom"}, "prenorm"),
        ({"blocks": 4, "sweep": "0.01"}, "--sweep 0.01 of 4 blocks is none"),
        ({"blocks": 4, "protect_first": 4}, "protect all of 4 blocks"),
        ({"blocks": 4, "sweep": "0.5", "protect_first": 3}, "leave 1 to choose from"),
        ({"unit": "sublayer", "criteria": "angular"}, "contiguous"),
        ({"normalised": True, "criteria": "taylor"}, "leave --normalised out"),
        ({"lr": 0.0}, "lr=0 is out of range"),
        ({"lr": float("nan")}, "lr=nan is out of range"),
        ({"backend": "triton"}, "--backend triton"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_trained(changes: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        study(**changes)


def test_tokens_are_whole_steps() -> None:
    (arm,) = study(tokens=1500, blocks=4, sweep="0.5").arms
    assert arm.tokens == arm.config.data.tokens == 2048
    assert arm.config.model.blocks == 4


@pytest.mark.parametrize(
    ("word", "tone"),
    [
        ("holds", "better"),
        ("does not hold", "worse"),
        ("undecided", "plain"),
        ("no difference that matters", "plain"),
        ("depends on the definition", "plain"),
        ("open", "plain"),
    ],
)
def test_the_sweeps_verdict_is_the_studys(word: str, tone: str) -> None:
    found = Judgement(claim="C1", paper="", outcome=word, evidence="Loss.")  # type: ignore[arg-type]
    assert (found.shown().verdict, found.shown().tone) == (word, tone)


def questions(path: Path, answer: int = 0, choices: tuple[str, str] = ("deep", "mark")) -> Path:
    path.write_text(json.dumps({"question": "By the ", "choices": choices, "answer": answer}))
    return path


def test_a_study_holds_the_questions(tmp_path: Path) -> None:
    paths = [questions(tmp_path / f"{name}.jsonl", answer) for name, answer in (("a", 0), ("b", 0), ("c", 1))]
    hashes = [study(task=path).hashes for path in paths]
    assert study().hashes == {"data": hashes[0]["data"]}
    assert hashes[0]["task"] != hashes[2]["task"]


def test_a_choice_without_tokens_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(LeadlineError, match=r"none\.jsonl, line 1 is not a question: choices should be .* none empty"):
        study(task=questions(tmp_path / "none.jsonl", choices=("a", "")))


def test_a_small_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, asked = tmp_path / "study", questions(tmp_path / "marks.jsonl")
    options = ["study", "pruning", "--blocks", "3", "--tokens", "3k", "--seeds", "2", "--sweep", "0.34,0.67"]
    options += ["--unit", "sublayer", "--normalised", "--task", str(asked)]
    options += ["--criteria", "cfp,magnitude", "--evaluate-tokens", "512", "--calibration-tokens", "256"]
    assert main([*options, "--out", str(out)]) == 0
    assert "C1" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert results["experiment"] == "pruning"
    assert set(results["sweep"]["criteria"]) == {"cfp", "magnitude"}
    assert [point["count"] for point in results["sweep"]["criteria"]["cfp"]["points"]] == [2, 4]
    assert results["sweep"]["task"] == {"name": "marks", "questions": 1}
    assert json.loads((out / "experiment.json").read_text())["config"]["normalised"] is True
    assert results["command"].endswith(f" --out {out}")
    assert " --normalised " in results["command"]
    assert results["sweep"]["seeds_are"] == "models"
    judgement = results["judgements"][0]
    assert judgement["claim"].startswith("C1")
    # Two of the three rivals were not measured, and two seeds show no interval of τ-b.
    assert judgement["outcome"] == results["sweep"]["verdict"]["verdict"] == "open"
    assert "Similarity and taylor were not measured." in judgement["evidence"]
    assert "leadline study pruning" in (out / "report.html").read_text()

    # Every definition was measured, and the page names them.
    definitions = results["sweep"]["definitions"]
    assert list(definitions) == list(DEFINITIONS)
    assert definitions["sum"] == results["sweep"]["criteria"]["cfp"]
    assert results["sweep"]["smallest_effect"] == SMALLEST_EFFECT
    page = (out / "report.html").read_text()
    assert "gradient share: sum" in page
    assert all(f"{name} minus magnitude" in page for name in DEFINITIONS)

    # The share that was recorded in training is what cfp ranks by.
    record = json.loads((out / "runs" / "prenorm-seed0" / "gradient.json").read_text())
    scores = results["sweep"]["criteria"]["cfp"]["scores"][0]
    assert scores == pytest.approx(record["sublayer_share_per_parameter"])
    assert scores != pytest.approx(record["sublayer_share"])

    # Once more: nothing is trained again. With other options the folder is refused.
    trained = (out / "runs" / "prenorm-seed1" / "summary.json").stat().st_mtime_ns
    assert main([*options, "--out", str(out)]) == 0
    assert (out / "runs" / "prenorm-seed1" / "summary.json").stat().st_mtime_ns == trained
    assert main([*options, "--protect-first", "1", "--out", str(out)]) == 2
    assert "protect first is 0 there and 1 here" in capsys.readouterr().err
    questions(asked, answer=1)
    assert main([*options, "--out", str(out)]) == 2
    assert "hashes task is " in capsys.readouterr().err
