"""All criteria, ratios and seeds; what is measured is what a single cut measures; the page holds it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leadline.data import ByteTokenizer
from leadline.errors import LeadlineError, UsageError
from leadline.pruning import Amount, EvaluationSettings, PruneConfig, dataset_for, open_model, prune
from leadline.pruning import sweep as sweeping
from leadline.pruning.criteria import CRITERIA
from leadline.pruning.report import headline, write_sweep
from leadline.pruning.sweep import SweepConfig, asked_of, sweep
from leadline.pruning.sweep_memory import MEMORY_FILE, SweepMemory, check_sweep_folder
from leadline.pruning.tasks import Question, Task
from leadline.training.gradient_file import write_gradient

READING = EvaluationSettings(context=16, stride=16, tokens=64)
BASE = PruneConfig(criterion="random", amount=Amount(count=0), evaluation=READING, calibration_tokens=64)


def wish(*ratios: float, **more: Any) -> SweepConfig:
    return SweepConfig(ratios=ratios or (0.5, 0.25), base=more.pop("base", BASE), **more)


def test_models_of_several_seeds(trained: Any, tmp_path: Path) -> None:
    models = [open_model(trained(seed=seed)) for seed in range(3)]
    data = dataset_for(models[0], str(trained.data))
    results = sweep(models, data, wish())
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
    record = prune(models[1], data, single, None)
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
    opened = open_model(trained())
    results = sweep([opened], dataset_for(opened, str(trained.data)), wish(0.5, seeds=(3, 7)))
    assert (results["seeds_are"], results["seeds"]) == ("calibration texts", [3, 7])
    assert results["criteria"]["cfp"]["stability"]["kendall"] == 1.0
    first, second = results["criteria"]["taylor"]["scores"]
    assert first != second
    assert results["verdict"]["verdict"] == "open"
    assert "which one model can't tell from noise: without 2 of 4 blocks" in headline(results)


def test_sublayers_and_protected_ends(trained: Any) -> None:
    opened = open_model(trained())
    base = dataclasses.replace(BASE, unit="sublayer", amount=Amount(count=0, protect_first=1, protect_last=1))
    results = sweep([opened], dataset_for(opened, str(trained.data)), wish(0.25, base=base, seeds=(0,)))
    assert results["left_out"] == {"angular": "it chooses contiguous blocks"}
    for one in results["criteria"].values():
        assert all(unit[0] in "12" for unit in one["points"][0]["cut"][0])
        assert one["stability"] is None


def test_similarity_of_sublayers_is_left_out_where_nothing_adds_up(saved: Any, trained: Any) -> None:
    opened = open_model(saved("mgr(streams=2)"))
    base = dataclasses.replace(BASE, unit="sublayer")
    results = sweep([opened], dataset_for(opened, str(trained.data)), wish(0.25, base=base, seeds=(0,)))
    assert set(results["left_out"]) == {"cfp", "angular", "similarity"}
    assert "CFP was not measured" in results["verdict"]["evidence"]


def test_a_task(trained: Any) -> None:
    opened = open_model(trained())
    task = Task(name="marks", questions=(Question(question="By the ", choices=("deep", "zzz"), answer=0),))
    results = sweep(
        [opened], dataset_for(opened, str(trained.data)), wish(0.5, criteria=("cfp",), seeds=(0,), task=task)
    )
    assert results["task"] == {"name": "marks", "questions": 1}
    assert results["criteria"]["cfp"]["points"][0]["quality"][0]["task"] in (0.0, 1.0)


def test_what_does_not_fit(trained: Any, saved: Any) -> None:
    opened, other = open_model(trained()), open_model(saved("prenorm"))
    data = dataset_for(opened, str(trained.data))
    with pytest.raises(UsageError, match=r"--criteria cfp: .* has no record of gradients"):
        sweep([other], data, wish(0.5, criteria=("cfp",)))
    with pytest.raises(UsageError, match=r"--sweep 0.1 of 4 blocks is none"):
        sweep([opened], data, wish(0.1))
    for ratios in ((0.0,), (1.0,), (0.5, 0.5)):
        with pytest.raises(UsageError, match="--sweep has"):
            wish(*ratios)
    with pytest.raises(UsageError, match="--criteria simlarity is not known"):
        wish(0.5, criteria=("simlarity",))


def changed(run: Path, folder: Path, **config: Any) -> Path:
    """A copy of a run whose record says that it was trained otherwise."""
    shutil.copytree(run, folder)
    record = json.loads((folder / "run.json").read_text())
    for name, value in config.items():
        parts = [part for part in record["config"].values() if isinstance(part, dict)]
        section = next((part for part in parts if name in part), record["config"])
        section[name] = value
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_models_of_different_tokenizers(trained: Any) -> None:
    one, two = (open_model(trained(seed=seed)) for seed in (0, 1))
    tokenizer: Any = SimpleNamespace(hash="another")
    two = dataclasses.replace(two, tokenizer=tokenizer)
    with pytest.raises(UsageError, match="has another tokenizer than"):
        sweep([one, two], dataset_for(one, str(trained.data)), wish())


def test_models_of_different_depth(trained: Any, tmp_path: Path) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    cut = dataclasses.replace(BASE, criterion=None, amount=Amount(blocks="1"))
    prune(opened, data, cut, tmp_path / "smaller")
    with pytest.raises(UsageError, match="has other blocks than"):
        sweep([opened, open_model(tmp_path / "smaller")], data, wish(0.5))


def test_models_that_differ_in_more_than_their_seed(trained: Any, tmp_path: Path) -> None:
    first, other = trained(), trained(seed=1)
    data = dataset_for(open_model(first), str(trained.data))
    (tmp_path / "link").symlink_to(first)
    another, rate = trained("peri-ln", seed=1), changed(other, tmp_path / "rate", lr=0.04)
    refused = {
        tmp_path / "link": "link has the same weights as",
        another: "are configured differently: .* in the first and .* in the other",
        rate: "are trained differently: lr is 0.02 in the first and 0.04 in the other",
        changed(other, tmp_path / "twin", seed=0): "twin has the same seed as",
    }
    for path, said in refused.items():
        with pytest.raises(UsageError, match=f"{said}.*; the models of a sweep differ by seed alone: train one design"):
            sweep([open_model(first), open_model(path)], data, wish(0.5))
    # How often a run was evaluated changes nothing of what it learnt.
    asked_of([open_model(first), open_model(changed(other, tmp_path / "same", evaluate_every=2))], data, wish(0.5))


def test_what_decides_the_numbers_of_a_hugging_face_model(trained: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import tiny_hub_models
    import torch

    tiny_hub_models.build(tiny_hub_models.CONFIGS["llama"](vocab_size=256), dtype=torch.float32).save_pretrained(
        tmp_path
    )
    ByteTokenizer().save(tmp_path)

    def asked() -> dict[str, Any]:
        opened = open_model(tmp_path)
        return asked_of([opened], dataset_for(opened, str(trained.data)), wish(0.5))

    before = asked()
    assert (before["device"], before["transformers"]) == ("cpu", transformers.__version__)
    assert asked() == before
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 77.0
    (tmp_path / "config.json").write_text(json.dumps(config))
    after = asked()
    assert before["models"][0]["weights"] == after["models"][0]["weights"]
    assert before["models"] != after["models"]
    first, other = open_model(tmp_path), open_model(tmp_path)
    first.stack.model.config.rope_parameters["rope_theta"] = 10000.0
    said = "are configured differently: rope parameters rope theta is 10000.0 in the first and 77.0 in the other"
    with pytest.raises(UsageError, match=said):
        asked_of([first, other], dataset_for(first, str(trained.data)), wish(0.5))
    own = open_model(trained())
    assert "transformers" not in asked_of([own], dataset_for(own, str(trained.data)), wish(0.5))


def test_a_record_that_ranks_nothing_leaves_cfp_out(trained: Any, tmp_path: Path) -> None:
    run = changed(trained(), tmp_path / "run")
    record = json.loads((run / "gradient.json").read_text())
    write_gradient(run, {**record, "share": [None, 0.5, 0.3, 0.2]})
    opened = open_model(run)
    data = dataset_for(opened, str(trained.data))
    asked, memory = wish(0.5, seeds=(0,)), tmp_path / MEMORY_FILE
    results = sweep([opened], data, asked, memory=SweepMemory(asked_of([opened], data, asked), memory))
    assert "gradient.json has no share for block 0" in results["left_out"]["cfp"]
    assert tuple(results["criteria"]) == CRITERIA[1:]
    with pytest.raises(
        UsageError, match=r"^--criteria cfp: .* has no share for block 0.*; similarity, angular, .* work"
    ):
        sweep([opened], data, wish(0.5, criteria=("cfp",)))
    # With the record mended, what was measured stays; only cfp is new, and new again with another record.
    known = json.loads(memory.read_text())["known"]
    for shares in ([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]):
        (run / "gradient.json").write_text(json.dumps({**record, "share": shares}))
        again = SweepMemory(asked_of([opened], data, asked), memory)
        assert again.dropped == []
        assert sweep([opened], data, asked, memory=again)["criteria"]["cfp"]["scores"] == [shares]
        assert json.loads(memory.read_text())["known"].items() >= known.items()


def test_what_is_known_of_a_model_stays_whichever_models_are_beside_it(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def told(text: str) -> None:
        measured.append(text)

    folders = [shutil.copytree(trained(seed=seed), tmp_path / f"seed{seed}") for seed in range(3)]
    data, asked, memory = dataset_for(open_model(folders[0]), str(trained.data)), wish(0.5), tmp_path / MEMORY_FILE

    def swept(*paths: Path, asked: SweepConfig = asked) -> SweepMemory:
        models = [open_model(path) for path in paths]
        kept = SweepMemory(asked_of(models, data, asked), memory)
        sweep(models, data, asked, told, kept)
        return kept

    swept(folders[0], folders[2])
    measured.clear()
    folders[0].rename(tmp_path / "moved")
    swept(tmp_path / "moved", folders[1], folders[2])
    # `random` draws by the place among the models, and the place of one has changed.
    assert all(text.startswith("seed1: ") or "random" in text for text in measured if " of " not in text)
    assert any(text.startswith("seed1: ") for text in measured)
    monkeypatch.setattr(sweeping, "versions", lambda hugging_face: {"leadline": "0.0"})
    assert swept(tmp_path / "moved", folders[1]).dropped[0].startswith("leadline is ")


def test_a_headline_names_noise(trained: Any) -> None:
    def results(smallest: float = 0.05, **losses: list[float]) -> dict[str, Any]:
        def quality(values: list[float]) -> list[dict[str, float]]:
            return [{"bits_per_byte": value, "perplexity": 2 * value} for value in values]

        criteria = {name: {"points": [{"count": 1, "quality": quality(v)}]} for name, v in losses.items()}
        return {
            "criteria": criteria, "seeds_are": "models", "whole": quality([1.0]), "ratios": [0.5], "unit": "block",
            "units": ["0", "1"], "definition": "clipped", "smallest_effect": smallest,
        }  # fmt: skip

    low, near, high = [2.0, 2.1, 2.02], [2.05, 2.07, 2.06], [3.0, 3.15, 2.99]
    tail = ": without 1 of 2 blocks perplexity goes from 2 to 4.08"
    assert headline(results(cfp=low, taylor=near, random=high)) == (
        f"cfp (clipped) loses least over these ratios, but is not told apart by 0.05 bits per byte from taylor{tail}"
    )
    assert headline(results(cfp=low, random=high)) == f"cfp (clipped) loses least over these ratios{tail}"
    assert headline(results(cfp=low)) == f"cfp (clipped) is the only criterion{tail}"
    # Beyond noise, and less than what matters.
    after = [value + 0.02 + 0.001 * seed for seed, value in enumerate(low)]
    assert "but is not told apart by 0.05 bits per byte from taylor" in headline(results(cfp=low, taylor=after))
    assert headline(results(0.0, cfp=low, taylor=after)) == f"cfp (clipped) loses least over these ratios{tail}"


def test_cfp_is_measured_by_every_definition_and_a_cut_is_measured_once(trained: Any, tmp_path: Path) -> None:
    run = changed(trained(), tmp_path / "run")
    record = json.loads((run / "gradient.json").read_text())
    up = [0.1, 0.2, 0.3, 0.4]
    record["definitions"]["block"] |= {"clipped": up[::-1], "mean-of-shares": up[::-1], "after-warmup": up}
    (run / "gradient.json").write_text(json.dumps({**record, "share": up}))
    (run / "checksums.json").unlink(missing_ok=True)
    opened = open_model(run)
    data, measured = dataset_for(opened, str(trained.data)), []
    base = dataclasses.replace(BASE, definition="clipped")
    found = sweep([opened], data, wish(0.5, base=base, criteria=("cfp",), seeds=(0,)), measured.append)
    cuts = {name: one["points"][0]["cut"][0] for name, one in found["definitions"].items()}
    assert cuts == {
        "sum": ["0", "1"], "clipped": ["2", "3"], "mean-of-shares": ["2", "3"], "after-warmup": ["0", "1"]
    }  # fmt: skip
    assert sum(" cut, seed" in text for text in measured) == 2
    assert (found["definition"], found["criteria"]["cfp"]["scores"]) == ("clipped", [up[::-1]])
    # A single cut by it says the same.
    single = dataclasses.replace(base, criterion="cfp", amount=Amount(ratio=0.5))
    cut = prune(opened, data, single, None)
    assert (cut["gradient_definition"], cut["cut"]) == ("clipped", ["2", "3"])
    # A run that goes on from before each step's norms were kept has no other definitions.
    record["definitions"] = {"block": {}, "sublayer": {}}
    (run / "gradient.json").write_text(json.dumps({**record, "share": up}))
    (run / "checksums.json").unlink(missing_ok=True)
    opened = open_model(run)
    found = sweep([opened], data, wish(0.5, seeds=(0,)))
    assert list(found["definitions"]) == ["sum"]
    assert "has no shares by it" in found["left_out"]["cfp by clipped"]
    with pytest.raises(UsageError, match=r"--gradient-definition clipped: gradient\.json has no shares by it"):
        prune(opened, data, single, None)
    with pytest.raises(UsageError, match=r"--criteria cfp: .* has no shares by it"):
        sweep([opened], data, wish(0.5, base=base, criteria=("cfp",)))
    with pytest.raises(UsageError, match="--gradient-definition clip is not known; sum, clipped, mean-of-shares"):
        dataclasses.replace(BASE, definition="clip")


def test_normalised_goes_with_cfp() -> None:
    base = dataclasses.replace(BASE, normalised=True)
    with pytest.raises(
        UsageError, match=r"--criteria taylor,random is without it; leave --normalised out, or name cfp"
    ):
        wish(0.5, base=base, criteria=("taylor", "random"))
    wish(0.5, base=base, criteria=("taylor", "cfp"))
    wish(0.5, base=base)


def test_a_task_with_a_choice_without_tokens_is_refused_first(trained: Any) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    tokenizer: Any = SimpleNamespace(hash="", encode=lambda text: [])
    opened = dataclasses.replace(opened, tokenizer=tokenizer)
    task = Task(name="marks", questions=(Question(question="By", choices=("a", "b"), answer=0, line=7),))
    said: list[str] = []
    with pytest.raises(LeadlineError, match="--task, line 7: the choice 'a' has no tokens"):
        sweep([opened], data, wish(0.5, criteria=("cfp",), seeds=(0,), task=task), said.append)
    assert said == []


def test_errors_of_a_criterion_name_the_option_of_a_sweep(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_model(trained())
    monkeypatch.setattr("leadline.pruning.criteria.magnitude", lambda stack, kind: [float("nan")] * 4)
    with pytest.raises(LeadlineError, match=r"^--criteria magnitude is nan for block 0"):
        sweep([opened], dataset_for(opened, str(trained.data)), wish(0.5, criteria=("magnitude",), seeds=(0,)))


def test_a_changed_memory_is_damaged(trained: Any, tmp_path: Path) -> None:
    opened = open_model(trained())
    data, path = dataset_for(opened, str(trained.data)), tmp_path / MEMORY_FILE
    asked = wish(0.5, criteria=("magnitude",), seeds=(0,))
    (tmp_path / f".{MEMORY_FILE}.1.partial").touch()
    check_sweep_folder(tmp_path)  # a sweep that was killed in its first write goes on
    found = sweep([opened], data, asked, memory=SweepMemory(asked_of([opened], data, asked), path))
    assert [entry.name for entry in tmp_path.iterdir()] == [MEMORY_FILE]
    kept = json.loads(path.read_text())
    scores = next(name for name in kept["known"] if "scores by" in name)
    for name, value in ((scores, {"scores": [1.0], "windows": None}), (next(iter(kept["known"])), None)):
        path.write_text(json.dumps({**kept, "known": {**kept["known"], name: value}}))
        with pytest.raises(LeadlineError, match="damaged: it holds other numbers than were written; remove it"):
            SweepMemory(asked_of([opened], data, asked), path)
    # What the error says helps, also beside the results of a sweep, and never those of anything else.
    path.unlink()
    write_sweep(found, tmp_path, "leadline prune")
    check_sweep_folder(tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UsageError, match="holds something already"):
        check_sweep_folder(tmp_path)
