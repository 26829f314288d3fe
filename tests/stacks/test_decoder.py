"""Leadline's decoders as stacks of blocks, with every connection."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from connection_examples import EXAMPLES

from leadline.designs import preset_named, resolve
from leadline.errors import LeadlineError, UsageError
from leadline.models import Decoder, KVCache, RepeatConfig, cut
from leadline.stacks import StackWatcher, Unit, stack_of

BLOCKS = 4
SHAPE = dataclasses.replace(
    preset_named("tiny"), dim=24, blocks=BLOCKS, heads=3, kv_heads=3, head_dim=8, hidden=32, context=16, tied=False
)


def lively(design="prenorm", connection=None, **changes):
    """A decoder of a design in which every parameter is away from its start."""
    config = resolve(design).decoder(SHAPE, 61)
    if connection is not None:
        config = dataclasses.replace(config, connection=connection)
    model = Decoder(dataclasses.replace(config, **changes), dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


@pytest.fixture
def tokens():
    return torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("connection", EXAMPLES.values(), ids=EXAMPLES)
@torch.no_grad()
def test_every_connection_tells_what_its_blocks_read_and_leave(connection, tokens, watched):
    model = lively(connection=connection)
    stack = stack_of(model)
    plain = model(tokens)
    told, logits = watched(stack, tokens)
    assert torch.equal(logits, plain)
    assert told.blocks == [0, 1, 2, 3]
    assert list(told.outputs) == [(unit.block, unit.sublayer) for unit in stack.units("sublayer")]
    for before, after in zip(told.before[1:], told.after[:-1], strict=True):
        assert torch.equal(before, after)
    torch.testing.assert_close(stack.lens(told.after[-1]), logits)
    ended = model.exits(tokens, range(BLOCKS))
    for block in range(BLOCKS):
        torch.testing.assert_close(stack.lens(told.exits[block]), model.logits(ended[block]))


@pytest.mark.parametrize("connection", EXAMPLES.values(), ids=EXAMPLES)
@torch.no_grad()
def test_leaving_units_out_is_the_connections_own_way(connection, tokens, watched):
    model = lively(connection=connection)
    stack = stack_of(model)
    whole = stack.logits(tokens)
    with stack.skipping([Unit(0), Unit(2, "mlp")]):
        told, logits = watched(stack, tokens)
        cache = KVCache()
        steps = [model(tokens[:, i : i + 1], cache=cache) for i in range(tokens.shape[1])]
        ended = model.logits(model.exits(tokens, [BLOCKS - 1])[0])
    assert torch.equal(logits, model(tokens, skip=[0, 1, 5]))
    torch.testing.assert_close(torch.cat(steps, dim=1), logits)
    torch.testing.assert_close(ended, logits)
    assert told.blocks == [1, 2, 3]
    assert (2, "mlp") not in told.outputs
    assert (2, "attention") in told.outputs
    torch.testing.assert_close(cut(model, [0, 1, 5])(tokens), logits)
    assert torch.equal(stack.logits(tokens), whole)


@torch.no_grad()
def test_a_plain_stream_adds_up(tokens, watched):
    told, _ = watched(stack_of(lively()), tokens)
    for block, (before, after) in enumerate(zip(told.before, told.after, strict=True)):
        outputs = told.outputs[block, "attention"] + told.outputs[block, "mlp"]
        torch.testing.assert_close(before + outputs, after)
        assert torch.equal(told.exits[block], after)


@pytest.mark.parametrize("design", ["prenorm", "mgr", "attnres-block", "mhc-lite"])
@pytest.mark.parametrize("memory", ["stored", "recomputed", "inverted"])
def test_gradients_stay_and_no_pass_is_told_twice(design, memory, tokens):
    if memory == "inverted" and design != "mgr":
        pytest.skip("only MGR's streams can be computed backwards")
    model = lively(design).train()
    if memory == "inverted":
        connection = dataclasses.replace(model.config.connection, memory="invert")
        other = Decoder(dataclasses.replace(model.config, connection=connection), dtype=torch.float64)
        other.load_state_dict(model.state_dict())
        model = other.train()
    model.recompute = memory == "recomputed"
    stack = stack_of(model)
    stack.logits(tokens).square().mean().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    class Counts(StackWatcher):
        wants_exits = True

        def __init__(self):
            self.told, self.flows = [], False

        def on_block(self, block, before, after):
            self.told.append(block)
            self.flows |= after.requires_grad

        def on_exit(self, block, hidden):
            self.told.append(block)

    counts = Counts()
    with stack.watching(counts):
        stack.logits(tokens).square().mean().backward()
    assert sorted(counts.told) == [0, 0, 1, 1, 2, 2, 3, 3]
    # A read that takes the norm over has no h of its own; what is told of it is for its values.
    assert counts.flows or any(site.takes_norm for site in model.sites())
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        assert torch.equal(parameter.grad, gradient)


@torch.no_grad()
def test_everything_is_undone_after_errors(tokens):
    model = lively("mgr")
    stack, whole = stack_of(model), model(tokens)

    class Fails(StackWatcher):
        def on_block(self, block, before, after):
            raise RuntimeError("in the middle of a pass")

    with pytest.raises(RuntimeError, match="middle"), stack.skipping([Unit(0)]), stack.watching(Fails()):
        stack.logits(tokens)
    assert torch.equal(model(tokens), whole)
    assert not {"hidden", "run"} & model.__dict__.keys()
    with stack.watching(StackWatcher()), pytest.raises(LeadlineError, match="being recorded already"):  # noqa: SIM117
        with stack.watching(StackWatcher()):
            pass
    with pytest.raises(UsageError, match="there is no block 4; this model has 0 to 3"), stack.skipping([Unit(4)]):
        pass


@torch.no_grad()
def test_a_pass_that_fails_leaves_nothing_for_the_next(tokens):
    model = lively()
    stack, told = stack_of(model), []

    class Once(StackWatcher):
        def on_block(self, block, before, after):
            told.append(block)
            if len(told) == 2:
                raise RuntimeError("stop")

    with stack.watching(Once()):
        with pytest.raises(RuntimeError, match="stop"):
            stack.logits(tokens)
        stack.logits(tokens)
    assert told == [0, 1, 0, 1, 2, 3]


@torch.no_grad()
def test_blocks_that_repeat_and_blocks_that_were_cut(tokens, watched):
    repeated = stack_of(lively(repeat=RepeatConfig(last=2, times=2)))
    assert repeated.blocks == 6
    told, _ = watched(repeated, tokens)
    assert told.blocks == [0, 1, 2, 3, 4, 5]
    assert not any("attention.qkv" in name for name in repeated.parameters_of(Unit(4)))
    names = [name for unit in repeated.units("block") for name in repeated.parameters_of(unit)]
    assert len(names) == len(set(names))
    with repeated.skipping([Unit(4)]):
        told, _ = watched(repeated, tokens)
    assert told.blocks == [0, 1, 2, 3, 5]

    smaller = stack_of(cut(lively(), [2, 5]))
    assert smaller.sublayers == (("attention", "mlp"), ("mlp",), ("attention",), ("attention", "mlp"))
    told, _ = watched(smaller, tokens)
    assert list(told.outputs) == [(unit.block, unit.sublayer) for unit in smaller.units("sublayer")]
    assert told.blocks == [0, 1, 2, 3]
    with smaller.skipping([Unit(2)]):
        told, _ = watched(smaller, tokens)
    assert told.blocks == [0, 1, 3]
    with pytest.raises(UsageError, match=r"no sublayer 1.attention; block 1 has mlp"):
        smaller.parameters_of(Unit(1, "attention"))


def test_parameters_by_block_and_sublayer():
    model = lively("mgr + peri-ln")
    stack = stack_of(model)
    mlp = set(stack.parameters_of(Unit(2, "mlp")))
    assert {"blocks.2.mlp.down.weight", "blocks.2.mlp_norm.gain", "blocks.2.mlp_output_norm.gain"} <= mlp
    assert "blocks.2.mlp_site.pool_query" in mlp
    both = [name for name in ("attention", "mlp") for name in stack.parameters_of(Unit(2, name))]
    assert sorted(both) == sorted(stack.parameters_of(Unit(2)))
    assert all(value is model.get_parameter(name) for name, value in stack.parameters_of(Unit(2)).items())


@pytest.mark.parametrize(
    ("design", "scale"),
    [("prenorm", True), ("mgr + bhyt", True), ("prenorm + dyt", False), ("prenorm + derf", False), ("post-ln", False)],
)
def test_whether_the_norms_ignore_size(design, scale):
    assert stack_of(lively(design)).norms_scale is scale


def test_context_and_vocabulary():
    stack = stack_of(lively())
    assert (stack.context, stack.vocab_size, stack.device.type) == (16, 61, "cpu")


@pytest.mark.parametrize("branch", ["layerscale", "rezero"])
@torch.no_grad()
def test_an_output_is_told_with_its_gain(branch, tokens, watched):
    """As it joins the stream: what a block leaves is what it read and the outputs that are told."""
    told, _ = watched(stack_of(lively(branch)), tokens)
    for block, (before, after) in enumerate(zip(told.before, told.after, strict=True)):
        outputs = told.outputs[block, "attention"] + told.outputs[block, "mlp"]
        torch.testing.assert_close(before + outputs, after, rtol=1e-9, atol=1e-9)
