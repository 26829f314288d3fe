"""The norm before a sublayer, taken over by the read where it can be: nobody sees a difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiled import each_backend
from torch import Tensor, nn

from leadline import norms
from leadline.connections import AttentionResiduals, Connection, HyperConnections, ManifoldHyperConnections, MultiGate
from leadline.models import Decoder, DecoderConfig, KVCache
from leadline.ops import Backend, use_backend

MakeConfig = Callable[..., DecoderConfig]
Lively = Callable[..., Decoder]

CONNECTIONS: list[Connection] = [
    AttentionResiduals(block_size=2),
    MultiGate(streams=3),
    HyperConnections(streams=2),
    ManifoldHyperConnections(streams=2, mixing="birkhoff"),
]
each_connection = pytest.mark.parametrize("connection_at_hand", CONNECTIONS, ids=lambda c: c.kind)


def outcome(model: Decoder, tokens: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    logits = model(tokens)
    logits.square().mean().backward()
    return {
        "logits": logits.detach(),
        **{name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
    }


@pytest.mark.parametrize("norm_scale", [1.0, 0.5])
@each_backend("traced", cases=CONNECTIONS, compiled=CONNECTIONS[3:])
def test_a_compiled_model_equals_the_reference(
    make_config: MakeConfig, lively: Lively, tokens: Tensor, backend: Backend, case: Connection, norm_scale: float
) -> None:
    """Loss, all gradients and cached generation; the last gradient comes in expanded, as the readout gives it."""
    layer = {"norm_scale": norm_scale}
    model = lively(make_config(connection=case, layer=layer, tied=False, norm=norms.RMSNorm(eps=0.01)))
    with use_backend("reference"):
        truth = outcome(model, tokens)
    with use_backend(backend):
        found = outcome(model, tokens)
        with torch.inference_mode():
            cache = KVCache()
            steps = torch.cat([model(token, cache=cache) for token in tokens.split([6, *[1] * 7], dim=1)], dim=1)
    assert found.keys() == truth.keys()
    for name in truth:
        torch.testing.assert_close(found[name], truth[name], rtol=1e-8, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(steps, truth["logits"], rtol=1e-8, atol=1e-9)


@each_connection
def test_a_norm_that_is_watched_is_called(
    make_config: MakeConfig, lively: Lively, tokens: Tensor, connection_at_hand: Connection
) -> None:
    """With a hook of any kind on it the module runs; the result stays."""
    model = lively(make_config(connection=connection_at_hand, tied=False))
    truth = model(tokens)
    called: list[nn.Module] = []
    watched = [block.mlp_norm for block in model.blocks] + [model.final_norm]
    for module in watched:
        module.register_forward_hook(lambda module, inputs, output: called.append(module))
    torch.testing.assert_close(model(tokens), truth)
    assert called == watched


def test_what_a_read_can_take_over() -> None:
    folded = norms.RMSNorm(eps=1e-3).build(4, scale=0.5).folded()
    assert folded is not None
    assert folded.eps == pytest.approx(1e-3 / 4)
    assert norms.RMSNorm(gain=False).build(4).folded() is None
    assert norms.LayerNorm().build(4).folded() is None
    assert norms.BHyT().build(4).folded() is None
    for register in ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook"):
        module = norms.RMSNorm().build(4)
        getattr(module, register)(lambda *arguments: None)
        assert module.folded() is None
