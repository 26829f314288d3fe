"""A design: connection, norm, placement, initialisation and taper, by name; it becomes a decoder for a shape."""

from __future__ import annotations

import dataclasses
from typing import Any

from leadline.connections import Additive, AttentionResiduals, Connection, MultiGate
from leadline.designs import recipes
from leadline.designs.expression import Term, parse, slug
from leadline.designs.presets import ShapeConfig
from leadline.designs.recipes import Placement
from leadline.designs.taper import UNTAPERED, Taper, Widths
from leadline.errors import UsageError
from leadline.models.config import AttentionConfig, DecoderConfig, InitConfig, LayerConfig, MLPConfig
from leadline.norms import BHyT, Derf, DyT, NoNorm, NormConfig, RMSNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """What a model does with depth, independent of its size. Made by `resolve`.

    Attributes:
        name: the registered name, or the canonical expression where options or parts are given.
        expression: canonical; `resolve(design.expression) == design`.
        connection: a connection, or a recipe for one that depends on the depth; see `connection_for`.
        norm: before sublayers (and after them in Peri and Sandwich).
        placement: where norms stand.
        init: how matrices start.
        qk_norm: whether queries and keys are normalised.
        embedding_norm: whether the embedding is normalised.
        taper: how widths change over depth.
        parts: the names of the parts, as in the expression.
        summary: one line.
        source: papers.
    """

    name: str
    expression: str
    connection: Connection | recipes.Recipe
    norm: NormConfig
    placement: Placement
    init: InitConfig
    qk_norm: bool = False
    embedding_norm: bool = False
    taper: Taper = UNTAPERED
    parts: tuple[str, ...]
    summary: str
    source: str

    @property
    def slug(self) -> str:
        """The expression as a name for files and folders."""
        return slug(self.expression)

    def connection_for(self, blocks: int) -> Connection:
        """The connection of a stack of `blocks` blocks."""
        if isinstance(self.connection, recipes.Recipe):
            return self.connection.resolve(blocks)
        return self.connection

    def norm_for(self, blocks: int) -> NormConfig:
        """The norm; BHyT becomes exact where its approximation does not hold."""
        connection = self.connection_for(blocks)
        plain = isinstance(connection, Additive) and connection == Additive(state_dtype=connection.state_dtype)
        if isinstance(self.norm, BHyT) and self.norm.approximate and not (plain and self.placement == "pre"):
            return dataclasses.replace(self.norm, approximate=False, position_aware=False)
        return self.norm

    def decoder(self, shape: ShapeConfig, vocab_size: int) -> DecoderConfig:
        """The configuration of a decoder of this design. All indices are resolved in it.

        Raises:
            UsageError: the design's options don't fit the shape.
        """
        connection = self.connection_for(shape.blocks)
        connection.check(shape.dim, 2 * shape.blocks)
        norm = self.norm_for(shape.blocks)
        return DecoderConfig(
            vocab_size=vocab_size,
            dim=shape.dim,
            layers=tuple(
                self._layer(shape, norm, number, widths)
                for number, widths in enumerate(self.taper.widths(shape), start=1)
            ),
            connection=connection,
            final_norm=self._final_norm(norm),
            embedding_norm=norm if self.embedding_norm else None,
            embedding_scale=isinstance(norm, DyT | Derf),
            context=shape.context,
            tied=shape.tied,
            init=self.init,
        )

    def notes(self, shape: ShapeConfig) -> list[str]:
        """What someone who runs this design at this shape should know; for the summary line of a run."""
        notes = []
        connection = self.connection_for(shape.blocks)
        sublayers = 2 * shape.blocks
        if self.norm_for(shape.blocks) != self.norm:
            notes.append(
                "BHyT's norm before the MLP is exact here: its approximation holds only for the plain residual "
                "stream with norms before the sublayers"
            )
        if isinstance(self.connection, recipes.BlockAttentionResiduals) and isinstance(connection, AttentionResiduals):
            size = connection.block_size or 1
            notes.append(
                f"Attention Residuals in blocks of {size} sublayers: {-(-sublayers // size)} of them in this stack"
            )
        if isinstance(self.connection, recipes.MixedNorm):
            post = self.connection.post_blocks(shape.blocks)
            notes.append(f"Mix-LN: post-norm in the first {post} of {shape.blocks} blocks")
        if isinstance(connection, MultiGate) and sublayers < connection.streams:
            notes.append(
                f"streams={connection.streams} is more than the {sublayers} sublayers: the gates are never used"
            )
        return [*notes, *self.taper.notes(shape)]

    def _final_norm(self, norm: NormConfig) -> NormConfig:
        if self.placement == "post":
            return NoNorm()
        if isinstance(norm, BHyT | DyT | Derf) and norm.final == "rmsnorm":
            return RMSNorm(eps=norm.eps) if isinstance(norm, BHyT) else RMSNorm()
        return norm

    def _layer(self, shape: ShapeConfig, norm: NormConfig, number: int, widths: Widths) -> LayerConfig:
        behind = norm if self.placement in ("peri", "sandwich") else None
        mixed = isinstance(self.connection, recipes.MixedNorm) and number <= self.connection.post_blocks(shape.blocks)
        inside = NoNorm() if mixed else norm
        return LayerConfig(
            attention=AttentionConfig(
                heads=widths.heads, kv_heads=widths.kv_heads, head_dim=shape.head_dim, qk_norm=self.qk_norm
            ),
            mlp=MLPConfig(hidden=widths.hidden),
            attention_norm=inside,
            mlp_norm=inside,
            attention_output_norm=behind,
            mlp_output_norm=behind,
            norm_scale=number**-0.5 if self.placement == "lns" else 1.0,
        )


