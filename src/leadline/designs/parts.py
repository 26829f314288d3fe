"""The named parts that designs are made of: connections, norms, placements, a few switches, and tapers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from leadline.connections import AttentionResiduals, HyperConnections, ManifoldHyperConnections, MultiGate
from leadline.designs import recipes
from leadline.designs.taper import Taper
from leadline.errors import UsageError, did_you_mean
from leadline.norms import BHyT, Derf, DyT, LayerNorm, RMSNorm
from leadline.report.words import percent

Slot = Literal["connection", "norm", "placement", "attention", "init", "taper"]


@dataclasses.dataclass(frozen=True)
class Part:
    """A name that an expression may use.

    Attributes:
        name: as written in expressions.
        options: the frozen dataclass whose fields are the part's options.
        slots: what the part decides; a design has at most one part for each slot.
        about: one line, or what makes one of the options, where it names what they decide.
        source: paper, or "ours".
        defaults: options that differ from the dataclass's own defaults.
    """

    name: str
    options: type
    slots: tuple[Slot, ...]
    about: str | Callable[[Any], str]
    source: str
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def make(self, given: Mapping[str, Any]) -> Any:
        """The options' dataclass with the given options over the part's defaults."""
        return self.options(**{**self.defaults, **given})

    def summary(self, options: Any = None) -> str:
        """One line about the part with these options; with its defaults unless given."""
        return self.about if isinstance(self.about, str) else self.about(self.make({}) if options is None else options)


_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NORM_NAMES = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}


def _number(value: int) -> str:
    return _NUMBERS[value] if value < len(_NUMBERS) else str(value)


def _streams(options: Any) -> str:
    return f"{_number(options.streams).capitalize()} stream{'s' if options.streams > 1 else ''}"


def _share(options: recipes.MixedNorm) -> str:
    said = {0.25: "quarter", 0.5: "half"}.get(options.share, percent(options.share))
    norm = "" if options.norm == "rmsnorm" else f" ({_NORM_NAMES[options.norm]})"
    return f"Post-norm{norm} in the first {said} of the blocks, pre-norm in the others."


def _sources(options: AttentionResiduals) -> str:
    what = "outputs" if options.block_size is None else f"sums of {_number(options.block_size)} outputs"
    which = "all" if options.window is None else f"the embedding and the last {_number(options.window)}"
    return f"Every sublayer attends over {which} {what} before it."


_CONNECTION: tuple[Slot, ...] = ("connection",)
_NORM: tuple[Slot, ...] = ("norm",)
_PLACEMENT: tuple[Slot, ...] = ("placement",)
_TAPER: tuple[Slot, ...] = ("taper",)
_CASCADE = "CascadeFormer, arXiv 2606.26538; the schedule is ours"

_ALL = (
    Part("prenorm", recipes.Plain, _CONNECTION, "Residual stream, RMSNorm before every sublayer: the baseline.",
         "Xiong et al., arXiv 2002.04745; RMSNorm arXiv 1910.07467"),
    Part("post-ln", recipes.PostNorm, ("connection", "norm", "placement"),
         lambda o: f"{_NORM_NAMES[o.norm]} on the stream after every sublayer, none inside.",
         "Vaswani et al., arXiv 1706.03762"),
    Part("deepnorm", recipes.DeepPostNorm, ("connection", "norm", "placement"),
         "Post-norm with the stream scaled up by (2·blocks)^¼ and a smaller start.", "arXiv 2203.00555"),
    Part("mix-ln", recipes.MixedNorm, ("connection", "placement"),
         _share, "arXiv 2412.13795"),
    Part("layerscale", recipes.LayerScale, _CONNECTION,
         "A learned scale per channel on every sublayer's output, starting small.", "CaiT, arXiv 2103.17239"),
    Part("rezero", recipes.ReZero, _CONNECTION,
         "A learned scalar on every sublayer's output, starting at zero; the norms stay (ours).", "arXiv 2003.04887"),
    Part("attnres", AttentionResiduals, _CONNECTION,
         _sources, "Attention Residuals, arXiv 2603.15031"),
    Part("attnres-block", recipes.BlockAttentionResiduals, _CONNECTION,
         lambda o: f"Attention over about {_number(o.blocks)} block sums and the current partial sum.",
         "Attention Residuals, arXiv 2603.15031"),
    Part("mgr-competitive", MultiGate, _CONNECTION,
         lambda o: f"{_streams(o)}; the gates compete with each other and with keeping.",
         "Multi-Gate Residuals, arXiv 2605.23259", {"gate": "competitive"}),
    Part("mgr-independent", MultiGate, _CONNECTION,
         lambda o: f"{_streams(o)}, each with its own gate.",
         "Multi-Gate Residuals, arXiv 2605.23259", {"gate": "independent"}),
    Part("mgr", MultiGate, _CONNECTION,
         "Short for mgr-competitive.", "Multi-Gate Residuals, arXiv 2605.23259", {"gate": "competitive"}),
    Part("hc", HyperConnections, _CONNECTION,
         lambda o: f"{_streams(o)}, mixed by learned, input-dependent matrices.",
         "Hyper-Connections, arXiv 2409.19606"),
    Part("mhc", ManifoldHyperConnections, _CONNECTION,
         "Hyper-connections whose mixing is made doubly stochastic by Sinkhorn steps.", "arXiv 2512.24880",
         {"mixing": "sinkhorn"}),
    Part("mhc-lite", ManifoldHyperConnections, _CONNECTION,
         "Hyper-connections whose mixing is a weighted sum of permutations.", "arXiv 2601.05732",
         {"mixing": "birkhoff"}),
    Part("rmsnorm", RMSNorm, _NORM, "RMSNorm: what every design uses unless it says otherwise.", "arXiv 1910.07467"),
    Part("layernorm", LayerNorm, _NORM, "LayerNorm in place of RMSNorm.", "arXiv 1607.06450"),
    Part("dyt", DyT, _NORM, "Dynamic tanh in place of a norm; the embedding gets a learned scalar.",
         "arXiv 2503.10622"),
    Part("derf", Derf, _NORM, "Dynamic erf in place of a norm; the embedding gets a learned scalar (ours).",
         "arXiv 2512.10938"),
    Part("bhyt", BHyT, _NORM, "Bounded tanh, one reduction a block: the paper's form.", "arXiv 2601.09719"),
    Part("bhyt-exact", BHyT, _NORM, "Bounded tanh with the mean, and its own reductions before the MLP too (BHyT*).",
         "arXiv 2601.09719", {"approximate": False, "with_mean": True}),
    Part("bhyt-unit", BHyT, _NORM, "Bounded tanh whose gain starts at κ/λ, so that it starts at unit scale.",
         "ours, after arXiv 2601.09719", {"gain_init": "unit", "lambda_attention": 2.0, "lambda_mlp": 1.0}),
    Part("peri-ln", recipes.PeriLN, _PLACEMENT,
         lambda o: f"A norm before and after every sublayer{', and on the embedding' if o.embedding_norm else ''}.",
         "arXiv 2502.02732"),
    Part("sandwich-ln", recipes.SandwichLN, _PLACEMENT,
         "A norm before and after every sublayer.", "CogView, arXiv 2105.13290"),
    Part("lns", recipes.LayerNormScaling, _PLACEMENT,
         "Input norms divided by the square root of the block's number.", "LayerNorm Scaling, arXiv 2502.05795"),
    Part("qk-norm", recipes.QueryKeyNorm, ("attention",),
         "RMSNorm on each head's queries and keys.", "arXiv 2302.05442"),
    Part("plain-init", recipes.PlainInit, ("init",),
         "Output projections start undivided.", "ours, for comparison"),
    Part("taper", Taper, _TAPER, "A schedule of one's own: taper(heads=1:2/3:1/3, mlp=1~1/2).",
         "after CascadeFormer, arXiv 2606.26538"),
    Part("cascade-a1", Taper, _TAPER, "Half of the heads in the second half of the layers.", _CASCADE,
         {"heads": "1:1/2"}),
    Part("cascade-a2", Taper, _TAPER, "All heads, two thirds and one third of them in three equal steps.", _CASCADE,
         {"heads": "1:2/3:1/3"}),
    Part("cascade-f1", Taper, _TAPER, "The MLP narrows linearly to half of its width.", _CASCADE,
         {"mlp": "1~1/2"}),
    Part("cascade-f2", Taper, _TAPER, "The MLP narrows linearly to a quarter of its width.", _CASCADE,
         {"mlp": "1~1/4"}),
    Part("cascade-af", Taper, _TAPER, "The heads of cascade-a2 and the MLP of cascade-f1.", _CASCADE,
         {"heads": "1:2/3:1/3", "mlp": "1~1/2"}),
    Part("cascade-reverse", Taper, _TAPER, "cascade-a2 upside down: few heads first.", "ours, for comparison",
         {"heads": "1/3:2/3:1"}),
    Part("cascade-middle", Taper, _TAPER, "The heads of cascade-a2, fewest in the middle.", "ours, for comparison",
         {"heads": "1:2/3:1/3:1/3:2/3:1"}),
    Part("reverse", Taper, _TAPER, "Short for cascade-reverse.", "ours, for comparison",
         {"heads": "1/3:2/3:1"}),
    Part("middle", Taper, _TAPER, "Short for cascade-middle.", "ours, for comparison",
         {"heads": "1:2/3:1/3:1/3:2/3:1"}),
)  # fmt: skip

PARTS: dict[str, Part] = {part.name: part for part in _ALL}
"""Every name that an expression may use."""


def part_named(name: str) -> Part:
    """The part of that name.

    Raises:
        UsageError: no part has it; the nearest names and the list follow.
    """
    part = PARTS.get(name)
    if part is None:
        raise UsageError(f"design {name!r} is not known.{did_you_mean(name, PARTS)} Known: {', '.join(PARTS)}")
    return part
