"""A Llama-like decoder whose depth is any connection: rotary embeddings, grouped queries, SwiGLU.

Shapes: B batch, T time, D width, V vocabulary, L blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leadline.connections.base import Site, State
from leadline.errors import UsageError
from leadline.models import saving
from leadline.models.block import Block, Tokens
from leadline.models.config import DecoderConfig
from leadline.models.layers import Device, Embedding, KVCache, Linear, initialise, rotary_tables
from leadline.sharded import whole_tensors


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
        depth = config.connection.build(config.dim, config.built_for, device=device, dtype=wide)
        self.embed = Embedding(config.vocab_size, config.dim, device=device, dtype=dtype)
        self.embed_scale: nn.Parameter | None = None
        if config.embedding_scale:
            self.embed_scale = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.embed_norm: nn.Module | None = None
        if config.embedding_norm is not None:
            self.embed_norm = config.embedding_norm.build(config.dim, role="embedding", device=device, dtype=dtype)
        self._numbers = config.numbers
        self.blocks = nn.ModuleList(self._make_blocks(cast(list[Site], list(depth.sites)), device, dtype))
        self.readout = depth.readout
        self.final_norm = config.final_norm.build(
            config.dim, scale=depth.readout.scale, role="final", device=device, dtype=dtype
        )
        self.head = None if config.tied else Linear(config.dim, config.vocab_size, device, dtype)
        if not self.embed.weight.is_meta:
            self.reset_parameters(seed)

    def _make_blocks(self, sites: list[Site], device: Device, dtype: torch.dtype) -> list[Block]:
        """The stack, in which a block that repeats an earlier one has its parameters and sites of its own."""
        config = self.config
        kept = [sites[place] for place in config.places]
        blocks: list[Block] = []
        for index, (layer, numbers) in enumerate(zip(config.block_layers, self._numbers, strict=True)):
            attn_site, mlp_site = (None if number is None else kept[number] for number in numbers)
            first = None if layer == index else blocks[layer]
            options = config.layers[layer]
            blocks.append(Block(config.dim, options, config.connection, attn_site, mlp_site, device, dtype, first))
        return blocks

    def forward(self, tokens: Tensor, *, cache: KVCache | None = None, skip: Collection[int] = ()) -> Tensor:
        """Logits (B, T, V) for tokens (B, T) int64.

        Args:
            tokens: numbers below `vocab_size`. More tokens than `context` work, with a warning, once.
            cache: what was seen before; these tokens follow it and join it.
            skip: numbers of the sublayers to leave out, in the order of `sites`: attention of block i is 2i, its MLP
                2i + 1, where each block has both.

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
        before = 0 if cache is None else cache.length
        self.warn_if_long(before + tokens.shape[1])
        state = self.begin(tokens)
        state = self.run(state, self.at(before, tokens.shape[1]), range(len(self.blocks)), cache=cache, skip=skip)
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.end(state)

    def exits(self, tokens: Tensor, blocks: Sequence[int], *, skip: Collection[int] = ()) -> list[Tensor]:
        """What the head would read if the model ended after each of `blocks`, numbered from 0: a list of (B, T, D).

        One forward pass up to the last of them; gradients flow through all. The last block's exit is `hidden`. With
        `memory="invert"` each exit stores the streams that it reads.

        Raises:
            UsageError: a block or a sublayer in `skip` that isn't there.
        """
        total = len(self.blocks)
        for block in blocks:
            if not 0 <= block < total:
                raise UsageError(f"block {block} is not an exit; this model has blocks 0 to {total - 1}")
        self.warn_if_long(tokens.shape[1])
        state, at_hand = self.begin(tokens), self.at(0, tokens.shape[1])
        found: dict[int, Tensor] = {}
        start = 0
        for block in sorted(set(blocks)):
            state = self.run(state, at_hand, range(start, block + 1), skip=skip)
            found[block] = self.end(state)
            start = block + 1
        return [found[block] for block in blocks]

    def begin(self, tokens: Tensor) -> State:
        """The state before the first block, of tokens (B, T) int64."""
        x = self.embed(tokens)
        if self.embed_scale is not None:
            x = x * self.embed_scale
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        return self.config.connection.open(x)

    def run(
        self,
        state: State,
        at_hand: Tokens,
        blocks: range,
        *,
        cache: KVCache | None = None,
        skip: Collection[int] = (),
    ) -> State:
        """The state after some of the blocks. `begin`, `run` and `end` are `hidden` in parts.

        Args:
            state: before the first of the blocks.
            at_hand: the tokens' places, from `at`.
            blocks: numbers from 0, without gaps.
            cache: gets the keys and values of these blocks; its `length` is left to the caller.
            skip: as for `forward`.
        """
        self.check_skip(skip)
        connection = self.config.connection
        sites = self.sites() if self.prefetch and not self.recompute else []
        recompute = self.recompute and cache is None and torch.is_grad_enabled()
        for index in blocks:
            block, (attention, mlp) = self.blocks[index], self._numbers[index]
            skip_attention, skip_mlp = attention in skip, mlp in skip
            if sites and (upcoming := connection.look_ahead(state, sites[mlp if attention is None else attention :])):
                state = connection.prefetch(state, upcoming)
            if recompute:
                state = checkpoint(block, state, at_hand, None, skip_attention, skip_mlp, use_reentrant=False)
            else:
                entry = None if cache is None or attention is None or skip_attention else cache.entry(index)
                state = block(state, at_hand, entry, skip_attention, skip_mlp)
        return state

    def end(self, state: State) -> Tensor:
        """What the head reads of a state after any block: the readout after the final norm, (B, T, D)."""
        folded = self.final_norm.folded() if self.readout.takes_norm else None
        return self.final_norm(self.readout(state)) if folded is None else self.readout.read_normed(state, folded)

    def at(self, before: int, time: int) -> Tokens:
        """What blocks need to know of `time` tokens that follow `before` others."""
        device, dtype = self.embed.weight.device, self.embed.weight.dtype
        positions = torch.arange(before, before + time, device=device)
        widths = {layer.attention.head_dim for layer in self.config.layers if layer.attention is not None}
        theta = self.config.rope_theta
        return Tokens(positions, {width: rotary_tables(positions, width, theta, dtype) for width in sorted(widths)})

    def check_skip(self, skip: Collection[int]) -> None:
        """Raises UsageError where `skip` has a number that is not a sublayer."""
        for number in skip:
            if not 0 <= number < self.config.sublayers:
                raise UsageError(f"skip={number} is not a sublayer; this model has 0 to {self.config.sublayers - 1}")

    def warn_if_long(self, length: int) -> None:
        """Warns, once, where the model sees more tokens at a time than it was trained on."""
        if length > self.config.context and not self._warned and not torch.compiler.is_compiling():
            self._warned = True
            warnings.warn(
                f"this model was trained on {self.config.context} tokens at a time; what it says beyond them is "
                "extrapolated",
                stacklevel=4,
            )

    def sites(self) -> list[Site]:
        """The sites in the order of the sublayers: two for each block, fewer where a sublayer was cut out."""
        pairs = [(block.attn_site, block.mlp_site) for block in cast(list[Block], list(self.blocks))]
        return [site for pair in pairs for site in pair if site is not None]

    def reset_parameters(self, seed: int = 0) -> None:
        """Sets every parameter and buffer to its start, after `to_empty` too."""
        config = self.config
        repeats = len(config.block_layers) - len(config.layers)
        # Repeats have no parameters of their own, and those that there are start as without repeats.
        initialise(self, config.init, config.dim, config.built_for // 2 - repeats, seed, config.original_blocks)
        if self.embed_scale is not None:
            nn.init.constant_(self.embed_scale, self.config.dim**0.5)
        self.refresh_statistics()

    @torch.no_grad()
    def refresh_statistics(self) -> None:
        """Recomputes BHyT's constants from the weights; does nothing for other norms.

        For training every clamp(steps // 50, 1, 1000) steps, and at the end. A forward pass never does it.
        """
        if self.folded:
            return
        for block in self._own_blocks():
            block.refresh_statistics(self.config.context)

    def _own_blocks(self) -> list[Block]:
        """The blocks that have parameters of their own: not those that repeat others."""
        return cast(list[Block], list(self.blocks))[: len(self.config.layers)]

    @torch.no_grad()
    def fold_gains(self) -> None:
        """Moves the gain of each norm that a matrix reads into that matrix, for inference; the output stays.

        `W (γ ⊙ y) = (W diag γ) y`, so gains become one: those before attention, before the MLP, and before an untied
        head. A norm with a bias keeps its gain. A folded model can't be saved: BHyT's constants are made from the
        matrices before folding.
        """
        for block in self._own_blocks():
            if block.attention is not None and block.attention_norm is not None:
                _fold(block.attention_norm, block.attention.qkv)
            if block.mlp is not None and block.mlp_norm is not None:
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
        saving.write_model(Path(folder), self.config, whole_tensors(self.state_dict()))

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
