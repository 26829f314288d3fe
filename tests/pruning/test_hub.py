"""Hugging Face models: scored, cut, and loaded again by their own library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.data import ByteTokenizer
from leadline.errors import LeadlineError, UsageError
from leadline.hub import training_batches
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
)
from leadline.pruning.gradient import recorded_gradient
from leadline.stacks import Unit

transformers = pytest.importorskip("transformers")
import tiny_hub_models  # noqa: E402 (needs transformers)

READING = EvaluationSettings(context=16, stride=16, tokens=128)

Make = Callable[..., Path]


@pytest.fixture
def hub(tmp_path: Path) -> Make:
    """`hub(name)`: a folder with a tiny model of 256 tokens, six blocks, and the byte tokenizer."""

    def make(name: str, **options: Any) -> Path:
        config = tiny_hub_models.CONFIGS[name](vocab_size=256, **options)
        model = tiny_hub_models.build(config, dtype=torch.float32)
        model.save_pretrained(tmp_path / name)
        ByteTokenizer().save(tmp_path / name)
        return tmp_path / name

    return make


def wish(criterion: str | None, **more: Any) -> PruneConfig:
    amount = {key: more.pop(key) for key in list(more) if key in Amount.__dataclass_fields__}
    return PruneConfig(criterion=criterion, amount=Amount(**amount), evaluation=READING, calibration_tokens=64, **more)


@pytest.mark.parametrize(
    ("name", "criterion"),
    [
        ("llama", "similarity"),
        ("llama", "angular"),
        ("llama", "taylor"),
        ("llama", "ablation"),
        ("gpt2", "taylor"),
        ("gpt_neox", "similarity"),
        ("qwen3", "magnitude"),
        ("qwen3", "similarity"),
        ("gemma2", "ablation"),
        ("gemma2", "taylor"),
    ],
)
def test_families(name: str, criterion: str, hub: Make, trained: Any, tmp_path: Path) -> None:
    """Also those whose layers alternate between kinds, whatever kinds go."""
    opened = open_model(hub(name))
    data = dataset_for(opened, str(trained.data))
    record = prune(opened, data, wish(criterion, count=2), tmp_path / "out")
    assert len(record["scores"]) == 6
    assert len(record["cut"]) == 2
    if criterion not in ("angular", "random"):
        assert max(record["scores"][unit] for unit in record["cut"]) <= min(record["scores"][u] for u in record["kept"])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.get_text_config().num_hidden_layers == 4
    tokens = torch.arange(12).view(1, 12)
    cut = [Unit(int(block)) for block in record["cut"]]
    with torch.no_grad(), opened.stack.skipping(cut):
        torch.testing.assert_close(model.eval()(tokens).logits, opened.stack.logits(tokens), rtol=1e-4, atol=1e-4)
    # The folder is one that can be cut again.
    again = prune(open_model(tmp_path / "out"), data, wish("magnitude", count=1), None)
    assert again["blocks"] == 4
    assert again["origin"]["earlier"]["cut"] == record["cut"]


def test_sublayers_can_only_be_passed_by(hub: Make, trained: Any, tmp_path: Path) -> None:
    opened = open_model(hub("llama"))
    data = dataset_for(opened, str(trained.data))
    asked = wish("similarity", count=2, unit="sublayer")
    with pytest.raises(UsageError, match="--unit block works"):
        prune(opened, data, asked, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(prune(opened, data, asked, None)["cut"]) == 2


def test_what_is_cut_are_the_blocks_of_the_stack(
    hub: Make, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of the largest list, which may be another: experts, a picture's encoder."""
    from leadline.hub import saving, surgery

    asked: list[tuple[str | None, list[int]]] = []
    cut_blocks = surgery.cut_blocks

    def told(model: Any, blocks: Any, *, layers: str | None = None) -> Any:
        asked.append((layers, list(blocks)))
        return cut_blocks(model, blocks, layers=layers)

    monkeypatch.setattr(surgery, "cut_blocks", told)
    monkeypatch.setattr(saving, "cut_blocks", told)
    opened = open_model(hub("llama"))
    prune(opened, dataset_for(opened, str(trained.data)), wish(None, blocks="1"), tmp_path / "out")
    assert asked == [("model.layers", [1])]


