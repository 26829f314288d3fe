"""A ResNet as a stack: skipping, watching, gradients and criteria, and what does not apply."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from leadline.data.images import ImageBatch
from leadline.errors import LeadlineError, UsageError
from leadline.models.resnet import ResNet, ResNetConfig
from leadline.probes.ablation import ablation
from leadline.probes.gradients import gradients
from leadline.pruning.scores import magnitude, similarity, taylor
from leadline.stacks import StackWatcher, Unit, stack_of
from leadline.training import GradientShare

CONFIG = ResNetConfig(classes=5, channels=1, layers=(2, 2, 1), width=4, stem="small")
BLOCKS = 5


class Kept(StackWatcher):
    """Keeps what it is told of blocks."""

    def __init__(self):
        self.told = {}

    def on_block(self, block, before, after):
        assert block not in self.told
        self.told[block] = (before, after)


@pytest.fixture
def model():
    model = ResNet(CONFIG, seed=2)
    with torch.no_grad():
        for _ in range(20):  # statistics away from their start
            model(torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    return model.eval()


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(5)
    return [
        ImageBatch(torch.randn(n, 1, 8, 8, generator=generator), torch.randint(5, (n,), generator=generator))
        for n in (6, 4)
    ]


def mean_loss(model, batches, **how):
    with torch.no_grad():
        losses = [cross_entropy(model(b.images, **how).double(), b.labels, reduction="sum") for b in batches]
    return float(sum(losses)) / sum(len(b.labels) for b in batches)


@torch.no_grad()
def test_skipping_is_the_models_own_and_goes_away(model, batches):
    stack, images = stack_of(model), batches[0].images
    plain = model(images)
    with stack.skipping([Unit(1), Unit(4)]):
        assert torch.equal(model(images), ResNet.forward(model, images))
        skipped = stack.logits(images)
        with stack.skipping([Unit(2)]):
            both = stack.logits(images)
    assert skipped.shape == (6, 1, 5)
    assert torch.equal(model(images), plain)
    assert torch.equal(skipped.squeeze(1), model(images, skip={1, 4}))
    assert torch.equal(both.squeeze(1), model(images, skip={1, 2, 4}))
    assert not torch.equal(skipped.squeeze(1), plain)


@torch.no_grad()
def test_watching_tells_what_stands_in_for_a_block_and_what_it_leaves(model, batches):
    stack, images, kept = stack_of(model), batches[0].images, Kept()
    plain = model(images)
    with stack.watching(kept), stack.skipping([Unit(1)]):
        stack.logits(images)
    assert list(kept.told) == [0, 2, 3, 4]
    kept = Kept()
    with stack.watching(kept):
        assert torch.equal(model(images), plain)
    x = torch.relu(model.bn1(model.conv1(images)))
    for number, block in enumerate(model.blocks()):
        before, after = (told.transpose(1, 2) for told in kept.told[number])
        assert torch.equal(before, block.passed_by(x).flatten(2))
        x = block(x)
        assert torch.equal(after, x.flatten(2))
    assert [tuple(after.shape[1:]) for _, after in kept.told.values()] == [(64, 16)] * 2 + [(16, 32)] * 2 + [(4, 64)]


def test_watching_leaves_statistics_of_training_alone(batches):
    watched, plain = ResNet(CONFIG).train(), ResNet(CONFIG).train()
    with stack_of(watched).watching(Kept()):
        watched(batches[0].images)
    plain(batches[0].images)
    assert all(torch.equal(a, b) for a, b in zip(watched.buffers(), plain.buffers(), strict=True))


def test_every_parameter_of_a_block_is_its_own_and_counted_once(model, batches):
    stack = stack_of(model)
    own = [stack.parameters_of(Unit(block)) for block in range(BLOCKS)]
    assert "layer2.0.downsample.0.weight" in own[2]
    assert all(name.startswith("layer1.1.") for name in own[1])
    identities = [id(parameter) for block in own for parameter in block.values()]
    assert len(identities) == len(set(identities))
    outside = [name for name, p in model.named_parameters() if id(p) not in set(identities)]
    assert outside == ["conv1.weight", "bn1.weight", "bn1.bias", "fc.weight", "fc.bias"]

    share = GradientShare(model)
    model.train()
    cross_entropy(model(batches[0].images), batches[0].labels).backward()
    share.add(share.measure())
    norms = [sum(float(p.grad.double().square().sum()) for p in block.values()) ** 0.5 for block in own]
    report = share.report()
    assert report["share"] == pytest.approx([norm / sum(norms) for norm in norms], rel=1e-5)
    assert report["parameters"]["block"] == [sum(p.numel() for p in block.values()) for block in own]
    assert report["units"]["sublayer"] == []


def test_ablation_is_the_loss_without_a_block(model, batches):
    found = ablation(stack_of(model), batches, kinds=("block",))
    assert found["tokens"] == 10
    assert found["loss"] == pytest.approx(mean_loss(model, batches), rel=1e-6)
    for block, (nats, low, high) in enumerate(
        zip(*(found["blocks"][name] for name in ("nats", "nats_low", "nats_high")), strict=True)
    ):
        assert nats == pytest.approx(mean_loss(model, batches, skip={block}) - found["loss"], abs=1e-6)
        assert low <= high
    assert min(found["blocks"]["nats"]) < max(found["blocks"]["nats"])


def test_a_block_whose_last_gain_is_zero_is_worth_nothing(model, batches):
    with torch.no_grad():
        for block in (1, 2):  # an identity and a projection
            model.blocks()[block].bn3.weight.zero_()
    nats = ablation(stack_of(model), batches, kinds=("block",))["blocks"]["nats"]
    assert nats[1] == nats[2] == 0.0
    assert all(abs(nats[block]) > 1e-6 for block in (0, 3, 4))


def test_magnitude_taylor_and_gradients_work(model, batches):
    stack = stack_of(model)
    own = [list(stack.parameters_of(Unit(block)).values()) for block in range(BLOCKS)]
    assert magnitude(stack) == pytest.approx([sum(float(p.detach().abs().sum()) for p in block) for block in own])
    images, labels = (torch.cat([getattr(b, name) for b in batches]) for name in ("images", "labels"))
    cross_entropy(model(images), labels).backward()
    expected = [sum(float((p.detach() * p.grad).abs().sum()) for p in block) for block in own]
    assert taylor(stack, batches) == pytest.approx(expected, rel=1e-4)
    model.zero_grad()
    cross_entropy(model(batches[0].images), batches[0].labels).backward()
    norms = [float(torch.cat([p.grad.flatten() for p in block]).norm()) for block in own]
    assert gradients(stack, batches[:1])["blocks"]["norm"] == pytest.approx(norms, rel=1e-4)


def test_what_does_not_apply_says_what_does(model, batches):
    stack = stack_of(model)
    for use in (lambda: stack.lens(torch.zeros(1, 64)), lambda: stack.context):
        with pytest.raises(UsageError, match=r"a ResNet has no .*Taylor and magnitude work"):
            use()
    with (
        pytest.raises(UsageError, match=r"there is no sublayer 1\.mlp; block 1 has no sublayers"),
        stack.skipping([Unit(1, "mlp")]),
    ):
        pass
    with pytest.raises(UsageError, match="there is no block 5; this model has 0 to 4"):
        stack.parameters_of(Unit(5))
    wants = type("Wants", (StackWatcher,), {"wants_exits": True})()
    with pytest.raises(UsageError, match="no exits"), stack.watching(wants):
        pass
    with pytest.raises(LeadlineError, match="watched already"), stack.watching(Kept()), stack.watching(Kept()):
        pass
    with pytest.raises(LeadlineError, match="different shapes along depth"):
        similarity(stack, batches)
    with pytest.raises(UsageError, match="a ResNet's are known"):
        stack_of(model, blocks="layer1")
