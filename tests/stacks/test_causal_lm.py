"""What a stack of somebody else's blocks must do beyond the families: undo, gradients, sharing, unknown layouts."""

from __future__ import annotations

import copy

import causal_lms
import pytest
import torch
from torch import nn

from leadline.errors import LeadlineError, UsageError
from leadline.stacks import StackWatcher, Unit, stack_of

pytest.importorskip("transformers")


def traces_left(model):
    """What hooks and replaced methods there are in a model."""
    return [
        name
        for name, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    ]


@pytest.mark.parametrize(("family", "path"), [("llama", "model.layers"), ("gpt2", "transformer.h")])
@torch.no_grad()
def test_leaving_blocks_out_is_what_a_model_without_them_says(family, path):
    model = causal_lms.make(family)
    stack, tokens = stack_of(model), causal_lms.tokens()
    smaller = copy.deepcopy(model)
    owner, _, name = path.rpartition(".")
    setattr(smaller.get_submodule(owner), name, nn.ModuleList(smaller.get_submodule(path)[1:2]))
    with stack.skipping([Unit(0), Unit(2)]):
        torch.testing.assert_close(stack.logits(tokens), smaller(tokens, use_cache=False).logits, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("family", "unit", "silenced"),
    [
        ("llama", Unit(1, "attention"), {"model.layers.1.self_attn.o_proj.weight": 0.0}),
        ("llama", Unit(2, "mlp"), {"model.layers.2.mlp.down_proj.weight": 0.0}),
        ("gpt_neox", Unit(1, "mlp"), {f"gpt_neox.layers.1.mlp.dense_4h_to_h.{n}": 0.0 for n in ("weight", "bias")}),
        ("opt", Unit(0, "mlp"), {f"model.decoder.layers.0.fc2.{n}": 0.0 for n in ("weight", "bias")}),
        ("bloom", Unit(1, "attention"), {f"transformer.h.1.self_attention.dense.{n}": 0.0 for n in ("weight", "bias")}),
        # Gemma's gain is 1 + weight, and what the norm behind the sublayer gives is what joins.
        ("gemma2", Unit(1, "attention"), {"model.layers.1.post_attention_layernorm.weight": -1.0}),
        ("gemma3", Unit(2, "mlp"), {"model.layers.2.post_feedforward_layernorm.weight": -1.0}),
        (
            "granite_moe_shared",
            Unit(1, "mlp"),
            {
                "model.layers.1.shared_mlp.output_linear.weight": 0.0,
                "model.layers.1.block_sparse_moe.output_linear.weight": 0.0,
                "model.layers.1.block_sparse_moe.experts.down_proj": 0.0,
            },
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, (str, Unit)) else "",
)
@torch.no_grad()
def test_leaving_a_sublayer_out_is_a_sublayer_that_gives_zeros(family, unit, silenced):
    model = causal_lms.make(family)
    stack, tokens = stack_of(model), causal_lms.tokens()
    with stack.skipping([unit]):
        skipped = stack.logits(tokens)
    parameters, found = dict(model.named_parameters()), 0
    for name, value in silenced.items():
        if name in parameters:
            parameters[name].fill_(value)
            found += 1
    assert found
    torch.testing.assert_close(skipped, stack.logits(tokens), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_everything_is_undone_after_errors():
    model = causal_lms.make("gemma2")
    stack, tokens = stack_of(model), causal_lms.tokens()
    assert not traces_left(model)
    whole = stack.logits(tokens)

    class Fails(StackWatcher):
        def on_block(self, block, before, after):
            raise RuntimeError("in the middle of a pass")

    with (
        pytest.raises(RuntimeError, match="middle"),
        stack.watching(Fails()),
        stack.skipping([Unit(0), Unit(1, "mlp")]),
    ):
        stack.logits(tokens)
    assert not traces_left(model)
    assert torch.equal(stack.logits(tokens), whole)
    with pytest.raises(UsageError, match="no block 7; this model has 0 to 2"), stack.skipping([Unit(7)]):
        pass
    with pytest.raises(UsageError, match=r"no sublayer 1.router; block 1 has attention and mlp"):
        stack.parameters_of(Unit(1, "router"))


@torch.no_grad()
def test_contexts_nest(watched):
    stack, tokens = stack_of(causal_lms.make("qwen2")), causal_lms.tokens()
    with stack.skipping([Unit(0), Unit(2)]):
        both = stack.logits(tokens)
    with stack.skipping([Unit(0)]):
        one = stack.logits(tokens)
        with stack.skipping([Unit(0), Unit(2)]):
            assert torch.equal(stack.logits(tokens), both)
        assert torch.equal(stack.logits(tokens), one)
        told, _ = watched(stack, tokens)
        assert told.blocks == [1, 2]
    told, _ = watched(stack, tokens)
    assert told.blocks == [0, 1, 2]
    with stack.watching(StackWatcher()), pytest.raises(LeadlineError, match="being watched"):
        watched(stack_of(stack.model), tokens)


@torch.no_grad()
def test_the_lens_can_be_used_while_a_pass_runs():
    stack, tokens = stack_of(causal_lms.make("gemma2")), causal_lms.tokens()

    class Looks(StackWatcher):
        wants_exits = True

        def __init__(self):
            self.blocks, self.seen = [], []

        def on_block(self, block, before, after):
            self.blocks.append(block)

        def on_exit(self, block, hidden):
            self.seen.append(stack.lens(hidden))

    looks = Looks()
    with stack.watching(looks):
        logits = stack.logits(tokens)
    assert looks.blocks == [0, 1, 2]
    # Gemma's norms compute in float32, and the lens gives them rows in another shape.
    torch.testing.assert_close(looks.seen[-1], logits, rtol=1e-5, atol=1e-5)
    assert float(logits.abs().max()) <= stack.model.config.final_logit_softcapping


@pytest.mark.parametrize("checkpointing", [False, True], ids=["stored", "recomputed"])
def test_gradients_flow_and_no_pass_is_told_twice(watched, checkpointing):
    model = causal_lms.make("llama")
    stack, tokens = stack_of(model), causal_lms.tokens()
    stack.logits(tokens).square().mean().backward()
    plain = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    hooks_of_its_own = traces_left(model)
    told = stack_and_backward(stack, tokens)
    assert traces_left(model) == hooks_of_its_own
    assert told.blocks == [0, 1, 2]
    assert all(torch.allclose(value.grad, plain[name], rtol=1e-9) for name, value in model.named_parameters())
    assert told.gradient is not None


def stack_and_backward(stack, tokens):
    class Told(StackWatcher):
        def __init__(self):
            self.blocks, self.kept, self.outputs = [], None, 0

        def on_block(self, block, before, after):
            self.blocks.append(block)
            if block == 0:
                self.kept = after
                after.retain_grad()

        def on_sublayer(self, block, sublayer, output):
            self.outputs += 1

    told = Told()
    with stack.watching(told):
        stack.logits(tokens).square().mean().backward()
    assert told.outputs == 6
    told.gradient = told.kept.grad
    return told


@torch.no_grad()
def test_the_cache_goes_by_both_of_its_names():
    model = causal_lms.make("gpt2")
    stack, tokens = stack_of(model), causal_lms.tokens(6)
    with stack.skipping([Unit(0)]):
        full = stack.logits(tokens)
        for name in ("past_key_values", "cache"):
            first = model(tokens[:, :5], use_cache=True)
            kept = first.past_key_values if "past_key_values" in first else first.cache
            try:
                last = model(tokens[:, 5:], use_cache=True, **{name: kept}).logits
            except TypeError:  # this version of the library has one of them only
                continue
            # One query against a cache is another product than all at once; a wrong position differs by far more.
            torch.testing.assert_close(last[:, 0], full[:, 5], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_generating_without_the_first_block():
    model = causal_lms.make("llama")
    stack, tokens = stack_of(model), causal_lms.tokens(5, batch=1)
    with stack.skipping([Unit(0)]):
        text = tokens
        for _ in range(6):
            text = torch.cat((text, stack.logits(text)[:, -1:].argmax(dim=-1)), dim=1)
        options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
        generated = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
    assert torch.equal(generated, text)


@torch.no_grad()
def test_blocks_that_share_parameters_or_stand_twice(watched):
    model = causal_lms.make("llama")
    layers = model.model.layers
    layers[2].mlp = layers[1].mlp
    stack, tokens = stack_of(model), causal_lms.tokens()
    told, _ = watched(stack, tokens)
    assert sorted(told.outputs) == [(block, name) for block in range(3) for name in ("attention", "mlp")]
    assert not any("mlp" in name for name in stack.parameters_of(Unit(2)))
    assert sum("mlp" in name for name in stack.parameters_of(Unit(1))) == 3
    with stack.skipping([Unit(2, "mlp")]):
        skipped, _ = watched(stack, tokens)
    assert (1, "mlp") in skipped.outputs
    assert torch.equal(skipped.outputs[1, "mlp"], told.outputs[1, "mlp"])
    assert (2, "mlp") not in skipped.outputs
    torch.testing.assert_close(skipped.after[2], told.before[2] + told.outputs[2, "attention"])

    layers.append(layers[0])
    model.config.num_hidden_layers = 4
    twice = stack_of(model)
    told, _ = watched(twice, tokens)
    assert told.blocks == [0, 1, 2, 3]
    assert twice.parameters_of(Unit(3)) == {}
    with twice.skipping([Unit(3)]):
        without, _ = watched(twice, tokens)
    assert without.blocks == [0, 1, 2]
    assert torch.equal(without.after[2], told.after[2])


@torch.no_grad()
def test_blocks_that_add_to_their_input_in_place(watched):
    model, tokens = causal_lms.make("llama"), causal_lms.tokens()
    expected, logits = watched(stack_of(model), tokens)
    with stack_of(model).skipping([Unit(1)]):
        without = model.generate(tokens, max_new_tokens=3, do_sample=False, eos_token_id=None)

    def in_place(block):
        def forward(hidden_states, **kwargs):
            stream = hidden_states
            stream += block.self_attn(hidden_states=block.input_layernorm(stream), **kwargs)[0]
            stream += block.mlp(block.post_attention_layernorm(stream))
            return stream

        return forward

    for block in model.model.layers:
        block.forward = in_place(block)
    stack = stack_of(model)
    assert all(anatomy.overwrites for anatomy in stack.layout.anatomies)
    told, again = watched(stack, tokens)
    torch.testing.assert_close(again, logits)
    for block in range(stack.blocks):
        torch.testing.assert_close(told.before[block], expected.before[block])
        torch.testing.assert_close(told.after[block], expected.after[block])
    with stack.skipping([Unit(1)]):
        generated = model.generate(tokens, max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert torch.equal(generated, without)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_weights(watched, dtype):
    stack = stack_of(causal_lms.make("granite").to(dtype))
    assert stack.additive
    joins = [join for sublayer in stack.layout.anatomies[1].sublayers for join in sublayer.joins]
    assert [round(join.factor, 2) for join in joins] == [0.22, 0.22]
    told, logits = watched(stack, causal_lms.tokens())
    assert logits.dtype == told.after[0].dtype == dtype


def test_a_norm_that_serves_both_sublayers_belongs_to_neither():
    stack = stack_of(causal_lms.make("phi"))
    norm = {"model.layers.1.input_layernorm.weight", "model.layers.1.input_layernorm.bias"}
    assert norm <= set(stack.parameters_of(Unit(1)))
    for name in ("attention", "mlp"):
        assert not norm & set(stack.parameters_of(Unit(1, name)))
    own = stack_of(causal_lms.make("gpt_neox")).parameters_of(Unit(1, "mlp"))
    assert "gpt_neox.layers.1.post_attention_layernorm.weight" in own


def test_the_models_mode_comes_back():
    model = causal_lms.make("gpt2").train()
    model.transformer.h[1].eval()
    stack_of(model)
    assert model.training
    assert not model.transformer.h[1].training
    assert model.transformer.h[2].training


def _more(name, **changes):
    """A model of a family that `causal_lms` doesn't hold."""
    import tiny_hub_models
    import transformers

    options = {**causal_lms.FAMILIES["llama"][1], **changes}
    return tiny_hub_models.build(getattr(transformers, name)(**options))


@torch.no_grad()
def test_a_sublayer_that_carries_the_stream_is_not_told_apart(watched):
    """BERT adds inside its sublayers' modules: zeros in place of their outputs would wipe the stream out."""
    stack, tokens = stack_of(_more("RobertaConfig", is_decoder=True)), causal_lms.tokens()
    assert stack.sublayers == ((), (), ())
    assert not stack.additive
    assert not stack.norms_scale
    assert stack.context == 63, "the first of 64 places is the padding's"
    stack.logits(torch.full((1, 63), 5))
    told, logits = watched(stack, tokens)
    assert told.blocks == [0, 1, 2]
    assert not told.outputs
    torch.testing.assert_close(stack.lens(told.after[-1]), logits, rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match="block 1 has no sublayers"):
        stack.check([Unit(1, "mlp")])


@torch.no_grad()
def test_modules_that_give_lists_are_left_out_too(watched):
    """The first GPT's attention and blocks give lists, to which the model adds others."""
    model = _more("OpenAIGPTConfig", n_embd=32, n_head=4, n_layer=3, n_positions=64)
    stack, tokens = stack_of(model), causal_lms.tokens()
    whole, _ = watched(stack, tokens)
    for unit in (Unit(1), Unit(1, "attention"), Unit(1, "mlp")):
        with stack.skipping([unit]):
            told, _ = watched(stack, tokens)
        assert torch.equal(told.after[0], whole.after[0])
        assert not torch.allclose(told.after[-1], whole.after[-1], atol=1e-3)
