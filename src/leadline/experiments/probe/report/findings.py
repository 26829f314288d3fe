"""What the measurements say in words: the headline, a sentence or two for each model, and the lines of the terminal.

A sentence stands only where the text that was measured on bears it. Blocks are called the ones needed least where no
other block is told to be needed less (`leadline.probes.paired`), so blocks that can't be told apart are named together.
A share or a growth is said within its 95 % interval, a share of the first half only where the interval leaves out an
even share, and of two models only where their intervals don't overlap. Where the loss is that of guessing, importance
is not spoken of. Blocks are counted from 0, as `leadline prune --blocks` counts them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from leadline.experiments.probe.results import Bounds, ModelValues, ProbeValues
from leadline.report.pictures import some
from leadline.report.words import DASH, fixed, listed, percent, plain, significant

GUESSING = 0.95
"""A loss of at least this part of ln V, of guessing evenly among V tokens, is that of an untrained model [ours]."""
HALF = "the first half of the blocks accounts for"
MOST_NAMED = 6
"""A headline names at most so many blocks; of more it says how many."""


def headline(report: ProbeValues) -> str:
    """The finding in a sentence."""
    models = report.measured
    if not models:
        return "No model could be probed"
    if len(models) == 1:
        return _alone(models[0])
    low, high = _furthest([(_told_half(m), m) for m in models])
    if low is not None and high is not None:
        return (
            f"{HALF.capitalize()} {percent(high[0].value)} of the total ablation loss in "
            f"{high[1].name}, for {percent(low[0].value)} in {low[1].name}"
        )
    low, high = _furthest([(m.growth, m) for m in models])
    if low is not None and high is not None:
        return (
            f"From block 1 to the end block-output RMS {_grows(high[0])} in {high[1].name} and {_grows(low[0])} in "
            f"{low[1].name}"
        )
    return f"Depth of {listed([m.name for m in models])}, side by side"


def _furthest(
    found: Sequence[tuple[Bounds | None, ModelValues]],
) -> tuple[tuple[Bounds, ModelValues], tuple[Bounds, ModelValues]] | tuple[None, None]:
    """The models with the lowest and the highest value, where their intervals don't overlap."""
    kept = [(bounds, m) for bounds, m in found if bounds is not None and bounds.value is not None]
    if len(kept) < 2:
        return None, None
    low, high = (pick(kept, key=lambda one: one[0].value or 0.0) for pick in (min, max))
    if low[0].high is None or high[0].low is None or low[0].high >= high[0].low:
        return None, None
    return low, high


def _alone(model: ModelValues) -> str:
    name = model.name
    if _diverged(model):
        return f"The loss of {name} is not a finite number"
    if guesses(model):
        return f"{name} only guesses: its loss is that of an untrained model"
    fewest, needed = model.least("ablation"), model.most("ablation")
    if fewest and len(fewest) < model.blocks:
        if set(fewest) & set(needed):
            return f"Most blocks of {name} can't be told apart by what leaving one out costs"
        rises = model.values("ablation", "blocks", "nats")
        return (
            f"{name} needs {_few(needed)} of {model.blocks} most and {_few(fewest)} least: left out alone they cost "
            f"{_range(rises, needed)} and {_range(rises, fewest)} nats a token"
        )
    if fewest:
        return f"No block of {name} can be told from the others by what leaving it out costs"
    if (said := _growth(model)) and model.growth.low is not None:
        return f"{name}: {said}"
    fewest, needed = model.least("similarity"), model.most("similarity")
    if fewest and not set(fewest) & set(needed):
        return f"{_few(fewest).capitalize()} of {name} change{_s(fewest)} the stream least, {_few(needed)} most"
    return f"{name} along depth"