def test_what_would_not_reload_is_refused_before_it_is_measured(
    hub: Make, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_model(hub("gpt2", scale_attn_by_inverse_layer_idx=True))
    data = dataset_for(opened, str(trained.data))
    monkeypatch.setattr(cutting, "quality", measured)
    with pytest.raises(LeadlineError, match="computes it from the layer's number"):
        prune(opened, data, wish(None, blocks="1"), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpt2"]


def measured(*_: Any) -> None:
    raise AssertionError("something was measured")


@pytest.mark.parametrize("why", ["quantised", "narrowed", "spread", "generation", "outputs"])
def test_what_cannot_be_saved_at_all_is_refused_before_anything_is_scored(
    why: str, hub: Make, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_model(hub("llama"))
    data = dataset_for(opened, str(trained.data))
    model = opened.stack.model
    if why == "quantised":
        model.config.quantization_config = {"quant_method": "gptq"}
    elif why == "narrowed":
        model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.bfloat16()
    elif why == "spread":
        model.hf_device_map = {"model.layers.0": 0, "model.layers.1": "cpu"}
    elif why == "outputs":
        model.config._output_attentions = True  # as loaded: setting it by its name would be refused at once
    else:
        model.generation_config.temperature = 0.7
    said = {
        "quantised": "the weights are quantised",
        "narrowed": "inv_freq is bfloat16 here",
        "spread": "spread over devices",
        "outputs": "transformers does not save this config.json: .*output_attentions",
        "generation": r"^transformers does not save this generation_config.json: temperature can't stand",
    }[why]
    # Without a folder it is measured.
    assert len(prune(opened, data, wish("magnitude", count=1), None)["cut"]) == 1
    monkeypatch.setattr(cutting, "choose", measured)
    with pytest.raises(LeadlineError, match=said) as caught:
        prune(opened, data, wish("magnitude", count=1), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_healing_and_speed(hub: Make, trained: Any, tmp_path: Path) -> None:
    opened = open_model(hub("llama", tie_word_embeddings=True))
    data = dataset_for(opened, str(trained.data))
    before = {name: value.clone() for name, value in opened.stack.model.named_parameters()}
    asked = wish(
        None,
        blocks="2..3",
        heal=Healing(tokens=10 * 64, learning_rate=1e-3, batch_size=4, context=16),
        speed=Timing(batch_sizes=(2,), rounds=1, warm=1, prompt=8, tokens=2),
    )
    record = prune(opened, data, asked, tmp_path / "out")
    assert record["healed"]["loss"] < record["after"]["loss"]
    assert [(one["work"], one["batch_size"]) for one in record["speed"]] == [("prefill", 2), ("generation", 2)]
    # The whole model was not trained with it.
    assert all(torch.equal(value, before[name]) for name, value in opened.stack.model.named_parameters())


def test_a_record_of_gradients(hub: Make, trained: Any, tmp_path: Path) -> None:
    from leadline.training import GradientShare

    folder = hub("llama")
    opened = open_model(folder)
    data = dataset_for(opened, str(trained.data))
    with pytest.raises(UsageError, match=r"--criterion cfp: .*gradient.json"):
        prune(opened, data, wish("cfp", count=1), None)
    share = GradientShare(opened.stack.model)
    for batch in training_batches(
        opened, data, context=READING.context, tokens=64, batch_size=READING.batch_size, seed=0
    ):
        opened.stack.logits(batch.tokens).logsumexp(dim=-1).sum().backward()
        share.add(share.measure())
    share.save(folder)
    record = prune(opened, data, wish("cfp", count=1), tmp_path / "out")
    shares = share.report()["share"]
    assert record["cut"] == [str(shares.index(min(shares)))]
    assert len(recorded_gradient(open_model(tmp_path / "out"))["share"]) == 5
