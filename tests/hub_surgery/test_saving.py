"""A pruned model is saved only if it comes back as itself."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_hub_models import CONFIGS, build
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from leadline.errors import LeadlineError, UsageError
from leadline.hub.agreement import check_cache, sample_tokens
from leadline.hub.saving import load_causal_lm, save_checked, save_pruned
from leadline.hub.surgery import remove_blocks
from leadline.stacks.bypass import bypassing


@pytest.fixture(scope="module")
def llama() -> Any:
    return build(CONFIGS["llama"]())


@pytest.fixture(scope="module")
def tied() -> Any:
    return build(CONFIGS["llama"](tie_word_embeddings=True))


def logits(model: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_says_what_was_done(llama: Any, tmp_path: Path) -> None:
    saved = save_pruned(llama, [4, 1], tmp_path / "a" / "cut", record={"criterion": "random"})
    assert (saved.kept, saved.removed) == ((0, 2, 3, 5), (1, 4))
    assert saved.parameters_before - saved.parameters == 2 * sum(p.numel() for p in llama.model.layers[0].parameters())
    assert saved.difference == 0.0
    assert saved.steps >= 5
    assert saved.changed == {"num_hidden_layers": 4}
    assert json.loads((tmp_path / "a" / "cut" / "pruning.json").read_text()) == {"criterion": "random"}
    assert left_behind(tmp_path / "a") == ["cut"]
    assert not list((tmp_path / "a" / "cut").glob("*.bin"))


def test_removing_a_block_by_hand_breaks_the_cache(llama: Any, tokens: Tensor, generate: Any) -> None:
    """Public failure: `del model.model.layers[i]` leaves layer numbers with a gap."""
    naive = remove_blocks(llama, [])
    del naive.model.layers[0]
    naive.config.num_hidden_layers -= 1
    with pytest.raises((LeadlineError, IndexError)):
        check_cache(naive, tokens)
    cut = remove_blocks(llama, [0])
    assert [layer.self_attn.layer_idx for layer in cut.model.layers] == list(range(5))
    torch.testing.assert_close(generate(cut, tokens), logits(cut, tokens), rtol=0, atol=1e-3)
    assert check_cache(cut, tokens) >= 5


def test_layer_types_are_shortened_on_reload(tmp_path: Path) -> None:
    """Public failure: the reloaded model has the whole model's kinds of attention."""
    model = build(CONFIGS["qwen2"]())
    assert model.config.layer_types == ["full_attention"] * 3 + ["sliding_attention"] * 3
    save_pruned(model, [1, 4], tmp_path / "cut")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "cut")
    assert loaded.config.layer_types == ["full_attention"] * 2 + ["sliding_attention"] * 2
    assert loaded.config.max_window_layers == 2
    assert [layer.self_attn.sliding_window for layer in loaded.model.layers] == [None, None, 8, 8]


def test_head_counts_per_layer_are_cut(tokens: Tensor, tmp_path: Path) -> None:
    """Public failure: head-count arrays keep the whole model's length, and a list that only looks like one stays."""
    from heads_per_layer import HeadsConfig, register

    register()
    values = {key: value for key, value in CONFIGS["llama"](head_dim=8).to_diff_dict().items() if key != "model_type"}
    config = HeadsConfig(
        **values, heads_of_layers=[4, 2, 4, 2, 4, 4], kv_heads=[2, 2, 1, 1, 4, 2], lucky_numbers=[9, 8, 7, 6, 5, 4]
    )
    save_pruned(build(config), [0, 3], tmp_path / "cut", tokens=tokens)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "cut")
    assert loaded.config.heads_of_layers == [2, 4, 4, 4]
    assert loaded.config.kv_heads == [2, 1, 4, 2]
    assert loaded.config.lucky_numbers == [9, 8, 7, 6, 5, 4]
    assert [layer.self_attn.k_proj.out_features for layer in loaded.model.layers] == [16, 8, 32, 16]


