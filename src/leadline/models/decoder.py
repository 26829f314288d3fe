"""A Llama-like decoder whose depth is any connection: rotary embeddings, grouped queries, SwiGLU.

Shapes: B batch, T time, D width, V vocabulary, L blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leadline.connections.base import Site
from leadline.errors import UsageError
from leadline.models import saving
from leadline.models.block import Block, Tokens
from leadline.models.cache import KVCache
from leadline.models.config import DecoderConfig
from leadline.models.initialise import initialise
from leadline.models.layers import Device, Embedding, Linear, rotary_tables


class Decoder(nn.Module):
    """Embedding, blocks on a connection's sites, the connection's readout, the final norm, the head.

        model = Decoder(config)
        logits = model(tokens)

    Args:
        config: everything about the model.
        device: where it is made; "meta" makes no values until `to_empty` and `reset_parameters`.
        dtype: of matrices and norms; a connection's own parameters are never narrower than float32.
        seed: the same seed gives the same embedding, attention and MLP for every connection and norm.

    Attributes:
        recompute: recompute each block in the backward pass instead of storing its activations; gradients stay.
        prefetch: read Attention Residuals in two phases. The result is the same; on a CPU it is no faster.
        folded: whether `fold_gains` has been called.

    Raises:
        UsageError: options that don't fit each other, named.
    """

    def __init__(
        self, config: DecoderConfig, *, device: Device = None, dtype: torch.dtype | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        self.prefetch = False
        self.folded = False
        self._warned = False
        dtype = dtype or torch.get_default_dtype()
        wide = torch.promote_types(dtype, torch.float32)
        depth = config.connection.build(config.dim, config.sublayers, device=device, dtype=wide)
        sites = cast(list[Site], list(depth.sites))
        self.embed = Embedding(config.vocab_size, config.dim, device=device, dtype=dtype)
        self.embed_scale: nn.Parameter | None = None
        if config.embedding_scale:
            self.embed_scale = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.embed_norm: nn.Module | None = None
        if config.embedding_norm is not None:
            self.embed_norm = config.embedding_norm.build(config.dim, role="embedding", device=device, dtype=dtype)
        self.blocks = nn.ModuleList(
            Block(config.dim, layer, config.connection, sites[2 * i], sites[2 * i + 1], device, dtype)
            for i, layer in enumerate(config.layers)
        )
        self.readout = depth.readout
        self.final_norm = config.final_norm.build(
            config.dim, scale=depth.readout.scale, role="final", device=device, dtype=dtype
        )
        self.head = None if config.tied else Linear(config.dim, config.vocab_size, device, dtype)
        if not self.embed.weight.is_meta:
            self.reset_parameters(seed)

    def forward(self, tokens: Tensor, *, cache: KVCache | None = None, skip: Collection[int] = ()) -> Tensor:
        """Logits (B, T, V) for tokens (B, T) int64.

        Args:
            tokens: numbers below `vocab_size`. More tokens than `context` work, with a warning, once.
            cache: what was seen before; these tokens follow it and join it.
            skip: numbers of the sublayers to leave out, from 0 to 2L - 1: attention of block i is 2i, its MLP 2i + 1.

        Raises:
            UsageError: a number in `skip` that isn't there.
        """
        return self.logits(self.hidden(tokens, cache=cache, skip=skip))

    @property
    def head_weight(self) -> Tensor:
        """The head's matrix (V, D): the embedding's where they are tied."""
        return self.embed.weight if self.head is None else self.head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """The head: (..., D) to (..., V)."""
        return F.linear(hidden, self.head_weight)

    def hidden(self, tokens: Tensor, *, cache: KVCache | None = None, skip: Collection[int] = ()) -> Tensor:
        """What the head reads: the readout after the final norm, (B, T, D). Arguments as for `forward`."""
        skip = self._checked(skip)
        before = 0 if cache is None else cache.length
        self._warn_if_long(before + tokens.shape[1])
        x = self.embed(tokens)
        if self.embed_scale is not None:
            x = x * self.embed_scale
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        at_hand = self._describe(before, tokens)
        state = self.config.connection.open(x)
        sites = self.sites() if self.prefetch and not self.recompute else []
        recompute = self.recompute and cache is None and torch.is_grad_enabled()
        for index, block in enumerate(self.blocks):
            skip_attention, skip_mlp = 2 * index in skip, 2 * index + 1 in skip
            if upcoming := self.config.connection.look_ahead(state, sites[2 * index :]):
                state = self.config.connection.prefetch(state, upcoming)
            if recompute:
                state = checkpoint(block, state, at_hand, None, skip_attention, skip_mlp, use_reentrant=False)
            else:
                entry = None if cache is None or skip_attention else cache.entry(index)
                state = block(state, at_hand, entry, skip_attention, skip_mlp)
        if cache is not None:
            cache.length += tokens.shape[1]
        folded = self.final_norm.folded() if self.readout.takes_norm else None
        return self.final_norm(self.readout(state)) if folded is None else self.readout.read_normed(state, folded)

    def _describe(self, before: int, tokens: Tensor) -> Tokens:
        positions = torch.arange(before, before + tokens.shape[1], device=tokens.device)
        widths = {layer.attention.head_dim for layer in self.config.layers}
        dtype, theta = self.embed.weight.dtype, self.config.rope_theta
        return Tokens(positions, {width: rotary_tables(positions, width, theta, dtype) for width in sorted(widths)})

    def _checked(self, skip: Collection[int]) -> Collection[int]:
        for number in skip:
            if not 0 <= number < self.config.sublayers:
                raise UsageError(f"skip={number} is no sublayer; this model has 0 to {self.config.sublayers - 1}")
        return skip

    def _warn_if_long(self, length: int) -> None:
        if length > self.config.context and not self._warned and not torch.compiler.is_compiling():
            self._warned = True
            warnings.warn(
                f"this model was trained on {self.config.context} tokens at a time; what it says beyond them is "
                "extrapolated",
                stacklevel=4,
            )

    def sites(self) -> list[Site]:
        """The sites in the order of the sublayers: 2L of them."""
        blocks = cast(list[Block], list(self.blocks))
        return [site for block in blocks for site in (block.attn_site, block.mlp_site)]

    def reset_parameters(self, seed: int = 0) -> None:
        """Sets every parameter and buffer to its start, after `to_empty` too."""
        initialise(self, self.config.init, self.config.dim, len(self.config.layers), seed)
        if self.embed_scale is not None:
            nn.init.constant_(self.embed_scale, self.config.dim**0.5)
        self.refresh_statistics()

    @torch.no_grad()
    def refresh_statistics(self) -> None:
        """Works BHyT's constants out anew from the weights; does nothing for other norms.

        For training every clamp(steps // 50, 1, 1000) steps, and at the end. A forward pass never does it.
        """
        if self.folded:
            return
        for block in cast(list[Block], list(self.blocks)):
            block.refresh_statistics(self.config.context)

    @torch.no_grad()
    def fold_gains(self) -> None:
        """Moves the gain of each norm that a matrix reads into that matrix, for inference; the output stays.

        `W (γ ⊙ y) = (W diag γ) y`, so gains become one: those before attention, before the MLP, and before an untied
        head. A norm with a bias keeps its gain. A folded model can't be saved: BHyT's constants are made from the
        matrices before folding.
        """
        for block in cast(list[Block], list(self.blocks)):
            _fold(block.attention_norm, block.attention.qkv)
            _fold(block.mlp_norm, block.mlp.gate_up)
        if self.head is not None:
            _fold(self.final_norm, self.head)
        self.folded = True

    def save(self, folder: Path | str) -> None:
        """Refreshes BHyT's constants and writes `config.json` and `model.safetensors`, each whole or not at all."""
        if self.folded:
            raise UsageError(
                "a model whose gains are folded is for inference and can't be saved; save it before folding"
            )
        self.refresh_statistics()
        saving.write_model(Path(folder), self.config, self)

    @classmethod
    def load(cls, folder: Path | str, *, device: Device = None, dtype: torch.dtype | None = None) -> Decoder:
        """The model that `save` wrote.

        Args:
            folder: holds `config.json` and `model.safetensors`.
            device: where it goes; the CPU unless given.
            dtype: of matrices and norms, as in the constructor; what was saved unless given.

        Raises:
            LeadlineError: a file is missing, damaged, or doesn't fit the configuration; it is named.
        """
        folder = Path(folder)
        config = saving.read_config(folder)
        model = cls(config, device="meta", dtype=dtype)
        saving.read_weights(folder, model, device=device, keep_dtype=dtype is None)
        return model


def _fold(norm: nn.Module, linear: nn.Linear) -> None:
    """Moves a norm's gain, where it has one and no bias, into the matrix that reads it."""
    gain = getattr(norm, "gain", None)
    if gain is None or getattr(norm, "bias", None) is not None:
        return
    linear.weight.mul_(gain.to(linear.weight.dtype))
    gain.fill_(1.0)
