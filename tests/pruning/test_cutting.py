"""A model is cut, saved, loaded again and compared; or nothing is left behind."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.data import ByteTokenizer
from leadline.designs import preset_named, resolve
from leadline.errors import LeadlineError, UsageError
from leadline.hub import heldout_batches, training_batches
from leadline.models import Decoder, RepeatConfig
from leadline.pruning import (
    Amount,
    EvaluationSettings,
    Healing,
    PruneConfig,
    Timing,
    cutting,
    dataset_for,
    open_model,
    prune,
    quality,
)
from leadline.pruning.criteria import CRITERIA
from leadline.pruning.gradient import has_gradient
from leadline.stacks import Unit, stack_of
from leadline.training import RunConfig, train
from leadline.training.gradient_file import write_gradient

READING = EvaluationSettings(context=16, stride=16, tokens=128)


def wish(criterion: str | None = "magnitude", **more: Any) -> PruneConfig:
    amount = {key: more.pop(key) for key in list(more) if key in Amount.__dataclass_fields__}
    return PruneConfig(
        criterion=criterion,
        amount=Amount(**(amount or {"count": 1})),
        evaluation=READING,
        calibration_tokens=128,
        **more,
    )


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("unit", ["block", "sublayer"])
def test_every_criterion(criterion: str, unit: str, trained: Any, tmp_path: Path) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    if (criterion, unit) == ("angular", "sublayer"):
        with pytest.raises(UsageError, match="contiguous blocks"):
            prune(opened, data, wish(criterion, unit=unit), tmp_path / "out")
        return
    record = prune(opened, data, wish(criterion, unit=unit, ratio=0.5), tmp_path / "out")
    scores = record["scores"]
    assert len(scores) == 4 * (2 if unit == "sublayer" else 1)
    assert len(record["cut"]) == len(scores) // 2
    if criterion != "angular":
        assert max(scores[u] for u in record["cut"]) <= min(scores[u] for u in record["kept"])
    reads = criterion in ("similarity", "angular", "taylor", "ablation")
    assert record["calibration"] == ({"split": "train", "tokens": 128, "context": 16} if reads else None)
    assert json.loads((tmp_path / "out" / "prune.json").read_text()) == record


def test_the_record_says_what_was_read_and_not_what_was_asked_for(trained: Any) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    asked = dataclasses.replace(wish("similarity"), calibration_tokens=10**12)
    read = prune(opened, data, asked, None)["calibration"]["tokens"]
    assert read == data.train.windows(READING.context) * READING.context
    one = dataclasses.replace(
        asked, calibration_tokens=9 * 16 + 5, evaluation=dataclasses.replace(READING, batch_size=7)
    )
    assert prune(opened, data, one, None)["calibration"]["tokens"] == 9 * 16


def test_a_cut_model_is_cut_again_by_its_record(trained: Any, tmp_path: Path) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    first = prune(opened, data, wish("cfp"), tmp_path / "one")
    shares = json.loads((trained() / "gradient.json").read_text())["share"]
    kept = [shares[int(block)] for block in first["kept"]]
    assert first["gradient_definition"] == "sum"
    gradient = json.loads((tmp_path / "one" / "gradient.json").read_text())
    assert gradient["share"] == pytest.approx([share / sum(kept) for share in kept])
    assert gradient["units"]["block"] == ["0", "1", "2"]
    assert gradient["units_before"]["block"] == first["kept"]
    whole = json.loads((trained() / "gradient.json").read_text())
    for name, values in whole["definitions"]["block"].items():
        left = [values[int(block)] for block in first["kept"]]
        assert gradient["definitions"]["block"][name] == pytest.approx([value / sum(left) for value in left])
        assert len(gradient["definitions"]["sublayer"][name]) == 6
    assert (gradient["clip"], gradient["warmup_steps"]) == (whole["clip"], whole["warmup_steps"])
    by_other = dataclasses.replace(wish("cfp"), definition="mean-of-shares")
    assert prune(open_model(tmp_path / "one"), data, by_other, None)["gradient_definition"] == "mean-of-shares"
    second = prune(open_model(tmp_path / "one"), data, wish("cfp"), tmp_path / "two")
    # The lowest of those that are left is the second lowest of the whole model.
    order = sorted(range(4), key=lambda block: shares[block])
    assert [first["kept"][int(block)] for block in second["cut"]] == [str(order[1])]
    assert second["origin"]["earlier"]["cut"] == first["cut"]


def test_half_a_block_keeps_half_its_share(trained: Any, tmp_path: Path) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    prune(opened, data, wish(None, blocks="1.mlp", unit="sublayer"), tmp_path / "out")
    whole = json.loads((trained() / "gradient.json").read_text())
    left = json.loads((tmp_path / "out" / "gradient.json").read_text())
    attention, mlp = whole["sublayer_share"][2:4]
    expected = list(whole["share"])
    expected[1] *= attention / (attention + mlp)
    assert left["share"] == pytest.approx([share / sum(expected) for share in expected])
    assert len(left["sublayer_share"]) == 7
    assert left["parameters"]["block"][1] == whole["parameters"]["sublayer"][2]
    record = prune(open_model(tmp_path / "out"), data, wish("cfp", unit="sublayer", count=3), None)
    assert len(record["cut"]) == 3


def test_nothing_to_cut(trained: Any, tmp_path: Path) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    record = prune(
        opened,
        data,
        wish("cfp", count=0, speed=Timing(batch_sizes=(1,), rounds=1, prompt=8, tokens=2)),
        tmp_path / "out",
    )
    assert record["cut"] == []
    assert record["before"] == record["after"]
    assert record["parameters"]["before"] == record["parameters"]["after"]
    assert len(Decoder.load(tmp_path / "out").blocks) == 4


def test_a_dry_run_writes_nothing_and_undoes_all(trained: Any, tmp_path: Path) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    tokens = torch.arange(12).view(1, 12)
    before = opened.stack.logits(tokens)
    record = prune(opened, data, wish("taylor", count=2), None)
    assert record["after"]["loss"] != record["before"]["loss"]
    assert record["parameters"]["after"] is None
    assert torch.equal(opened.stack.logits(tokens), before)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_refused(trained: Any, tmp_path: Path) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    (tmp_path / "out").mkdir()
    prune(opened, data, wish(), tmp_path / "out")  # an empty one will do
    with pytest.raises(UsageError, match="holds something already"):
        prune(opened, data, wish(), tmp_path / "out")


def test_an_empty_folder_that_is_there_stays_the_same_folder(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    monkeypatch.chdir(tmp_path / "here")
    record = prune(opened, data, wish(None, blocks="1"), Path("."))
    assert json.loads(Path("prune.json").read_text()) == record
    assert open_model(tmp_path / "here").stack.blocks == 3
    with pytest.raises(UsageError, match="holds something already"):
        prune(opened, data, wish(None, blocks="1"), tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "link"]


@pytest.mark.parametrize("broken", ["surgery", "reload", "unpruned", "cache", "interrupt"])
def test_nothing_is_left_behind(broken: str, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    cut, load = cutting.remove_units, Decoder.load

    def wrong_block(stack: Any, units: Any) -> Any:
        return cut(stack, [Unit(3)])

    def damaged(folder: Path) -> Decoder:
        model = load(folder)
        with torch.no_grad():
            model.blocks[0].mlp.down.weight.mul_(1.01)
        return model

    def forgetful(folder: Path) -> Decoder:
        model = load(folder)
        forward = model.forward
        model.forward = lambda tokens, **more: forward(tokens)
        return model

    def stopped(folder: Path) -> Decoder:
        raise KeyboardInterrupt

    message = {
        "surgery": "the pruned model against the original with the same units skipped: logits differ",
        "reload": "the reloaded model: blocks.0.mlp.down.weight has other values",
        "unpruned": "the reloaded model: blocks.1.attention.output.weight has other values",
        "cache": "generation with the cache: logits differ",
        "interrupt": "",
    }[broken]
    if broken == "surgery":
        monkeypatch.setattr(cutting, "remove_units", wrong_block)
    else:
        whole = lambda folder: opened.stack.model  # noqa: E731
        found = {"reload": damaged, "unpruned": whole, "cache": forgetful, "interrupt": stopped}[broken]
        monkeypatch.setattr(Decoder, "load", staticmethod(found))
    with pytest.raises(KeyboardInterrupt if broken == "interrupt" else LeadlineError, match=message or None):
        prune(opened, data, wish(None, blocks="1"), tmp_path / "sub" / "out")
    assert not (tmp_path / "sub").exists() or list((tmp_path / "sub").iterdir()) == []


def test_healing_that_ruins_the_model_says_so(
    trained: Any, saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in its last step, behind which there is no loss of training to tell."""

    def ruin(stack: Any, *args: Any, **more: Any) -> None:
        next(iter(stack.model.parameters())).detach().fill_(float("nan"))

    monkeypatch.setattr("leadline.pruning.cutting.heal", ruin)
    opened = open_model(saved("prenorm"))
    asked = wish(None, blocks="1", heal=Healing(tokens=64, learning_rate=10.0, batch_size=4, context=16))
    with pytest.raises(LeadlineError, match=r"--heal-lr 10 left a model.*a lower one may do better"):
        prune(opened, dataset_for(opened, str(trained.data)), asked, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_healing_is_reported_apart(trained: Any, saved: Any, tmp_path: Path) -> None:
    opened = open_model(saved("bhyt"))
    data = dataset_for(opened, str(trained.data))
    healing = Healing(tokens=20 * 64, learning_rate=0.01, batch_size=4, context=16)
    record = prune(opened, data, wish(None, blocks="1,2", heal=healing), tmp_path / "out")
    assert record["healed"]["loss"] < record["after"]["loss"]
    assert record["healed"]["healing"]["steps"] == 20
    model = stack_of(Decoder.load(tmp_path / "out"))
    assert quality(model, heldout_batches(opened, data, **dataclasses.asdict(READING))).loss == pytest.approx(
        record["healed"]["loss"], abs=1e-5
    )


def test_other_tokenizers_are_refused(trained: Any, tmp_path: Path) -> None:
    from leadline.data import prepare

    (tmp_path / "text.txt").write_text("By the deep, six! By the mark, seven! " * 100)
    prepare([tmp_path / "text.txt"], tmp_path / "set", "bpe:260")
    with pytest.raises(UsageError, match="wrong tokenizer"):
        dataset_for(open_model(trained()), str(tmp_path / "set"))


def test_no_record_of_gradients(trained: Any, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(trained(), tmp_path / "run")
    (tmp_path / "run" / "gradient.json").unlink()
    opened = open_model(tmp_path / "run")
    with pytest.raises(UsageError, match=r"--criterion cfp: .* has no gradient.json, .*GradientShare"):
        prune(opened, dataset_for(opened, str(trained.data)), wish("cfp"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_record_of_another_model_or_a_damaged_one(trained: Any, tmp_path: Path) -> None:
    run = shutil.copytree(trained(), tmp_path / "run")
    record = json.loads((run / "gradient.json").read_text())
    write_gradient(run, record | {"share": record["share"][:2]})
    opened = open_model(run)
    data = dataset_for(opened, str(trained.data))
    wish = PruneConfig(criterion="magnitude", amount=Amount(count=1), evaluation=READING)
    # It is not taken along: what would be left of it is no record, which every later cut would stop at.
    assert prune(opened, data, wish, tmp_path / "out")["gradient"] is None
    assert not (tmp_path / "out" / "gradient.json").exists()
    prune(open_model(tmp_path / "out"), data, wish, tmp_path / "twice")
    (run / "gradient.json").write_text("")
    said: list[str] = []
    with pytest.raises(LeadlineError, match=r"gradient\.json is damaged"):
        prune(opened, data, wish, tmp_path / "none", said.append)
    assert said == []


def test_a_checkpoint_is_cut_by_its_own_record(trained: Any, tmp_path: Path) -> None:
    """Opened as a model, which takes a tokenizer beside it."""
    import shutil

    shutil.copytree(trained(), tmp_path / "run")
    (newest,) = (tmp_path / "run" / "checkpoints").iterdir()
    older = Path(shutil.copytree(newest, newest.with_name("step-00000002")))
    record = json.loads((newest / "gradient.json").read_text())
    write_gradient(older, record | {"share": record["share"][::-1]})
    for checkpoint in (newest, older):
        ByteTokenizer().save(checkpoint)
    opened = open_model(older)
    data = dataset_for(opened, str(trained.data))
    assert has_gradient(opened)
    scores = [prune(open_model(path), data, wish("cfp"), None)["scores"] for path in (newest, older)]
    assert list(scores[0].values()) == record["share"] == list(scores[1].values())[::-1]
    for checkpoint in (newest, older):
        (checkpoint / "gradient.json").unlink()
    assert has_gradient(open_model(newest))
    assert not has_gradient(open_model(older))
    with pytest.raises(UsageError, match=r"--criterion cfp: .*step-00000002 has no gradient.json of its own"):
        prune(open_model(older), data, wish("cfp"), None)
    assert prune(open_model(older), data, wish("magnitude"), None)["gradient"] is None


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        open_model(tmp_path / "none")
    with pytest.raises(UsageError, match="holds no model"):
        open_model(tmp_path)


def test_calibration_text_is_that_of_training(trained: Any) -> None:
    opened = open_model(trained())
    data = dataset_for(opened, str(trained.data))
    train = data.train.read(0, data.train.tokens).tobytes()
    batches = training_batches(opened, data, context=READING.context, tokens=256, batch_size=READING.batch_size, seed=1)
    assert sum(batch.tokens.numel() for batch in batches) == 256
    assert all(row.numpy().tobytes() in train for batch in batches for row in batch.tokens)


def test_a_block_that_repeats_goes_with_all_its_runs(trained: Any, tmp_path: Path) -> None:
    shape = dataclasses.replace(
        preset_named("tiny").shape, context=16, blocks=3, dim=8, heads=2, kv_heads=1, head_dim=4
    )
    config = resolve("prenorm").decoder(dataclasses.replace(shape, hidden=12), 256)
    Decoder(dataclasses.replace(config, repeat=RepeatConfig(last=2, times=3))).save(tmp_path / "model")
    ByteTokenizer().save(tmp_path / "model")
    opened = open_model(tmp_path / "model")
    data = dataset_for(opened, str(trained.data))
    record = prune(opened, data, wish("ablation", ratio=0.34), tmp_path / "out")
    assert (record["blocks"], len(record["scores"]), len(record["cut"])) == (7, 3, 1)
    named = prune(opened, data, wish(None, blocks="4"), tmp_path / "named")
    assert (named["cut"], named["kept"]) == (["2"], ["0", "1"])
    assert named["checked"]["surgery"] == 0.0
    assert stack_of(Decoder.load(tmp_path / "named")).blocks == 4


@pytest.mark.parametrize("design", ["prenorm", "attnres"])
@pytest.mark.parametrize("unit", ["block", "sublayer"])
def test_a_model_that_repeats_is_cut_by_its_record(design: str, unit: str, trained: Any, tmp_path: Path) -> None:
    config = RunConfig.of(
        design=design,
        data=str(trained.data),
        blocks=3,
        dim=8,
        heads=2,
        kv_heads=1,
        head_dim=4,
        hidden=12,
        repeat="2x3",
        batch_size=4,
        context=16,
        tokens=128,
        lr=0.02,
        evaluate_tokens=64,
    )
    train(config, tmp_path / "run")
    whole = json.loads((tmp_path / "run" / "gradient.json").read_text())
    name = "share" if unit == "block" else "sublayer_share"
    opened = open_model(tmp_path / "run")
    data = dataset_for(opened, str(trained.data))
    record = prune(opened, data, wish("cfp", unit=unit), tmp_path / "out")
    assert list(record["scores"].values()) == whole[name]
    assert record["scores"][record["cut"][0]] == min(whole[name])
    left = json.loads((tmp_path / "out" / "gradient.json").read_text())
    assert len(left[name]) == len(whole[name]) - 1
    kept = [share for share in whole[name] if share != min(whole[name])]
    assert left[name] == pytest.approx([share / sum(kept) for share in kept])
    smaller = stack_of(Decoder.load(tmp_path / "out"))
    assert sum(left["parameters"]["block"]) == sum(p.numel() for p in smaller.model.blocks.parameters())
    again = prune(open_model(tmp_path / "out"), data, wish("cfp", unit=unit), None)
    assert len(again["cut"]) == 1