def test_a_reloaded_model_that_is_the_unpruned_one_is_an_error(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public failure: what comes back is silently the whole model."""
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *args, **kwargs: (llama, {}))
    with pytest.raises(LeadlineError, match="5 blocks were saved and 6 come back"):
        save_pruned(llama, [2], tmp_path / "cut")
    assert left_behind(tmp_path) == []


def test_one_weight_that_comes_back_otherwise_is_an_error(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision its effect on the logits is far below what rounding may do."""
    llama.save_pretrained(tmp_path / "whole")
    model = load_causal_lm(tmp_path / "whole", torch.bfloat16)

    def tampered(folder: str, **options: Any) -> Any:
        loaded, info = load(folder, **options)
        with torch.no_grad():
            loaded.model.layers[2].mlp.up_proj.weight[0, 0] *= 1.01
        return loaded, info

    load = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", tampered)
    with pytest.raises(LeadlineError, match=r"the reloaded model: model.layers.2.mlp.up_proj.weight has other values"):
        save_pruned(model, [1], tmp_path / "cut")
    assert left_behind(tmp_path) == ["whole"]


def test_a_model_that_was_cast_is_refused_with_the_reason(llama: Any) -> None:
    with pytest.raises(LeadlineError, match=r"rotary_emb.inv_freq is bfloat16 here.*load it with dtype=bfloat16"):
        remove_blocks(copy.deepcopy(llama).to(torch.bfloat16), [1])


def test_a_block_that_adds_in_place_can_be_skipped() -> None:
    class Adding(nn.Module):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return hidden_states.add_(1.0)

    blocks = nn.ModuleList([Adding(), Adding()])
    with bypassing(blocks, [0]):
        read = torch.zeros(1, 2, 3)
        assert torch.equal(blocks[1](blocks[0](hidden_states=read)), torch.ones(1, 2, 3))
        assert torch.equal(blocks[0](torch.zeros(1)), torch.zeros(1))
    assert torch.equal(blocks[0](torch.zeros(1)), torch.ones(1))


def test_a_block_that_returns_a_list_can_be_skipped() -> None:
    """As those of the first GPT do."""

    class Listing(nn.Module):
        def forward(self, hidden_states: Tensor) -> list[Any]:
            return [hidden_states + 1.0, "weights"]

    block, read = Listing(), torch.zeros(2, 2, 3)
    with bypassing(nn.ModuleList([block]), [0]):
        hidden, other = block(read)
        assert torch.equal(hidden, read)
        assert other == "weights"


def test_code_that_does_not_come_along_is_not_named(llama: Any, tmp_path: Path) -> None:
    """Who trusts it (`trust_remote_code=True`) could load nothing."""
    model = copy.copy(llama)
    model.config = copy.deepcopy(llama.config)
    model.config.auto_map = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "owner/name--code.Model"}
    save_pruned(model, [1], tmp_path / "cut")
    assert json.loads((tmp_path / "cut" / "config.json").read_text())["auto_map"] == {
        "AutoModelForCausalLM": "owner/name--code.Model"
    }
    del model.config.auto_map["AutoModelForCausalLM"]
    save_pruned(model, [1], tmp_path / "other")
    assert "auto_map" not in json.loads((tmp_path / "other" / "config.json").read_text())
    assert (
        AutoModelForCausalLM.from_pretrained(tmp_path / "other", trust_remote_code=True).config.num_hidden_layers == 5
    )


@pytest.mark.parametrize("said", [True, False])
def test_a_tied_head_stays_tied(said: bool, tied: Any, tokens: Tensor, tmp_path: Path) -> None:
    """Public failure: the head is lost on save, or comes back as another tensor. What counts is the model itself."""
    model = tied
    if not said:
        model = build(CONFIGS["llama"]())
        model.lm_head.weight = model.model.embed_tokens.weight
    expected = logits(remove_blocks(model, [1]), tokens)
    save_pruned(model, [1], tmp_path / "cut")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "cut", attn_implementation="eager")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    torch.testing.assert_close(logits(loaded, tokens), expected, rtol=0, atol=1e-10)
    assert "lm_head.weight" not in load_file(tmp_path / "cut" / "model.safetensors")


def test_an_untied_head_stays_untied_whatever_the_configuration_says(tokens: Tensor, tmp_path: Path) -> None:
    model = build(CONFIGS["llama"](tie_word_embeddings=True))
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    expected = logits(remove_blocks(model, [1]), tokens)
    save_pruned(model, [1], tmp_path / "cut")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "cut", attn_implementation="eager")
    torch.testing.assert_close(logits(loaded, tokens), expected, rtol=0, atol=1e-10)


