"""A stack of any sublayers on a connection: for models that aren't Leadline's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor

from leadline.connections.base import Depth, Site
from leadline.errors import UsageError


def fold(depth: Depth, x: Tensor, sublayers: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Folds `sublayers` over depth: what the final norm and the head read.

    It replaces the loop `x = x + sublayer(x)` of a PreNorm model. Its norms stay inside the sublayers.

    Args:
        depth: a connection, built for this width and number of sublayers.
        x: the embedding, (..., dim).
        sublayers: each from (..., dim) to (..., dim), such as an `nn.ModuleList`: attention, MLP, attention, ...

    Returns:
        (..., dim), in the dtype that travels over depth.

    Raises:
        UsageError: the number of sublayers is not the one `depth` was built for.
    """
    if len(sublayers) != len(depth.sites):
        raise UsageError(f"got {len(sublayers)} sublayers; this depth was built with sublayers={len(depth.sites)}")
    state = depth.open(x)
    for site, sublayer in zip(cast(list[Site], list(depth.sites)), sublayers, strict=True):
        h, state = site.read(state)
        state = site.write(state, sublayer(h))
    return depth.readout(state)
