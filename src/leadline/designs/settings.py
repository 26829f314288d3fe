"""The learning rate of every design, from a short sweep at the preset tiny.

The sweep: 300 steps of 1,024 bytes of `sotu` (`--tokens 307200`), seed 3, which takes no part in the demo's comparison;
held-out bits per byte at the end. Repeat it with `leadline compare --sweep-lr 2e-3,4e-3,8e-3 --tokens 307200`. One
seed: neighbours closer than about 0.05 are not told apart.

One table. A design that isn't in it takes its connection's row or its norm's, or else the baseline's. Other presets
take their own rate for the baseline times the design's ratio to it at tiny [ours].
"""

from __future__ import annotations

import dataclasses

from leadline.designs.design import Design
from leadline.designs.presets import Preset
from leadline.models.config import InitConfig

BASELINE = "prenorm"
SWEPT_AT = "tiny"


@dataclasses.dataclass(frozen=True)
class Swept:
    """A design's learning rate at the preset tiny.

    Attributes:
        learning_rate: the peak rate, chosen.
        points: (learning rate, held-out bits per byte) of every run of the sweep; empty where the rate was not swept.
    """

    learning_rate: float
    points: tuple[tuple[float, float], ...] = ()


TABLE: dict[str, Swept] = {
    "prenorm": Swept(4e-3, ((2e-3, 3.0640), (4e-3, 3.0528), (8e-3, 3.1124))),
    "attnres": Swept(4e-3, ((2e-3, 2.9573), (4e-3, 2.8988), (8e-3, 3.0539))),
    "attnres-block": Swept(4e-3, ((2e-3, 2.9539), (4e-3, 2.9110), (8e-3, 2.9882))),
    "mgr-independent": Swept(4e-3, ((2e-3, 3.0110), (4e-3, 2.9731), (8e-3, 3.0284))),
    "mgr-competitive": Swept(4e-3, ((2e-3, 3.0090), (4e-3, 2.9931), (8e-3, 3.0258))),
    "mhc-lite": Swept(4e-3, ((2e-3, 3.0530), (4e-3, 3.0372), (8e-3, 3.0967))),
    "bhyt": Swept(1.6e-2, ((4e-3, 3.5368), (8e-3, 3.4155), (1.6e-2, 3.3293), (3.2e-2, 3.5149))),
    "bhyt-exact": Swept(1.6e-2),
    "lns": Swept(4e-3, ((2e-3, 3.1580), (4e-3, 3.0860), (8e-3, 3.1003))),
}
"""By canonical expression."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a design is trained at a preset.

    Attributes:
        learning_rate: peak learning rate.
        init: how matrices start.
        source: where the learning rate comes from, in words.
        points: the sweep's points at the preset tiny, (learning rate, bits per byte).
    """

    learning_rate: float
    init: InitConfig
    source: str
    points: tuple[tuple[float, float], ...] = ()


def settings(design: Design, preset: Preset) -> Settings:
    """The learning rate and initialisation of a design at a preset."""
    row, swept = _row(design)
    own = row == design.expression
    chosen = "sweep shipped with Leadline" if own and swept.points else f"not swept for this design; {row}'s rate"
    source = chosen
    rate = swept.learning_rate
    if preset.name != SWEPT_AT:
        rate = preset.learning_rate * swept.learning_rate / TABLE[BASELINE].learning_rate
        source = (
            f"{preset.name}'s rate of {preset.learning_rate:g} times {row}'s ratio to {BASELINE} at tiny ({chosen})"
        )
    return Settings(rate, design.init, source, swept.points if row == design.expression else ())


def _row(design: Design) -> tuple[str, Swept]:
    for name in (design.expression, *design.parts, BASELINE):
        if name in TABLE:
            return name, TABLE[name]
    raise KeyError(f"the table of learning rates lacks {BASELINE}")
