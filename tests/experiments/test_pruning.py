"""`leadline study pruning`: what is refused before anything is trained, and one small study from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadline.cli.main import main
from leadline.data import DataSet
from leadline.errors import LeadlineError, UsageError
from leadline.experiments.pruning import PruningWish, asked, judged, make_plan
from leadline.experiments.statistics import SMALLEST_EFFECT
from leadline.pruning.tasks import Question, Task
from leadline.training.gradient_steps import DEFINITIONS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": "1"}, "2 or more"),
        ({"blocks": 1}, "2 or more work"),
        ({"tokens": 0}, "--tokens 0"),
        ({"ratios": (0.2, 1.0)}, "between 0 and 1"),
        ({"criteria": ("cpf",)}, "cfp"),
        ({"unit": "head"}, "block"),
        ({"design": "prenrom"}, "prenorm"),
        ({"blocks": 4, "ratios": (0.01,)}, "--sweep 0.01 of 4 blocks is none"),
        ({"blocks": 4, "protect_first": 4}, "protect all of 4 blocks"),
        ({"blocks": 4, "ratios": (0.5,), "protect_first": 3}, "leave 1 to choose from"),
        ({"unit": "sublayer", "criteria": ("angular",)}, "contiguous"),
        ({"normalised": True, "criteria": ("taylor",)}, "leave --normalised out"),
        ({"learning_rate": 0.0}, "--lr 0 is out of range"),
        ({"learning_rate": float("nan")}, "--lr nan is out of range"),
        ({"backend": "compiled", "device": "cuda:0"}, "--backend compiled can't run here"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_trained(changes: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_plan(PruningWish(**changes), DataSet.resolve("sotu"))


def test_tokens_are_whole_steps() -> None:
    plan = make_plan(PruningWish(tokens=1500, blocks=4, ratios=(0.5,)), DataSet.resolve("sotu"))
    assert plan.tokens == 2048
    assert plan.shape == {"blocks": 4}


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
    found = judged({"claim": "C1", "verdict": word, "evidence": "Loss."})
    assert (found.outcome, found.evidence, found.shown().tone) == (word, "Loss.", tone)


def task(answer: int = 0, name: str = "marks") -> Task:
    return Task(name=name, questions=(Question(question="By the ", choices=("deep", "mark"), answer=answer, line=1),))


def test_a_plan_holds_the_questions() -> None:
    data = DataSet.resolve("sotu")
    plans = [make_plan(PruningWish(task=one), data) for one in (task(), task(), task(1), None)]
    assert plans[0] == plans[1]
    assert plans[0].task_hash != plans[2].task_hash
    assert (plans[0].task, plans[3].task, plans[3].task_hash) == ("marks", None, None)
    assert asked(plans[0], task()).task == task()
    for other in (task(1), None):
        with pytest.raises(UsageError, match="the plan's task is marks, with other questions"):
            asked(plans[0], other)


def test_a_choice_without_tokens_is_said_before_anything_is_trained() -> None:
    nothing = Task(name="none", questions=(Question(question="?", choices=("a", ""), answer=0, line=4),))
    with pytest.raises(LeadlineError, match="--task, line 4: the choice '' has no tokens"):
        make_plan(PruningWish(task=nothing), DataSet.resolve("sotu"))


def test_a_small_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, questions = tmp_path / "study", tmp_path / "marks.jsonl"
    questions.write_text(json.dumps({"question": "By the ", "choices": ["deep", "mark"], "answer": 0}))
    options = ["study", "pruning", "--blocks", "3", "--tokens", "3k", "--seeds", "2", "--sweep", "0.34,0.67"]
    options += ["--unit", "sublayer", "--normalised", "--task", str(questions)]
    options += ["--criteria", "cfp,magnitude", "--evaluate-tokens", "512", "--calibration-tokens", "256"]
    assert main([*options, "--out", str(out)]) == 0
    assert "C1" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert results["study"] == "pruning"
    assert set(results["sweep"]["criteria"]) == {"cfp", "magnitude"}
    assert [point["count"] for point in results["sweep"]["criteria"]["cfp"]["points"]] == [2, 4]
    assert results["sweep"]["task"] == {"name": "marks", "questions": 1}
    assert results["plan"]["normalised"] is True
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
    questions.write_text(json.dumps({"question": "By the ", "choices": ["deep", "mark"], "answer": 1}))
    assert main([*options, "--out", str(out)]) == 2
    assert "task hash is " in capsys.readouterr().err