def compared(report: ProbeValues) -> list[str]:
    """How several models differ, in a sentence for each thing that all of them show."""
    models = report.measured
    if len(models) < 2:
        return []
    found = []
    halves = [_told_half(m) for m in models]
    if all(half is not None for half in halves):
        said = [f"{_share_within(half)} in {m.name}" for half, m in zip(halves, models, strict=True) if half]
        found.append(f"{HALF.capitalize()} {listed(said)} of the total ablation loss.")
    grown = [m.growth for m in models]
    if all(times.low is not None for times in grown):
        said = [f"{_grows(times)} in {m.name}" for times, m in zip(grown, models, strict=True)]
        found.append(f"From block 1 to the end, block-output RMS {listed(said)}.")
    return found


def sentences(model: ModelValues, *, alone: bool = True) -> list[str]:
    """What stands out in one model, most telling first; without what `compared` says where it isn't `alone`."""
    trained, half = not guesses(model), _told_half(model)
    found = [
        _diverged(model),
        guessing(model),
        _least(model) if trained else "",
        _criteria(model) if trained else "",
        f"{HALF} {_share_within(half)} of the total ablation loss" if alone and half else "",
        _growth(model) if alone else "",
        _massive(model),
        _settled(model) if trained else "",
        _gradient(model),
    ]
    return [sentence for sentence in found if sentence]


def _diverged(model: ModelValues) -> str:
    measured = (model.at("lens", "tokens"), model.at("ablation", "tokens"))
    if loss(model) is not None or not any(measured):
        return ""
    return "its loss is not a finite number: it has diverged, or its weights hold NaN"


def guesses(model: ModelValues) -> bool:
    """Whether the loss is that of guessing among the vocabulary."""
    value = loss(model)
    return value is not None and (model.vocab_size or 0) > 1 and value >= GUESSING * math.log(model.vocab_size or 1)


def guessing(model: ModelValues) -> str:
    """That the loss is that of guessing, where it is."""
    if not guesses(model):
        return ""
    size, even = f"{model.vocab_size:,.0f}", fixed(math.log(model.vocab_size or 1), 3)
    return (
        f"the loss is that of guessing among {size} tokens (ln {size} = {even}): the model is untrained, or was "
        "trained on other text; importance means nothing yet"
    )


