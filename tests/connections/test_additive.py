"""The residual stream and its variants, against their formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.connections import Additive, Depth
from leadline.errors import UsageError


def folded(depth: Depth, x: Tensor) -> list[Tensor]:
    """The stream before each sublayer and at the end, with F(h) = tanh(h) + 0.1."""
    state = depth.open(x)
    seen = []
    for site in depth.sites:
        h, state = site.read(state)
        seen.append(h)
        state = site.write(state, torch.tanh(h) + 0.1)
    return [*seen, depth.readout(state)]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_plain_addition(x: Tensor) -> None:
    expected = [x]
    for _ in range(4):
        expected.append(expected[-1] + (torch.tanh(expected[-1]) + 0.1))
    for found, value in zip(folded(Additive().build(8, 4), x), expected, strict=True):
        assert torch.equal(found, value)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("alpha", [1.0, 2.5, "deepnorm"])
def test_post_norm(x: Tensor, norm: str, alpha: float | str) -> None:
    depth = Additive(post_norm=norm, alpha=alpha, eps=1e-3).build(8, 6, dtype=torch.float64)
    with torch.no_grad():
        for p in depth.parameters():
            p.uniform_(0.5, 1.5)
    factor = (2 * 3) ** 0.25 if alpha == "deepnorm" else alpha  # 6 sublayers are 3 blocks
    assert isinstance(factor, float)
    expected = [x]
    for site in depth.sites:
        total = factor * expected[-1] + torch.tanh(expected[-1]) + 0.1
        if norm == "layernorm":
            expected.append(F.layer_norm(total, (8,), site.norm_gain, site.norm_bias, 1e-3))
        else:
            expected.append(F.rms_norm(total, (8,), site.norm_gain, 1e-3))
    for found, value in zip(folded(depth, x), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-12)


def test_mix_ln_normalises_the_first_blocks_only() -> None:
    depth = Additive(post_norm="layernorm", post_norm_blocks=2).build(8, 8)
    assert [site.post_norm for site in depth.sites] == ["layernorm"] * 4 + ["none"] * 4
    assert all(key.split(".")[1] in "0123" for key in depth.state_dict())


def test_mix_ln_uses_alpha_only_where_it_normalises(x: Tensor) -> None:
    depth = Additive(post_norm="layernorm", post_norm_blocks=0, alpha=3.0).build(8, 2, dtype=torch.float64)
    assert torch.equal(folded(depth, x)[-1], folded(Additive().build(8, 2), x)[-1])


def test_rezero_starts_as_the_identity_and_learns(x: Tensor) -> None:
    depth = Additive(branch="rezero").build(8, 4, dtype=torch.float64)
    out = folded(depth, x)[-1]
    assert torch.equal(out, x)
    out.sum().backward()
    for site in depth.sites:
        assert site.branch_gain.shape == (1,)
        assert site.branch_gain.grad.abs() > 0


def test_layerscale_scales_channels(x: Tensor) -> None:
    depth = Additive(branch="layerscale", layerscale_init=0.25).build(8, 1, dtype=torch.float64)
    torch.testing.assert_close(folded(depth, x)[-1], x + 0.25 * (torch.tanh(x) + 0.1))
    with torch.no_grad():
        depth.sites[0].branch_gain[3] = 0.0
    assert torch.equal(folded(depth, x)[-1][..., 3], x[..., 3])


def test_post_norm_of_a_bfloat16_stream_has_float32_statistics() -> None:
    depth = Additive(post_norm="rmsnorm").build(512, 1)
    x = (torch.randn(4, 512, generator=torch.Generator().manual_seed(1)) * 30).bfloat16()
    state = depth.sites[0].write(depth.open(x), torch.zeros_like(x))
    expected = F.rms_norm(x.double(), (512,), eps=1e-6).bfloat16()
    assert torch.equal(depth.readout(state), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 2.0}, "alpha has no effect with post_norm='none'"),
        ({"alpha": "deepnorm"}, "alpha has no effect"),
        ({"post_norm_blocks": 2}, "post_norm_blocks has no effect"),
        ({"post_norm": "batchnorm"}, "none, layernorm, rmsnorm work"),
        ({"post_norm": "layernorm", "alpha": "deep"}, "a number or 'deepnorm' works"),
        ({"post_norm": "layernorm", "post_norm_blocks": -1}, "post_norm_blocks=-1"),
        ({"branch": "scale"}, "none, layerscale, rezero work"),
        ({"eps": -1.0}, "eps=-1.0"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Additive(**options)