def resolve(expression: str) -> Design:
    """The design that an expression means, such as `prenorm`, `mgr(streams=8)` or `mgr + bhyt`.

    Raises:
        UsageError: the expression can't be read, a name, option or value is wrong, or two parts exclude each other.
    """
    terms = parse(expression)
    slots = _fill_slots(terms)
    options = {slot: term.options for slot, term in slots.items()}
    placed = options.get("placement")
    placement: Placement = getattr(placed, "placement", "pre")
    connection = options.get("connection", recipes.Plain())
    norm = options["norm"] if "norm" in slots and placement != "post" else RMSNorm()
    shown = _shown(terms)
    text = " + ".join(term.text for term in shown)
    return Design(
        name=text,
        expression=text,
        connection=connection,
        norm=NoNorm() if placement == "post" else norm,
        placement=placement,
        init=_init(connection, norm, placement, plain="init" in slots),
        qk_norm="attention" in slots,
        embedding_norm=getattr(placed, "embedding_norm", False),
        taper=options.get("taper", UNTAPERED),
        parts=tuple(term.part.name for term in shown),
        summary=" ".join(term.part.summary(term.options) for term in shown),
        source="; ".join(dict.fromkeys(term.part.source for term in shown)),
    )


def check_two_phase(connection: Connection) -> None:
    """Raises UsageError where `--two-phase` has nothing to read ahead."""
    if not connection.two_phase:
        raise UsageError(
            "--two-phase reads finished sources once for several sublayers, which this design doesn't have; attnres "
            "and attnres-block work, with weights=softmax, key_norm and no window"
        )


def levelled(design: Design, shape: ShapeConfig) -> Design:
    """The design with the same widths in every layer, the means of its taper's at this shape; see `Taper.levelled`.

    Raises:
        UsageError: the taper doesn't fit the shape.
    """
    taper = design.taper.levelled(shape)
    others = [term.text for term in parse(design.expression) if term.part.slots != ("taper",)]
    return resolve(" + ".join([*others, f"taper(heads={taper.heads}, mlp={taper.mlp})"]))


_ORDER = ("connection", "norm", "placement", "attention", "init", "taper")


def _fill_slots(terms: list[Term]) -> dict[str, Term]:
    slots: dict[str, Term] = {}
    for term in terms:
        for slot in term.part.slots:
            other = slots.get(slot)
            if other is None:
                slots[slot] = term
            elif other.written == term.written:
                raise UsageError(f"{term.written} stands twice in the design; once is enough")
            else:
                raise UsageError(_clash(other, term, slot))
    return slots


def _clash(one: Term, two: Term, slot: str) -> str:
    first, second = one.written, two.written
    if one.part.slots == two.part.slots and len(one.part.slots) == 1:
        plurals = {"connection": "connections", "norm": "norms", "placement": "placements", "taper": "tapers"}
        kind = plurals.get(slot, slot)
        return f"{first} and {second} are both {kind}, and a design has one; keep {first} or {second}"
    wider = first if len(one.part.slots) > len(two.part.slots) else second
    decided = (one if wider == first else two).part.slots
    listed = f"{', '.join(decided[:-1])} and {decided[-1]}"
    return f"{first} + {second}: {wider} decides the {listed} by itself; keep {first} or {second}"


def _shown(terms: list[Term]) -> list[Term]:
    """In canonical order, without what says nothing."""
    ordered = sorted(terms, key=lambda term: _ORDER.index(term.part.slots[0]))
    needed = [term for term in ordered if term.text not in ("prenorm", "rmsnorm", "taper")]
    return needed or [parse("prenorm")[0]]


def _init(connection: Any, norm: NormConfig, placement: Placement, plain: bool) -> InitConfig:
    """Output projections divided by sqrt(2·blocks), but where the source or the design speaks against it.

    LNS, Post-LN, DeepNorm and BHyT start undivided [papers; BHyT's released code]; after an output norm (Peri,
    Sandwich) the division has no effect on what flows, so it is left out [ours]. BHyT with a unit gain, which is ours,
    starts at the scale of RMSNorm and so as that does. LayerScale and ReZero start their branches small by a gain of
    their own [papers]; divided as well they learned less in the sweep.
    """
    bounded = isinstance(norm, BHyT) and norm.gain_init == "one"
    gained = isinstance(connection, recipes.LayerScale | recipes.ReZero)
    undivided = plain or bounded or gained or placement in ("lns", "post", "peri", "sandwich")
    return InitConfig(
        output_scale="none" if undivided else "depth", deepnorm=isinstance(connection, recipes.DeepPostNorm)
    )
