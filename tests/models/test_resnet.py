"""ResNets: sizes that are known, skipping, what they start from, and saving."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file

from leadline.errors import LeadlineError, UsageError
from leadline.models.resnet import ResNet, ResNetConfig, count_forward_flops

TINY = ResNetConfig(classes=5, channels=2, layers=(2, 1, 2), width=4, stem="small")


def lively(config=TINY, seed=0):
    """A network in evaluation mode in which norms are away from their start."""
    model = ResNet(config, seed=seed).double().eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            norm = ".bn" in name or name.startswith("bn") or "downsample.1" in name
            if norm and value.is_floating_point():
                value.add_(torch.rand(value.shape, generator=generator, dtype=value.dtype))
    return model


@pytest.fixture
def images():
    return torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (ResNetConfig(), 25_557_032),
        (ResNetConfig(layers=(3, 4, 23, 3)), 44_549_160),
        (ResNetConfig(layers=(3, 8, 36, 3)), 60_192_808),
    ],
    ids=["50", "101", "152"],
)
def test_parameters_are_those_of_the_known_networks(config, parameters):
    with torch.device("meta"):
        model = _unfilled(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert len(model.blocks()) == config.blocks == len(model.names())


def _unfilled(config):
    class Unfilled(ResNet):
        def reset_parameters(self, seed=0):
            """Weights on the meta device have no values."""

    return Unfilled(config)


def test_resnet50_takes_the_known_number_of_multiplications():
    assert count_forward_flops(ResNetConfig(), 224) / 2 == pytest.approx(4.089e9, rel=1e-3)


@pytest.mark.parametrize("stem", ["small", "imagenet"])
@pytest.mark.parametrize("size", [16, 19])
def test_flops_are_counted_as_the_convolutions_run(stem, size):
    config = ResNetConfig(classes=7, layers=(2, 1, 2), width=4, stem=stem)
    model, total = ResNet(config).eval(), 0

    def count(module, args, output):
        nonlocal total
        kernel = module.weight[0].numel()
        total += 2 * output.numel() * kernel

    for module in model.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            module.register_forward_hook(count)
    model(torch.zeros(1, 3, size, size))
    assert count_forward_flops(config, size) == total


def test_names_are_torchvisions():
    with torch.device("meta"):
        names = _unfilled(ResNetConfig()).state_dict()
    for name, shape in {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_var": (64,),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.0.downsample.1.running_mean": (256,),
        "layer2.0.conv2.weight": (128, 128, 3, 3),
        "layer4.2.bn3.num_batches_tracked": (),
        "fc.weight": (1000, 2048),
        "fc.bias": (1000,),
    }.items():
        assert tuple(names[name].shape) == shape
    assert len(names) == 320
    assert sorted(name for name in names if name.endswith("downsample.0.weight")) == [
        f"layer{stage}.0.downsample.0.weight" for stage in (1, 2, 3, 4)
    ]


def test_the_3x3_convolution_halves_the_picture():
    block = ResNet(TINY).blocks()[2]
    assert block.conv1.stride == (1, 1)
    assert block.conv2.stride == (2, 2)
    assert block.downsample[0].stride == (2, 2)


@torch.no_grad()
def test_the_forward_pass_is_the_formula(images):
    model = lively()
    relu = torch.relu
    x = relu(model.bn1(model.conv1(images)))
    sizes = []
    for block in model.blocks():
        branch = relu(block.bn2(block.conv2(relu(block.bn1(block.conv1(x))))))
        shortcut = x if block.downsample is None else block.downsample(x)
        x = relu(shortcut + block.bn3(block.conv3(branch)))
        sizes.append(tuple(x.shape[1:]))
    assert sizes == [(16, 12, 12), (16, 12, 12), (32, 6, 6), (64, 3, 3), (64, 3, 3)]
    torch.testing.assert_close(model(images), model.fc(x.flatten(2).mean(dim=2)))


@torch.no_grad()
def test_the_imagenet_stem_quarters_the_picture():
    model = ResNet(ResNetConfig(classes=3, width=4, layers=(1,))).eval()
    images = torch.randn(1, 3, 32, 32)
    assert model.features(images).shape == (1, 16, 8, 8)


@torch.no_grad()
@pytest.mark.parametrize("block", range(5))
def test_a_skipped_block_is_its_shortcut(block, images):
    model = lively()
    expected = lively()
    last = expected.blocks()[block].bn3  # a branch that gives zeros
    last.weight.zero_()
    last.bias.zero_()
    torch.testing.assert_close(model(images, skip={block}), expected(images), rtol=0, atol=0)
    assert not torch.equal(model(images, skip={block}), model(images))


@torch.no_grad()
def test_a_block_that_starts_as_its_shortcut_is_not_missed(images):
    model = ResNet(ResNetConfig(**{**TINY.__dict__, "zero_init_residual": True})).double().eval()
    assert torch.equal(model(images, skip=range(5)), model(images))


def test_convolutions_start_with_the_fan_out_of_kaiming():
    model = ResNet(ResNetConfig(classes=10, channels=3, width=32, layers=(2,)), seed=3)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            std = math.sqrt(2 / (module.out_channels * module.kernel_size[0] ** 2))
            assert module.weight.std().item() == pytest.approx(std, rel=0.1), name
            assert abs(module.weight.mean().item()) < 0.1 * std
    bound = 1 / math.sqrt(128)
    assert 0.9 * bound < model.fc.weight.abs().max() <= bound


def test_the_start_is_the_seeds_alone():
    torch.manual_seed(0)
    first = ResNet(TINY, seed=4).state_dict()
    torch.manual_seed(1)
    second, other = ResNet(TINY, seed=4).state_dict(), ResNet(TINY, seed=5).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["layer1.0.conv1.weight"], other["layer1.0.conv1.weight"])
    assert not torch.equal(first["layer1.0.conv1.weight"], first["layer1.1.conv1.weight"][:, :4])


@torch.no_grad()
def test_what_is_saved_is_loaded(tmp_path, images):
    model = lively().float()
    model.save(tmp_path)
    again = ResNet.load(tmp_path).eval()
    assert again.config == TINY
    assert torch.equal(again(images.float()), model.eval()(images.float()))
    assert "layer2.0.downsample.0.weight" in load_file(tmp_path / "model.safetensors")


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(LeadlineError, match=r"config\.json is not a configuration of a ResNet"):
        ResNet.load(tmp_path)
    (tmp_path / "config.json").write_text('{"widht": 4}')
    with pytest.raises(LeadlineError, match="Did you mean width"):
        ResNet.load(tmp_path)
    ResNet(TINY).save(tmp_path)
    other = ResNetConfig(**{**TINY.__dict__, "classes": 6})
    torch.manual_seed(0)
    ResNet(other).save(tmp_path / "other")
    (tmp_path / "config.json").write_bytes((tmp_path / "other" / "config.json").read_bytes())
    with pytest.raises(LeadlineError, match=r"fc\.(weight|bias) is \["):
        ResNet.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "width=0 is too small; it can be 1 or more"),
        ({"classes": 0}, "classes=0"),
        ({"layers": ()}, "needs a stage"),
        ({"layers": (3, 0)}, "a block in each"),
        ({"stem": "big"}, "imagenet and small work"),
    ],
)
def test_configurations_that_do_not_work_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        ResNetConfig(**changes)


@pytest.mark.parametrize("shape", [(2, 1, 12, 12), (2, 2, 12, 3), (2, 12, 12)])
def test_images_that_do_not_fit_are_refused_with_those_that_do(shape):
    with pytest.raises(UsageError, match=r"it takes \(batch, 2, height, width\) with 4 pixels or more each way"):
        ResNet(TINY)(torch.zeros(shape))


@pytest.mark.parametrize("number", [-1, 5])
def test_a_block_to_skip_that_is_not_there_is_named(number, images):
    with pytest.raises(UsageError, match=f"skip={number} is not a block; this model has 0 to 4"):
        lively()(images, skip={number})
