"""Taking blocks out in memory: what stays, what is shared, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_hub_models import BLOCKS, CONFIGS, build
from torch import Tensor, nn

from leadline.errors import LeadlineError, UsageError
from leadline.hub.surgery import blocks_of_units, find_blocks, remove_blocks
from leadline.stacks import Unit, stack_of


@pytest.fixture(scope="module")
def llama() -> Any:
    return build(CONFIGS["llama"]())


def test_agrees_with_the_stack_that_skips(llama: Any, tokens: Tensor) -> None:
    stack = stack_of(llama)
    with torch.no_grad(), stack.skipping([Unit(0), Unit(4)]):
        passed = stack.logits(tokens)
    with torch.no_grad():
        cut = remove_blocks(llama, [4, 0])(tokens, use_cache=False).logits  # as the stack's
    torch.testing.assert_close(cut, passed, rtol=0, atol=1e-10)


def test_the_new_model_shares_its_tensors_and_leaves_the_old_one_whole(llama: Any) -> None:
    cut = remove_blocks(llama, [1])
    assert len(llama.model.layers) == BLOCKS == llama.config.num_hidden_layers
    assert cut.model.layers[1].mlp.up_proj.weight is llama.model.layers[2].mlp.up_proj.weight
    assert cut.lm_head.weight is llama.lm_head.weight
    assert not cut.training


def test_mode_dtype_gradients_and_generation_settings_stay() -> None:
    model = build(CONFIGS["llama"](), dtype=torch.bfloat16).train()
    model.model.layers[2].mlp.up_proj.weight.requires_grad_(False)
    model.generation_config.top_k = 7
    cut = remove_blocks(model, [1])
    assert cut.training
    assert cut.dtype == torch.bfloat16 == cut.config.dtype
    assert not cut.model.layers[1].mlp.up_proj.weight.requires_grad
    assert cut.model.layers[0].mlp.up_proj.weight.requires_grad
    assert cut.generation_config.top_k == 7
    assert cut.generation_config is not model.generation_config


def test_removing_nothing_changes_nothing(llama: Any, tokens: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(remove_blocks(llama, [])(tokens).logits, llama(tokens).logits, rtol=0, atol=0)


def test_cut_again(llama: Any, tokens: Tensor) -> None:
    with torch.no_grad():
        twice = remove_blocks(remove_blocks(llama, [1]), [2])(tokens).logits
        once = remove_blocks(llama, [1, 3])(tokens).logits
    torch.testing.assert_close(twice, once, rtol=0, atol=0)


def test_tensors_with_a_part_per_layer_are_cut(tokens: Tensor) -> None:
    model = build(CONFIGS["gemma3n"]())
    old, new = model.model.embed_tokens_per_layer, remove_blocks(model, [0]).model.embed_tokens_per_layer
    assert new.weight.shape[1] * BLOCKS == old.weight.shape[1] * (BLOCKS - 1)
    torch.testing.assert_close(new.weight, old.weight[:, old.weight.shape[1] // BLOCKS :], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, r"attn\.scaling"),
        ("gemma3n", {}, "store_full_length_kv"),
    ],
)
def test_a_block_that_depends_on_its_number_is_refused(name: str, changes: dict[str, Any], said: str) -> None:
    model = build(CONFIGS[name](**changes))
    with pytest.raises(LeadlineError, match=said):
        remove_blocks(model, [2])


def test_a_scale_by_depth_is_refused_and_removing_behind_it_works(tokens: Tensor) -> None:
    from transformers import DiffLlamaConfig

    model = build(DiffLlamaConfig(**CONFIGS["llama"]().to_diff_dict() | {"model_type": "diffllama"}))
    with pytest.raises(LeadlineError, match=r"block 2 would not stay itself as block 1 .*lambda_init"):
        remove_blocks(model, [1])
    assert len(remove_blocks(model, [4, 5]).model.layers) == 4


def test_a_period_that_no_list_can_say_is_refused() -> None:
    from transformers import Ernie4_5_MoeConfig

    config = Ernie4_5_MoeConfig(
        **{key: value for key, value in CONFIGS["llama"]().to_diff_dict().items() if key != "model_type"},
        moe_intermediate_size=16, moe_num_experts=4, moe_k=2, moe_layer_interval=2, moe_layer_start_index=1,
    )  # fmt: skip
    model = build(config, dtype=torch.float32)
    with pytest.raises(LeadlineError, match=r"mlp is Ernie4_5_MoeSparseMoeBlock now and would be Ernie4_5_MoeMLP"):
        remove_blocks(model, [0])


def test_sublayers_are_refused_and_both_halves_are_a_block(llama: Any) -> None:
    with pytest.raises(UsageError, match=r"no block without its attention.*3\.attention.*--unit block works"):
        blocks_of_units(llama, [Unit(3, "attention"), Unit(1)])
    units = [Unit(3, "attention"), Unit(3, "mlp"), Unit(1), Unit(1, "mlp")]
    assert blocks_of_units(llama, units) == [1, 3]


def test_bad_numbers(llama: Any) -> None:
    with pytest.raises(UsageError, match="there is no block 6; the 6 blocks are 0 to 5"):
        remove_blocks(llama, [2, 6])
    with pytest.raises(UsageError, match="there is no block -1"):
        remove_blocks(llama, [-1])
    with pytest.raises(UsageError, match="all 6 blocks"):
        remove_blocks(llama, range(6))


def test_what_is_no_library_model_is_refused() -> None:
    with pytest.raises(LeadlineError, match="not a model of the transformers library"):
        remove_blocks(nn.Sequential(nn.ModuleList([nn.Linear(2, 2)])), [])
    with pytest.raises(LeadlineError, match="no list of blocks"):
        remove_blocks(nn.Linear(2, 2), [0])


def test_quantised_weights_are_refused(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama.config, "quantization_config", {"quant_method": "gptq"}, raising=False)
    with pytest.raises(LeadlineError, match="quantised"):
        remove_blocks(llama, [1])


def test_the_list_of_blocks_can_be_named(llama: Any) -> None:
    assert find_blocks(llama)[0] == "model.layers"
    assert len(remove_blocks(llama, [1], layers="model.layers").model.layers) == BLOCKS - 1
    with pytest.raises(
        UsageError,
        match=r"--layers model\.layer: .* no list of blocks at .* lists .* are: model\.layers \(6 .*\)\. Did you mean",
    ):
        remove_blocks(llama, [1], layers="model.layer")


def test_lists_inside_of_blocks_are_not_offered() -> None:
    model = nn.ModuleDict({name: nn.ModuleList([nn.Linear(2, 2)]) for name in ("encoder", "decoder")})
    model["decoder"][0].experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    with pytest.raises(UsageError, match=r"are: encoder \(1 × Linear\), decoder \(1 × Linear\)\.$"):
        find_blocks(model, "blocks")
    assert find_blocks(model, "decoder.0.experts")[0] == "decoder.0.experts"
