"""Hugging Face's families as stacks of blocks, each found by structure alone."""

from __future__ import annotations

import causal_lms
import pytest
import torch

from leadline.stacks import Unit, stack_of

pytest.importorskip("transformers")

POST_NORM = {"opt_post_norm"}
NO_NORM_BEFORE = {"opt_post_norm", "olmo2"}


@pytest.fixture(scope="module", params=causal_lms.FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def stack(family):
    return stack_of(causal_lms.make(family))


@torch.no_grad()
def test_every_block_is_told_of_and_the_sums_are_right(family, stack, watched):
    tokens = causal_lms.tokens()
    plain = stack.model(tokens, use_cache=False).logits
    told, logits = watched(stack, tokens)
    assert torch.equal(logits, plain)
    assert told.blocks == list(range(causal_lms.BLOCKS)) == list(range(stack.blocks))
    assert stack.sublayers == (("attention", "mlp"),) * causal_lms.BLOCKS
    assert stack.additive == (family not in POST_NORM)
    for block, (before, after) in enumerate(zip(told.before, told.after, strict=True)):
        if block:
            torch.testing.assert_close(before, told.after[block - 1], rtol=0, atol=0)
        assert torch.equal(told.exits[block], after)
        if stack.additive:
            outputs = told.outputs[block, "attention"] + told.outputs[block, "mlp"]
            torch.testing.assert_close(before + outputs, after, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_the_lens_is_the_models_own_head(stack, watched):
    tokens = causal_lms.tokens()
    told, logits = watched(stack, tokens)
    # Many final norms compute in float32, whatever the model's dtype, and the lens gives them rows in another shape.
    torch.testing.assert_close(stack.lens(told.after[-1]), logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(stack.lens(told.after[-1][0, 2]), logits[0, 2], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(stack.lens(told.after[0]), logits, atol=1e-2)


@torch.no_grad()
def test_the_last_block_is_not_the_library_s_last_hidden_state(family, stack, watched):
    """The library's is behind the final norm."""
    tokens = causal_lms.tokens()
    told, _ = watched(stack, tokens)
    # Without a cache, as `told` is: some families attend in float32, where another layout of the keys rounds otherwise.
    hidden = stack.model(tokens, output_hidden_states=True, use_cache=False).hidden_states
    torch.testing.assert_close(hidden[1], told.after[0], rtol=1e-9, atol=1e-9)
    if family in POST_NORM:
        return  # it has no final norm
    assert hidden[-1].shape != told.after[-1].shape or not torch.allclose(hidden[-1], told.after[-1], atol=1e-2)


@pytest.mark.parametrize(
    "units",
    [[Unit(0)], [Unit(1), Unit(2, "mlp")], [Unit(0, "attention"), Unit(1, "mlp")]],
    ids=lambda units: "+".join(map(str, units)),
)
@torch.no_grad()
def test_generation_without_a_unit_is_the_same_with_and_without_the_cache(stack, units):
    """A first block that is passed by must not break the count of positions."""
    tokens = causal_lms.tokens(9)
    whole = stack.logits(tokens)
    with stack.skipping(units):
        full = stack.logits(tokens)
        output = stack.model(tokens[:, :4], use_cache=True)
        steps = [output.logits]
        for at in range(4, 9):
            name = "past_key_values" if output.get("past_key_values") is not None else "cache"
            output = stack.model(tokens[:, at : at + 1], use_cache=True, **{name: output[name]})
            steps.append(output.logits)
    # GPT-J and MPT work out attention in float32, whatever the model's dtype.
    torch.testing.assert_close(torch.cat(steps, dim=1), full, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(full, whole, atol=1e-3)
    assert torch.equal(stack.logits(tokens), whole)


@torch.no_grad()
def test_a_block_that_is_left_out_hands_its_input_on(stack, watched):
    tokens = causal_lms.tokens()
    whole, _ = watched(stack, tokens)
    with stack.skipping([Unit(1)]):
        told, _ = watched(stack, tokens)
    assert told.blocks == [0, 2]
    assert torch.equal(told.before[1], whole.after[0])
    assert not any(block == 1 for block, _ in told.outputs)


@torch.no_grad()
def test_a_sublayer_that_is_left_out_gives_nothing(stack, watched):
    tokens = causal_lms.tokens()
    whole, _ = watched(stack, tokens)
    with stack.skipping([Unit(0, "mlp")]):
        told, _ = watched(stack, tokens)
    assert (0, "mlp") not in told.outputs
    assert torch.equal(told.outputs[0, "attention"], whole.outputs[0, "attention"])
    if stack.additive:
        torch.testing.assert_close(told.after[0], told.before[0] + whole.outputs[0, "attention"], rtol=1e-9, atol=1e-9)
    with stack.skipping([Unit(0, "attention"), Unit(0, "mlp")]):
        told, _ = watched(stack, tokens)
    assert told.blocks == [1, 2]


def test_parameters_are_counted_once(stack):
    by_block = [name for block in range(stack.blocks) for name in stack.parameters_of(Unit(block))]
    by_sublayer = [name for unit in stack.units("sublayer") for name in stack.parameters_of(unit)]
    assert len(set(by_block)) == len(by_block)
    assert set(by_sublayer) <= set(by_block)
    assert len(set(by_sublayer)) == len(by_sublayer)
    inside = {name for name, _ in stack.model.named_parameters() if name.startswith(f"{stack.path}.")}
    assert set(by_block) == inside
    assert all(p.dim() < 2 for name, p in stack.model.named_parameters() if name in inside - set(by_sublayer))


def test_whether_the_norms_ignore_size(family, stack):
    assert stack.norms_scale == (family not in NO_NORM_BEFORE)


def test_context_and_vocabulary(stack):
    assert stack.context == 64
    assert stack.vocab_size == 61
