"""The pictures of how alike blocks are: angles, CKA, effective rank, Block Influence, and the logit lens."""

from __future__ import annotations

from leadline.experiments.probe.report.sizes import panel
from leadline.experiments.probe.report.values import ModelValues, ProbeValues, percent
from leadline.report import inside
from leadline.report.lines import Panel
from leadline.report.matrices import triangles
from leadline.report.over_blocks import over_blocks, series
from leadline.report.pictures import Picture


def likeness(report: ProbeValues) -> list[Picture]:
    """How much the blocks change, as seen from what they leave."""
    models = report.measured
    found = [
        over_blocks(
            [panel(models, lambda m: m.values("similarity", "block_influence"))],
            name="block-influence",
            heading="Block Influence",
            label="One minus the mean cosine between what a block reads and what it leaves, on a logarithmic axis",
            axis="1 − cos(before, after)",
            reading="How far a block turns the stream: a low block leaves every token nearly where it was, so it is "
            "the first that pruning by similarity takes.",
            tip="{name}, block {x}: {y}",
            log=True,
        ),
        inside.angles([(m.entry, m.matrix("similarity", "angular_distance")) for m in models]),
        triangles(
            [(m.entry, m.matrix("similarity", "cka")) for m in models],
            name="cka",
            heading="Likeness of representations",
            reading="A cell compares what two blocks read over all tokens: where it is strong, both tell the same "
            "tokens apart, whatever the direction, and a strong square on the slope is a group of blocks that work "
            "on one representation.",
            label="Linear CKA between what the blocks of {name} read.",
            note="1 is the same up to turning and scaling, 0 unrelated. Rows and columns are blocks; the last row is "
            "what the last block leaves.",
            bar="linear CKA",
            high=1.0,
            last="readout",
        ),
        over_blocks(
            [_states(models, "effective_rank", ""), _states(models, "effective_rank_centred", "mean taken off")]
            if any(m.values("similarity", "effective_rank_centred") for m in models)
            else [_states(models, "effective_rank", "")],
            name="effective-rank",
            heading="Effective rank",
            label="Effective rank of what the blocks read, on a logarithmic axis",
            axis="effective rank",
            reading="About how many directions the tokens spread over: a line that falls means that they come to "
            "share a few, and a massive activation presses it towards 1.",
            note="The last place is what the last block leaves.",
            tip="{name}, read by block {x}: {y} directions",
            log=True,
        ),
    ]
    return [picture for picture in found if picture is not None]


def lens(report: ProbeValues) -> list[Picture]:
    """What the model would say if it ended after each block."""
    models = report.measured
    found = [
        over_blocks(
            [panel(models, lambda m: m.values("lens", "bits_per_byte"))],
            name="lens-loss",
            heading="Loss if the model ended here",
            label="Bits per byte of the final norm and head put after each block",
            axis="bits per byte",
            reading="Where the line stops falling, the later blocks no longer improve the guess.",
            note="The final norm takes the statistics of what each block leaves; its gain and the head are the "
            "model's. A block may work on what the head cannot read, so a flat stretch is a hint and no proof.",
            tip="{name}, after block {x}: {y} bits per byte",
            decimals=3,
        ),
        over_blocks(
            [panel(models, lambda m: m.values("lens", "kl"))],
            name="lens-kl",
            heading="Distance to the final answer",
            label="Kullback-Leibler divergence of each block's guess from the final one",
            axis="KL to the final guess, nats",
            reading="How much is still to be decided after each block; it ends at zero.",
            tip="{name}, after block {x}: {y} nats",
            zero=True,
        ),
        over_blocks(
            [panel(models, lambda m: percent(m.values("lens", "agreement")))],
            name="lens-agreement",
            heading="Agreement with the final answer",
            label="Tokens whose likeliest successor is already the final one, in percent",
            axis="same first choice, % of tokens",
            reading="The share of tokens whose likeliest successor is already the final one: a line that is high "
            "early says that many tokens could leave the model early.",
            tip="{name}, after block {x}: {y} % of tokens",
            zero=True,
        ),
        over_blocks(
            [panel(models, lambda m: m.values("lens", "entropy"))],
            name="lens-entropy",
            heading="Uncertainty",
            label="Entropy of the guess after each block",
            axis="entropy of the guess, nats",
            reading="A guess that gets sharper from block to block loses entropy.",
            tip="{name}, after block {x}: {y} nats",
            zero=True,
        ),
    ]
    return [picture for picture in found if picture is not None]


def _states(models: list[ModelValues], name: str, title: str) -> Panel:
    """Lines over states: place i is what block i reads."""
    return Panel(
        title=title or "as it is",
        series=[
            series(m.entry, [(float(i), value) for i, value in enumerate(m.values("similarity", name))]) for m in models
        ],
    )