def test_missing_and_left_over_weights_are_errors(llama: Any, tmp_path: Path) -> None:
    save_pruned(llama, [1], tmp_path / "cut")
    path = tmp_path / "cut" / "model.safetensors"
    weights = load_file(path)
    save_file({key: value for key, value in weights.items() if key != "lm_head.weight"}, path, {"format": "pt"})
    with pytest.raises(LeadlineError, match=r"missing keys: lm_head\.weight"):
        load_causal_lm(tmp_path / "cut", torch.float64)
    extra = {f"model.layers.5.mlp.{name}_proj.weight": torch.ones(2, 2) for name in ("up", "down")}
    save_file(weights | extra, path, {"format": "pt"})
    with pytest.raises(LeadlineError, match=r"unexpected keys: model\.layers\.5\.mlp\.down_proj\.weight and 1 more"):
        load_causal_lm(tmp_path / "cut", torch.float64)


def test_a_configuration_that_comes_back_otherwise_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kinds of layers are compared as such: logits of a text shorter than the window would not show them."""
    model = build(CONFIGS["qwen3"](sliding_window=64))
    save = transformers.PreTrainedModel.save_pretrained

    def spoilt(self: Any, folder: Path, **options: Any) -> None:
        save(self, folder, **options)
        path = Path(folder) / "config.json"
        values = json.loads(path.read_text())
        values["layer_types"] = ["full_attention"] * len(values["layer_types"])
        path.write_text(json.dumps(values))

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", spoilt)
    with pytest.raises(LeadlineError, match=r"sliding_window is None|layer_types|attention_type|sliding"):
        save_pruned(model, [1], tmp_path / "cut")
    assert left_behind(tmp_path) == []


def test_weights_that_come_back_otherwise_are_an_error(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = transformers.PreTrainedModel.save_pretrained

    def spoilt(self: Any, folder: Path, **options: Any) -> None:
        save(self, folder, **options)
        path = Path(folder) / "model.safetensors"
        weights = load_file(path)
        weights["model.norm.weight"][3] *= 1.01
        save_file(weights, path, {"format": "pt"})

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", spoilt)
    with pytest.raises(LeadlineError, match=r"the reloaded model: model.norm.weight has other values"):
        save_pruned(llama, [1], tmp_path / "cut")
    assert left_behind(tmp_path) == []


def test_a_cache_that_answers_otherwise_is_an_error(
    llama: Any, tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama.model.layers[3].self_attn, "layer_idx", 2)
    with pytest.raises(LeadlineError, match="cannot generate with its cache"):
        check_cache(llama, tokens)


def test_the_language_model_of_a_composite_is_cut(tokens: Tensor, tmp_path: Path) -> None:
    text = CONFIGS["gemma3"]().to_diff_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision | {"num_hidden_layers": 6}, mm_tokens_per_image=1,
        image_token_index=60, boi_token_index=59, eoi_token_index=58, tie_word_embeddings=False,
    )  # fmt: skip
    saved = save_pruned(build(config), [1, 3], tmp_path / "cut", tokens=tokens.clamp(max=57))
    assert len(saved.model.model.language_model.layers) == 4
    assert len(saved.model.model.vision_tower.encoder.layers) == 6
    assert saved.model.config.text_config.layer_types[1] == "full_attention"


def test_half_precision(tmp_path: Path) -> None:
    model = build(CONFIGS["llama"](), dtype=torch.bfloat16)
    saved = save_pruned(model, [1], tmp_path / "cut")
    assert saved.model.dtype == torch.bfloat16
    assert saved.difference == 0.0
    assert json.loads((tmp_path / "cut" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_folder_that_holds_something_stays(llama: Any, tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"--out .* holds something already"):
        save_pruned(llama, [1], tmp_path / "cut")
    assert left_behind(tmp_path / "cut") == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    save_pruned(llama, [1], tmp_path / "empty")
    assert (tmp_path / "empty" / "model.safetensors").is_file()


def test_tokenizer_files_come_along(llama: Any, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "model.safetensors", "notes.txt"):
        (tmp_path / "from" / name).write_text("{}")
    save_pruned(llama, [1], tmp_path / "cut", tokenizer=tmp_path / "from")
    assert (tmp_path / "cut" / "tokenizer.json").read_text() == "{}"
    assert (tmp_path / "cut" / "chat_template.jinja").is_file()
    assert not (tmp_path / "cut" / "notes.txt").exists()
    assert (tmp_path / "cut" / "model.safetensors").read_text(errors="replace") != "{}"


def written(model: Any, folder: Path, **entries: Any) -> Any:
    """The model as loaded again, with these entries in its `generation_config.json`."""
    model.save_pretrained(folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return load_causal_lm(folder, torch.float64)


@pytest.mark.parametrize(
    "entries",
    [
        {"do_sample": False, "temperature": 0.7, "top_p": 0.9},
        {"do_sample": True, "num_return_sequences": 2},
        {"stop_strings": ["stop"]},
        {"prompt_lookup_num_tokens": 3},
        {"cache_implementation": "offloaded"},
    ],
)
def test_settings_of_generation_come_along_and_do_not_disturb_the_comparison(
    entries: dict[str, Any], llama: Any, tmp_path: Path
) -> None:
    model = written(llama, tmp_path / "whole", **entries)
    saved = save_pruned(model, [1], tmp_path / "cut")
    again = json.loads((tmp_path / "cut" / "generation_config.json").read_text())
    assert {name: again[name] for name in entries} == entries
    assert all(getattr(saved.model.generation_config, name) == value for name, value in entries.items())


def test_settings_that_the_library_does_not_save_are_named_first(llama: Any, tmp_path: Path) -> None:
    """It saves what it loaded, and nothing that was changed to contradict itself."""
    model = written(llama, tmp_path / "whole")
    model.generation_config.temperature = 0.7
    model.generation_config.top_p = 0.9
    for save in (lambda out: save_pruned(model, [1], out), lambda out: save_checked(model, out)):
        with pytest.raises(LeadlineError, match=r"generation_config.json: temperature, top_p can't stand") as caught:
            save(tmp_path / "cut")
        assert "\n" not in str(caught.value)
    model.generation_config.num_return_sequences = 2
    with pytest.raises(LeadlineError, match=r"generation_config.json: Greedy methods .*num_return_sequences") as caught:
        save_pruned(model, [1], tmp_path / "cut")
    assert "\n" not in str(caught.value)
    assert left_behind(tmp_path) == ["whole"]


def test_what_the_library_says_is_one_line(llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **options: Any) -> Any:
        raise ValueError("one\n\n  two")

    for owner, name, said in (
        (transformers.PreTrainedModel, "save_pretrained", "cannot be saved"),
        (AutoModelForCausalLM, "from_pretrained", "cannot load it"),
        (transformers.LlamaForCausalLM, "_from_config", "cannot be built with 5 of 6 blocks"),
        (transformers.LlamaConfig, "from_dict", "does not accept its own values with 5 of 6 blocks"),
        (transformers.LlamaForCausalLM, "generate", "cannot generate with its cache"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            with pytest.raises(LeadlineError, match=said) as caught:
                save_pruned(llama, [1], tmp_path / "cut")
        assert "\n" not in str(caught.value)
    assert left_behind(tmp_path) == []


def test_a_folder_of_templates_comes_along(llama: Any, tmp_path: Path) -> None:
    """`save_pretrained` of a tokenizer with several of them makes one."""
    (tmp_path / "from" / "additional_chat_templates").mkdir(parents=True)
    (tmp_path / "from" / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    save_pruned(llama, [1], tmp_path / "cut", tokenizer=tmp_path / "from")
    assert (tmp_path / "cut" / "additional_chat_templates" / "tools.jinja").read_text() == "{{ tools }}"


def test_a_model_trained_further_is_saved_with_the_same_checks(llama: Any, tokens: Tensor, tmp_path: Path) -> None:
    cut = remove_blocks(llama, [1])
    loaded = save_checked(cut, tmp_path / "healed")
    torch.testing.assert_close(logits(loaded, tokens), logits(cut, tokens), rtol=0, atol=0)


def test_tokens_to_compare_with_are_always_the_same(llama: Any) -> None:
    one, other = sample_tokens(llama), sample_tokens(llama)
    assert torch.equal(one, other)
    assert one.shape == (2, 40)
    assert one.max() < llama.config.vocab_size
