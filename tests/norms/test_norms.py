"""Every norm: formulas, bounds, dtypes, starts, and what each promises."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leadline.config import from_dict, to_dict
from leadline.errors import UsageError
from leadline.norms import BHyT, Derf, DyT, LayerNorm, NoNorm, Norm, NormConfig, RMSNorm, Role
from leadline.norms.standard import RootMeanSquareNorm

CONFIGS: list[NormConfig] = [
    RMSNorm(),
    RMSNorm(gain=False, eps=1e-5),
    LayerNorm(),
    LayerNorm(bias=True),
    DyT(final="dyt"),
    DyT(alpha=0.3, bias=True, final="dyt"),
    Derf(final="derf"),
    BHyT(),
    BHyT(approximate=False, with_mean=True, final="bhyt"),
    BHyT(gain_init="unit", position_aware=True, learn_lambda=False),
    NoNorm(),
]
ROLES: list[Role] = ["attention", "mlp", "final", "output", "embedding", "query_key"]
BOUNDED = [DyT(), Derf(bias=False), BHyT(), BHyT(gain_init="unit"), BHyT(approximate=False, with_mean=True)]

every = pytest.mark.parametrize("config", CONFIGS, ids=[f"{c.kind}{i}" for i, c in enumerate(CONFIGS)])


def truth(config: NormConfig, x: Tensor, role: Role) -> Tensor:
    """The formulas of the papers at their starts, written plainly."""
    mean, square = x.mean(-1, keepdim=True), x.square().mean(-1, keepdim=True)
    if isinstance(config, NoNorm):
        return x
    if isinstance(config, LayerNorm):
        return (x - mean) / torch.sqrt(square - mean**2 + config.eps)
    if isinstance(config, DyT) and role != "query_key":
        return torch.tanh((config.alpha or 0.5) * x)
    if isinstance(config, Derf) and role != "query_key":
        return torch.erf(config.alpha * x)
    if isinstance(config, BHyT) and not (role == "query_key" or (role == "final" and config.final == "rmsnorm")):
        lam = config.lambda_attention if role == "attention" else config.lambda_mlp
        gain = config.kappa / lam if config.gain_init == "unit" else 1.0
        deviation = config.kappa * torch.sqrt(square + config.eps)
        if config.with_mean:
            deviation = config.kappa * torch.sqrt(square - mean**2 + config.eps) + mean.abs()
        return gain * torch.tanh(lam * x / deviation)
    return x / torch.sqrt(square + getattr(config, "eps", 1e-6))


@every
@pytest.mark.parametrize("role", ROLES)
def test_equals_its_formula_at_the_start(config: NormConfig, role: Role) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    module = config.build(12, role=role, dtype=torch.float64)
    torch.testing.assert_close(module(x), truth(config, x, role), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("config", CONFIGS[:-1], ids=lambda config: config.kind)
@pytest.mark.parametrize("role", ROLES)
def test_a_smaller_read_gives_the_same_result(config: NormConfig, role: Role) -> None:
    """The scale rule: a mean of k sources is normalised exactly as their sum."""
    x = torch.randn(3, 12, dtype=torch.float64) * 1e-3
    whole = config.build(12, role=role, dtype=torch.float64)
    mean = config.build(12, role=role, scale=1 / 7, dtype=torch.float64)
    torch.testing.assert_close(mean(x / 7), whole(x), rtol=1e-12, atol=1e-12)


@every
@pytest.mark.parametrize("role", ["attention", "mlp"])
def test_gradients(config: NormConfig, role: Role) -> None:
    torch.manual_seed(0)
    module = config.build(5, role=role, dtype=torch.float64)
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    parameters = list(module.parameters())

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        return module(x)

    assert torch.autograd.gradcheck(run, (x, *parameters))


@every
@pytest.mark.parametrize("role", ["attention", "mlp"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_dtypes(config: NormConfig, role: Role, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(3, 64) * 30).to(dtype).requires_grad_()
    module = config.build(64, role=role)
    y = module(x)
    assert y.dtype == dtype
    with torch.autocast("cpu", torch.bfloat16):
        cast = module(x)
    assert cast.dtype == dtype
    torch.testing.assert_close(cast, y)
    wide = truth(config, x.detach().double(), role)
    torch.testing.assert_close(y.double(), wide, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@every
@pytest.mark.parametrize("role", ROLES)
def test_meta_device_then_materialise(config: NormConfig, role: Role) -> None:
    module = config.build(12, role=role, device="meta")
    module.to_empty(device="cpu")
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data.fill_(float("nan"))
    module.reset_parameters()
    expected = config.build(12, role=role).state_dict()
    assert module.state_dict().keys() == expected.keys()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, expected[name])


@every
@pytest.mark.parametrize("shape", [(12,), (0, 4, 12), (2, 0, 12), (1, 1, 12)])
def test_any_leading_shape(config: NormConfig, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, requires_grad=True)
    y = config.build(12)(x)
    y.sum().backward()
    assert y.shape == shape


@every
def test_configuration_round_trip(config: NormConfig) -> None:
    assert from_dict(NormConfig, to_dict(config)) == config


@every
def test_state_dict_round_trip(config: NormConfig) -> None:
    one, two = config.build(12, role="mlp"), config.build(12, role="mlp")
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.normal_()
    two.load_state_dict(one.state_dict())
    x = torch.randn(3, 12)
    torch.testing.assert_close(one(x), two(x), rtol=0, atol=0)


@every
def test_compiles_without_graph_breaks(config: NormConfig) -> None:
    torch._dynamo.reset()
    module = config.build(12)
    x = torch.randn(2, 3, 12, requires_grad=True)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))
    compiled(x).sum().backward()


@settings(max_examples=40)
@given(
    index=st.integers(0, len(BOUNDED) - 1),
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=8, max_size=8),
    role=st.sampled_from(["attention", "mlp"]),
)
def test_bounded_by_the_gain(index: int, values: list[float], role: Role) -> None:
    module = BOUNDED[index].build(8, role=role)
    with torch.no_grad():
        module.gain.normal_(generator=torch.Generator().manual_seed(0))
    y = module(torch.tensor(values))
    assert y.isfinite().all()
    assert (y.abs() <= module.gain.abs()).all()


@settings(max_examples=40)
@given(
    values=st.lists(st.floats(-1e4, 1e4), min_size=32, max_size=32),
    probability=st.sampled_from([0.5, 0.9, 0.99]),
)
def test_chebyshev(values: list[float], probability: float) -> None:
    """At least `probability` of the values lie within κ deviations of the mean."""
    x = torch.tensor(values, dtype=torch.float64)
    kappa = BHyT(probability=probability).kappa
    deviation = x.std(correction=0)
    inside = ((x - x.mean()).abs() <= kappa * deviation * (1 + 1e-9) + 1e-12).double().mean()
    assert inside >= probability - 1e-12


def test_kappa_is_ten_at_099() -> None:
    assert BHyT().kappa == pytest.approx(10.0, rel=1e-12)


@pytest.mark.parametrize(
    ("dim", "attention", "others"),
    [(1024, 1.0, 1.0), (2048, 1.0, 0.5), (4096, 0.8, 0.2), (8192, 0.2, 0.05), (72, 0.5, 0.5)],
)
def test_dyt_starts_by_width(dim: int, attention: float, others: float) -> None:
    assert DyT(final="dyt").build(dim, role="attention").alpha.item() == pytest.approx(attention)
    for role in ("mlp", "final", "output"):
        assert DyT(final="dyt").build(dim, role=role).alpha.item() == pytest.approx(others)
    assert DyT(alpha=0.7).build(dim).alpha.item() == pytest.approx(0.7)


def reuse_pair(**options: object) -> tuple[Norm, Norm]:
    config = BHyT(**options)
    return config.build(16, role="attention"), config.build(16, role="mlp")


def weights() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 16, generator=generator) / 4, torch.randn(16, 16, generator=generator) / 4


def test_the_second_site_uses_the_first_ones_statistic() -> None:
    first, second = reuse_pair()
    w_v, w_o = weights()
    second.refresh(w_v, w_o, 4, 2, 32, first.gain)
    x, later = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    _, moment = first.with_moment(x)
    y = second.reuse(later, moment.detach(), first.lam)
    v2 = x.square().mean(-1, keepdim=True) + second.c * first.lam**2 / second.kappa**2
    expected = torch.tanh(second.lam * later / (second.kappa * torch.sqrt(v2 + 1e-6)))
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    assert first.lam.grad is None


def test_c_and_the_length_are_persistent_and_no_forward_pass_changes_them() -> None:
    first, second = reuse_pair(position_aware=True, lambda_attention=2.0, lambda_mlp=1.0)
    w_v, w_o = weights()
    second.refresh(w_v, w_o, 4, 2, 32)
    saved = {name: value.clone() for name, value in second.state_dict().items()}
    assert saved["c"].item() > 0
    assert saved["length"].item() == 32
    x = torch.randn(2, 5, 16)
    _, moment = first.with_moment(x)
    y = second.reuse(x, moment, first.lam, torch.arange(5))
    second(x)
    for name, value in second.state_dict().items():
        assert torch.equal(value, saved[name])
    _, other = reuse_pair(position_aware=True)
    other.load_state_dict(saved)
    torch.testing.assert_close(other.reuse(x, moment, first.lam, torch.arange(5)), y, rtol=0, atol=0)


@pytest.mark.parametrize("position_aware", [False, True])
def test_prefill_and_decode_are_equal(position_aware: bool) -> None:
    first, second = reuse_pair(position_aware=position_aware)
    second.refresh(*weights(), 4, 2, 32)
    x, later = torch.randn(1, 6, 16), torch.randn(1, 6, 16)

    def run(part: slice) -> Tensor:
        _, moment = first.with_moment(x[:, part])
        return second.reuse(later[:, part], moment, first.lam, torch.arange(6)[part])

    steps = torch.cat([run(slice(t, t + 1)) for t in range(6)], dim=1)
    torch.testing.assert_close(run(slice(0, 6)), steps, rtol=1e-6, atol=1e-7)


def test_position_aware_uses_one_over_t_plus_one() -> None:
    first, second = reuse_pair(position_aware=True, lambda_attention=2.0, lambda_mlp=1.0)
    second.refresh(*weights(), 4, 2, 32)
    x = torch.randn(2, 40, 16)
    _, moment = first.with_moment(x)
    y = second.reuse(x, moment, first.lam, torch.arange(40))
    plain = BHyT(lambda_mlp=1.0).build(16, role="mlp")
    plain.refresh(*weights(), 4, 2, 1)
    for t in (0, 5, 39):
        c = plain.c / (t + 1)
        v2 = moment[:, t] + c * 4 / 100
        torch.testing.assert_close(y[:, t], torch.tanh(x[:, t] / (10 * torch.sqrt(v2 + 1e-6))))
    with pytest.raises(UsageError, match="position_aware"):
        second.reuse(x, moment, first.lam)


def test_unit_start_puts_the_gain_into_the_constant_and_the_papers_does_not() -> None:
    first, unit = reuse_pair(gain_init="unit", lambda_attention=2.0)
    paper = reuse_pair()[1]
    for module in (unit, paper):
        module.refresh(*weights(), 4, 2, 32, first.gain)
    assert first.gain.mean().item() == pytest.approx(5.0)
    torch.testing.assert_close(unit.c, paper.c * 25)


def test_the_unit_start_has_unit_scale() -> None:
    x = torch.randn(1000, 64)
    module = BHyT(gain_init="unit", lambda_mlp=1.0).build(64, role="mlp")
    assert module(x).square().mean().sqrt().item() == pytest.approx(1.0, abs=0.03)
    assert BHyT().build(64, role="mlp")(x).square().mean().sqrt().item() == pytest.approx(0.28, abs=0.01)


def test_a_fixed_lambda_is_fixed() -> None:
    module = BHyT(learn_lambda=False).build(8)
    assert "lam" not in dict(module.named_parameters())
    assert "lam" in module.state_dict()
    optimiser = torch.optim.AdamW(module.parameters(), lr=1.0)
    module(torch.randn(2, 8)).sum().backward()
    optimiser.step()
    assert module.lam.item() == 3.0
    assert isinstance(BHyT().build(8).lam, nn.Parameter)


def test_starts_of_lambda() -> None:
    config = BHyT()
    assert config.build(8, role="attention").lam.item() == config.build(8, role="mlp").lam.item() == 3.0
    assert BHyT(lambda_attention=2.0).build(8, role="attention").lam.item() == 2.0
    assert math.isclose(BHyT(lambda_mlp=10.0).build(8, role="mlp").lam.item(), 10.0)


def test_final_norm_is_rmsnorm_unless_asked() -> None:
    assert type(BHyT().build(8, role="final")) is type(RMSNorm().build(8))
    assert type(BHyT(final="bhyt").build(8, role="final")) is type(BHyT().build(8, role="attention"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RMSNorm(eps=-1.0), "eps=-1.0"),
        (lambda: BHyT(probability=1.0), "probability=1.0"),
        (lambda: BHyT(lambda_mlp=0.0), "lambda_mlp=0.0"),
        (lambda: BHyT(with_mean=True), "approximate=false"),
        (lambda: BHyT(approximate=False, position_aware=True), "approximate=true"),
        (lambda: BHyT(gain_init="two"), "one and unit"),
        (lambda: BHyT(final="none"), "rmsnorm and bhyt"),
        (lambda: DyT(alpha=0.0), "alpha=0.0"),
        (lambda: Derf(alpha=-1.0), "alpha=-1.0"),
        (lambda: RMSNorm().build(0), "dim=0"),
        (lambda: RMSNorm().build(8, scale=0.0), "scale=0.0"),
    ],
)
def test_wrong_options_are_named(make: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(("config", "own"), [(DyT(), "dyt"), (Derf(), "derf"), (BHyT(), "bhyt")])
def test_the_norm_before_the_head_is_rmsnorm_unless_asked(config: NormConfig, own: str) -> None:
    assert isinstance(config.build(6, role="final"), RootMeanSquareNorm)
    assert not isinstance(dataclasses.replace(config, final=own).build(6, role="final"), RootMeanSquareNorm)
    with pytest.raises(UsageError, match=f"rmsnorm and {own} work"):
        dataclasses.replace(config, final="layernorm")
