"""What the measurements say in words: the headline, a sentence or two for each model, and the lines of the terminal.

Blocks are counted from 1 in words and pictures, as in all reports. `leadline prune --blocks` counts from 0, so where a
block is named for pruning both numbers stand.
"""

from __future__ import annotations

from leadline.drawing.reading import some
from leadline.drawing.words import DASH, fixed, listed, percent, plain, significant
from leadline.study.probe_report.values import ModelValues, ProbeValues, front_half, growth, least_needed

MOST_NAMED = 3
"""As many blocks at most are named as those that are needed least."""


def headline(report: ProbeValues) -> str:
    """The finding in a sentence."""
    models = report.measured
    if not models:
        return "No model could be probed"
    halves = [(half, m) for m in models if (half := front_half(m)) is not None]
    if len(models) == 1:
        return _alone(models[0])
    if len(halves) > 1:
        most, least = max(halves, key=lambda h: h[0]), min(halves, key=lambda h: h[0])
        if round(100 * most[0]) > round(100 * least[0]):
            return (
                f"{most[1].name} leans on its first half of blocks most, {least[1].name} least: "
                f"{percent(most[0])} and {percent(least[0])} of what all blocks are worth"
            )
    grown = [(times, m) for m in models if (times := growth(m)) is not None]
    if len(grown) > 1:
        most, least = max(grown, key=lambda g: g[0]), min(grown, key=lambda g: g[0])
        return f"From block 2 to the end {most[1].name} {_grows(most[0])} and {least[1].name} {_grows(least[0])}"
    return f"Depth of {listed([m.name for m in models])}, side by side"


def _alone(model: ModelValues) -> str:
    order = least_needed(model)
    rises = model.values("ablation", "blocks", "nats")
    if order and some(rises):
        first, last = order[0], order[-1]
        return (
            f"{model.name} needs block {last + 1} of {model.blocks} most and block {first + 1} least: "
            f"alone they are worth {_nats(rises[last])} and {_nats(rises[first])} nats a token"
        )
    times = growth(model)
    if times is not None:
        return f"The stream of {model.name} {_grows(times)} from block 2 to the end"
    if order:
        return f"Block {order[0] + 1} of {model.name} changes the stream least, block {order[-1] + 1} most"
    return f"{model.name} along depth"


def compared(report: ProbeValues) -> list[str]:
    """How several models differ, in a sentence for each thing that all of them show."""
    models = report.measured
    if len(models) < 2:
        return []
    found = []
    halves = [front_half(m) for m in models]
    if all(half is not None for half in halves):
        said = [f"{percent(half or 0.0)} in {m.name}" for half, m in zip(halves, models, strict=True)]
        found.append(f"The first half of the blocks is worth {listed(said)} of what all blocks are worth.")
    grown = [growth(m) for m in models]
    if all(times is not None for times in grown):
        said = [f"{_grows(times or 0.0)} in {m.name}" for times, m in zip(grown, models, strict=True)]
        found.append(f"From block 2 to the end, what blocks leave {listed(said)}.")
    return found


def sentences(model: ModelValues, *, alone: bool = True) -> list[str]:
    """What stands out in one model, most telling first; without what `compared` says where it isn't `alone`."""
    shared = [_half(model), _growth(model)] if alone else []
    found = [_diverged(model), _least(model), *shared, _massive(model), _settled(model), _share(model)]
    return [sentence for sentence in found if sentence]


def fewest(model: ModelValues) -> list[int]:
    """The blocks that are needed least, from 0 and cheapest first: a quarter of all, three at most."""
    return least_needed(model)[: max(1, min(MOST_NAMED, model.blocks // 4))]


def _diverged(model: ModelValues) -> str:
    measured = (model.number("lens", "tokens"), model.number("ablation", "tokens"))
    if loss(model) is not None or not any(measured):
        return ""
    return "its loss is not a finite number: it has diverged, or its weights hold NaN"


def _least(model: ModelValues) -> str:
    blocks = sorted(fewest(model))
    if not blocks or model.blocks < 2:
        return ""
    many = len(blocks) > 1
    named = f"block{'s' if many else ''} {listed([str(block + 1) for block in blocks])}"
    option = f"prune --blocks {','.join(map(str, blocks))}"
    if some(model.values("ablation", "blocks", "nats")):
        alone = "are needed least, each left out by itself" if many else "is needed least"
        return f"{named} {alone} ({option})"
    return f"{named} change{'' if many else 's'} the stream least ({option})"


def _half(model: ModelValues) -> str:
    half = front_half(model)
    return "" if half is None else f"the first half of the blocks is worth {percent(half)} of what all are"


def _growth(model: ModelValues) -> str:
    times = growth(model)
    if times is None:
        return ""
    return f"what blocks leave {_grows(times)} from block 2 to the end"


def _grows(times: float) -> str:
    return f"grows {plain(times, 2)}-fold" if times >= 1 else f"shrinks to {plain(times, 2)} of its size"


def _massive(model: ModelValues) -> str:
    values = model.values("activations", "blocks", "massive_ratio")
    high = max(some(values), default=0.0)
    if high < 100:
        return ""
    return f"massive activations reach {significant(high, 2)} times the median, after block {values.index(high) + 1}"


def _settled(model: ModelValues) -> str:
    """The block from which on half of the tokens have their final first choice, where that is not the last one."""
    values = model.values("lens", "agreement")
    for block, value in enumerate(values):
        if value is not None and value >= 0.5 and all(v is None or v >= 0.5 for v in values[block:]):
            if block + 1 < len(values):
                return f"half of all guesses are already the final ones after block {block + 1} of {len(values)}"
            break
    return ""


def _share(model: ModelValues) -> str:
    shares, when = model.training_share, "over training"
    if not some(shares):
        shares, when = model.values("gradients", "blocks", "share"), "on this text"
    kept = some(shares)
    if len(kept) < 2 or len(kept) < len(shares):
        return ""
    return f"the first half of the blocks gets {percent(sum(kept[: len(kept) // 2]))} of the gradient {when}"


def summary(report: ProbeValues) -> list[str]:
    """What `leadline probe` prints: a line for each finding of each model."""
    lines = []
    for model in report.models:
        if model.failed:
            lines.append(f"{model.name}: failed: {model.error}")
            continue
        told = "" if loss(model) is None else f", loss {_loss(model)} nats a token"
        lines.append(f"{model.name}: {model.blocks} blocks{told}")
        lines += [f"  {sentence}" for sentence in sentences(model)]
    return lines


def _loss(model: ModelValues) -> str:
    value = loss(model)
    return DASH if value is None else fixed(value, 3)


def loss(model: ModelValues) -> float | None:
    """Of the whole model, in nats a token, from whichever part measured it on most tokens."""
    value = model.number("lens", "final", "loss")
    return model.number("ablation", "loss") if value is None else value


def _nats(value: float | None) -> str:
    return significant(value, 2)