def _least(model: ModelValues) -> str:
    by_loss = bool(some(model.values("ablation", "blocks", "nats")))
    blocks = model.least("ablation" if by_loss else "similarity")
    if not blocks or model.blocks < 2:
        return ""
    if len(blocks) == model.blocks:
        what = "what leaving it out costs" if by_loss else "how much it changes the stream"
        return f"no block can be told from the others by {what}"
    many = len(blocks) > 1
    verb = ("are needed" if many else "is needed") if by_loss else f"change{_s(blocks)} the stream"
    apart = " and can't be told apart" + (", each left out by itself" if by_loss else "") if many else ""
    option = f" (prune --blocks {','.join(map(str, blocks))})" if len(blocks) <= max(1, model.blocks // 4) else ""
    return f"{named(blocks)} {verb} least{apart}{option}"


def _criteria(model: ModelValues) -> str:
    """Which criteria find other blocks least important than the first one that tells blocks apart."""
    found = {"leaving it out": model.least("ablation"), "Block Influence": model.least("similarity")}
    found |= {"gradient share": model.least("gradient")}
    told = [(name, blocks) for name, blocks in found.items() if 0 < len(blocks) < model.blocks]
    others = [(name, blocks) for name, blocks in told[1:] if not set(blocks) & set(told[0][1])]
    if not others:
        return ""
    said = [f"{named(blocks)} by {name}" for name, blocks in (told[0], *others)]
    return f"criteria differ on what is needed least: {listed(said)}"


def _told_half(model: ModelValues) -> Bounds | None:
    """What the first half accounts for, where its interval leaves out an even share."""
    half = model.first_half
    return half if not guesses(model) and _uneven(half, model.blocks) else None


def _uneven(half: Bounds, blocks: int) -> bool:
    if blocks < 2 or half.low is None or half.high is None:
        return False
    return not half.low <= (blocks // 2) / blocks <= half.high


def half_within(model: ModelValues) -> tuple[str, str]:
    """The share of the first half and its interval, for a table; nothing where chance may have made it."""
    half = _told_half(model)
    return (DASH, "") if half is None else (percent(half.value), _within(half))


def _growth(model: ModelValues) -> str:
    times = model.growth
    return "" if times.value is None else f"block-output RMS {_grows(times)} from block 1 to the end"


def _grows(times: Bounds) -> str:
    value, low, high = times.value or 0.0, times.low, times.high
    said = f"{plain(value, 3 if 0.9 < value < 1.1 else 2)}×"
    if low is None or high is None:
        return f"is {said} as large (one sequence, so no interval)"
    if low > 1:
        return f"grows {said}"
    return f"shrinks to {said}" if high < 1 else f"stays level ({said}, {plain(low)} to {plain(high)})"


def _massive(model: ModelValues) -> str:
    values = model.values("activations", "blocks", "massive_ratio")
    high = max(some(values), default=0.0)
    if high < 100:
        return ""
    return f"massive activations reach {significant(high, 2)} times the median, after block {values.index(high)}"


def _settled(model: ModelValues) -> str:
    """The block from which on half of the tokens have their final first choice, by the lower ends of the intervals."""
    values = model.values("lens", "agreement_low")
    below = [block for block, value in enumerate(values) if value is not None and value < 0.5]
    after = range(below[-1] + 1 if below else 0, len(values) - 1)
    block = next((block for block in after if values[block] is not None), None)
    said = "at least half of all predictions are already the final ones after block"
    return "" if block is None else f"{said} {block} of 0 to {len(values) - 1}"


def _gradient(model: ModelValues) -> str:
    """Where the gradient went: a record of the whole run, or, within its interval over batches, of this text."""
    shares = some(model.training_share)
    if len(shares) > 1 and len(shares) == len(model.training_share):
        part = sum(shares[: len(shares) // 2])
        return f"the first half of the blocks got {percent(part)} of the gradient over training"
    half = model.at("gradients", "first_half") or Bounds()
    if not _uneven(half, model.blocks):
        return ""
    return f"the first half of the blocks gets {_share_within(half)} of the gradient on this text"


def summary(report: ProbeValues) -> list[str]:
    """What `leadline probe` prints: a line for each finding of each model."""
    lines = []
    for model in report.models:
        if model.failed:
            lines.append(f"{model.name}: failed: {model.error}")
            continue
        told = "" if loss(model) is None else f", loss {fixed(loss(model), 3)} nats a token"
        lines.append(f"{model.name}: {model.blocks} blocks{told}")
        lines += [f"  {sentence}" for sentence in sentences(model)]
    return lines


def loss(model: ModelValues) -> float | None:
    """Of the whole model, in nats a token, from whichever part measured it on most tokens."""
    value = model.at("lens", "final", "loss")
    return model.at("ablation", "loss") if value is None else value


def named(blocks: Sequence[int]) -> str:
    """`block 3`, or `blocks 1, 4 to 9 and 11`."""
    # Neighbours are as far from their places in order as each other.
    runs = itertools.groupby(enumerate(sorted(blocks)), lambda one: one[1] - one[0])
    parts = [[block for _, block in run] for _, run in runs]
    words = [w for p in parts for w in ([f"{p[0]} to {p[-1]}"] if len(p) > 2 else map(str, p))]
    return f"block{'' if len(blocks) == 1 else 's'} {listed(words)}"


def _few(blocks: Sequence[int]) -> str:
    return named(blocks) if len(blocks) <= MOST_NAMED else f"{len(blocks)} blocks"


def _s(blocks: Sequence[int]) -> str:
    return "s" if len(blocks) == 1 else ""


def _range(values: Sequence[float | None], blocks: Sequence[int]) -> str:
    kept = sorted(value for block in blocks if (value := values[block]) is not None)
    ends = list(dict.fromkeys(significant(value, 2) for value in (kept[0], kept[-1])))
    return " to ".join(ends)


def _within(half: Bounds) -> str:
    return f"{100 * (half.low or 0.0):.0f} to {100 * (half.high or 0.0):.0f}"


def _share_within(half: Bounds) -> str:
    return f"{percent(half.value)} ({_within(half)})"
