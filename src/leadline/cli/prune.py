"""`leadline prune`: cut blocks out of a model, or see what each criterion would cut."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from leadline.cli.repeating import repeating
from leadline.report.words import percent

if TYPE_CHECKING:
    from leadline.data import DataSet
    from leadline.pruning import Healing, Subject, Timing, Wish
    from leadline.pruning.sweep import SweepWish

SECONDS = 2.0
"""Between two lines of progress."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Cut the blocks out of a model that it needs least, save what is left, and make sure that it is what it should be.

    Example: leadline prune runs/prenorm --criterion cfp --ratio 0.25 --data sotu --out smaller
    Example: leadline prune runs/seed0 runs/seed1 runs/seed2 --sweep 0.1,0.2,0.3,0.5 --data sotu --out sweep
    """

    model: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="MODEL [MODEL ...]", help_behavior_hint="(required)"),
    ]
    """A run's folder, a model's, or a Hugging Face one; for --sweep several that differ by seed."""

    criterion: str | None = None
    """What chooses: cfp (the gradient shares of training), similarity, angular, taylor, magnitude, ablation, random."""

    ratio: float | None = None
    """The share of units to cut, rounded to the nearest number of them."""

    count: int | None = None
    """How many units to cut."""

    blocks: str | None = None
    """Which blocks to cut, from 0, without a criterion: 3,5,8..10. Ranges hold both ends: 8..10 is 8, 9 and 10."""

    unit: Literal["block", "sublayer"] = "block"
    """What is cut: whole blocks, or attention and MLP apart (--blocks 3.mlp,5)."""

    protect_first: int = 0
    """Blocks from the start that stay."""

    protect_last: int = 0
    """Blocks from the end that stay."""

    normalised: bool = False
    """With cfp: shares of norms divided by √(number of parameters), for models that taper."""

    gradient_definition: Literal["sum", "clipped", "mean-of-shares", "after-warmup"] | None = None
    """With cfp: which norms the share adds up: sum, all before clipping (unless given); clipped; mean-of-shares, every
    step alike; after-warmup. A sweep measures all, and this one stands among the criteria."""

    data: str = "sotu"
    """sotu, a folder that `leadline data prepare` made with the model's tokenizer, or text files."""

    calibration_tokens: str = "8k"
    """Tokens that criteria read, from the training part."""

    evaluate_tokens: str = "64k"
    """Held-out tokens that perplexity is measured on, at most."""

    context: int | None = None
    """Tokens in a window; the model's own unless given, 512 at most for a Hugging Face one."""

    stride: int | None = None
    """How many of a window's tokens count, the last ones; all of them unless given."""

    batch_size: int = 8
    """Windows in a pass."""

    heal_tokens: str | None = None
    """Train the cut model on so many tokens, such as 100k; reported apart."""

    heal_lr: float | None = None
    """The peak learning rate of healing; a tenth of the run's own, or 1e-4, unless given."""

    speed: bool = False
    """Also measure prefill and generation before and after."""

    speed_batches: str | None = None
    """Batch sizes for --speed; 1,4,16 unless given."""

    dry_run: bool = False
    """Score, choose and measure with the cut passed by; write nothing."""

    sweep: str | None = None
    """Ratios at which to compare all criteria, instead of a cut: 0.1,0.2,0.3,0.5. Writes results.json, report.html.
    Interrupted, the same command goes on."""

    criteria: str | None = None
    """With --sweep: which criteria; all that fit unless given."""

    seeds: str | None = None
    """With --sweep and one model: how many calibration texts (3 means 0, 1, 2), or which; 3 unless given. Several
    models are seeds themselves."""

    task: Path | None = None
    """With --sweep: questions to answer at every ratio, JSON lines with question, choices and answer (from 0)."""

    seed: int | None = None
    """Of the calibration text, of random, and of healing; 0 unless given. In a sweep of one model --seeds says it."""

    out: Path | None = None
    """Where the result goes: a new or empty folder."""

    layers: str | None = None
    """The name of a Hugging Face model's list of blocks, such as transformer.h, where it isn't found by itself."""

    device: str = "cpu"
    """Where to run: cpu, cuda."""

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the result to this file."""


def run(arguments: Arguments) -> int:
    """Prunes, or sweeps; returns 0."""
    from leadline.errors import UsageError
    from leadline.training.resolve import usable_device

    if not arguments.model:
        raise UsageError("MODEL is missing; it is a run's folder, a model's, or a Hugging Face one")
    if arguments.out is None and not arguments.dry_run:
        raise UsageError("--out is missing: it names a new folder for the result; --dry-run writes nothing")
    if arguments.out is not None and arguments.dry_run:
        raise UsageError("--dry-run writes nothing, so --out has no place beside it; give one of them")
    usable_device(arguments.device)
    return _sweep(arguments) if arguments.sweep is not None else _prune(arguments)


def _prune(arguments: Arguments) -> int:
    from leadline.errors import UsageError
    from leadline.files import write_json
    from leadline.pruning import CRITERIA, open_subject, prune
    from leadline.pruning.cutting import check_new

    for option in ("criteria", "seeds", "task"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option} goes with --sweep")
    if arguments.dry_run:
        for option, given in (("--heal-tokens", arguments.heal_tokens is not None), ("--speed", arguments.speed)):
            if given:
                raise UsageError(
                    f"{option} needs a model that is cut, and --dry-run cuts none; --out in its place works"
                )
    if arguments.normalised and arguments.criterion != "cfp":
        raise UsageError("--normalised divides the shares that --criterion cfp reads, and goes with it alone")
    if arguments.gradient_definition is not None and arguments.criterion != "cfp":
        raise UsageError("--gradient-definition names the shares that --criterion cfp reads, and goes with it alone")
    if len(arguments.model) != 1:
        raise UsageError(f"{len(arguments.model)} models are given; a cut takes one, and --sweep several")
    if amount_of(arguments).blocks is None and arguments.criterion is None:
        raise UsageError(f"--criterion is missing: it says what chooses the blocks; {', '.join(CRITERIA)} work")
    if arguments.out is not None:
        check_new(arguments.out)
    subject = open_subject(arguments.model[0], arguments.device, layers=arguments.layers)
    wish = wish_of(arguments, subject)
    progress = Progress()
    data = subject.data(arguments.data, progress)
    record = prune(subject, data, wish, arguments.out, progress)
    print("\n".join(summary(record, arguments.out)))
    if arguments.json is not None:
        write_json(arguments.json, record)
    return 0


def _sweep(arguments: Arguments) -> int:
    from leadline.errors import UsageError
    from leadline.experiments.options import parse_seeds
    from leadline.experiments.statistics import SMALLEST_EFFECT
    from leadline.files import write_json
    from leadline.lock import LOCK_FILE
    from leadline.pruning import open_subject
    from leadline.pruning.report import headline
    from leadline.pruning.sweep import SweepWish
    from leadline.pruning.sweep_memory import check_sweep_folder
    from leadline.pruning.tasks import read_task

    for option in ("criterion", "ratio", "count", "blocks", "heal_tokens", "heal_lr"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')} is for a single cut and does not go with --sweep")
    if arguments.speed:
        raise UsageError("--speed is for a single cut and does not go with --sweep")
    if len(arguments.model) > 1 and arguments.seeds is not None:
        raise UsageError(
            f"--seeds {arguments.seeds} goes with one model; several models are the seeds, and --seed chooses the "
            "calibration text that they share"
        )
    if len(arguments.model) == 1 and arguments.seed is not None:
        raise UsageError(
            f"--seed {arguments.seed} does nothing in a sweep of one model, whose seeds are calibration texts; "
            "--seeds says how many (3), or which (0,1,5)"
        )
    if len(set(arguments.model)) < len(arguments.model):
        raise UsageError("a model is named twice; the models of a sweep differ by seed")
    if arguments.out is not None:
        check_sweep_folder(arguments.out, (LOCK_FILE,))
    task = None if arguments.task is None else read_task(arguments.task)
    ratios = numbers(arguments.sweep or "", "--sweep", float)
    seeds = parse_seeds(arguments.seeds or "3")
    criteria = None if arguments.criteria is None else tuple(arguments.criteria.replace(" ", "").split(","))
    subjects = [open_subject(path, arguments.device, layers=arguments.layers) for path in arguments.model]
    for subject in subjects:  # each of them has to be of that text's tokens
        data = subject.data(arguments.data, Progress())
    asked = dataclasses.replace(arguments, criterion="random", count=0)
    if arguments.gradient_definition is not None and "cfp" not in (criteria or ("cfp",)):
        raise UsageError(f"--gradient-definition is of cfp, and --criteria {arguments.criteria} is without it")
    wish = SweepWish(
        ratios=ratios,
        base=wish_of(asked, subjects[0]),
        criteria=criteria,
        seeds=seeds,
        task=task,
        smallest_effect=SMALLEST_EFFECT,
    )
    results = _swept(subjects, data, wish, arguments)
    if arguments.json is not None:
        write_json(arguments.json, results)
    said = results["verdict"]
    print("\n".join([headline(results), "", *sweep_table(results), "", f"{said['claim']}: {said['verdict']}"]))
    print(f"  {said['evidence']}")
    for name, reason in results["left_out"].items():
        print(f"left out: {name}, because {reason}")
    if arguments.out is not None:
        print(f"\nreport: {arguments.out / 'report.html'}")
    return 0


def _swept(subjects: Sequence[Subject], data: DataSet, wish: SweepWish, arguments: Arguments) -> dict[str, Any]:
    """Sweeps; into a folder where one is named, going on with what is in it."""
    from leadline.lock import claimed
    from leadline.pruning.report import write_sweep
    from leadline.pruning.sweep import asked_of, sweep
    from leadline.pruning.sweep_memory import MEMORY_FILE, SweepMemory, check_same_sweep

    out = arguments.out
    if out is None:
        return sweep(subjects, data, wish, Progress())
    asked = asked_of(subjects, data, wish)
    with claimed(out, "prune", lambda: check_same_sweep(out, asked)):
        results = sweep(subjects, data, wish, Progress(), SweepMemory(asked, out / MEMORY_FILE))
        write_sweep(results, out, command_line(arguments))
    return results


def amount_of(arguments: Arguments) -> Any:
    """How much is cut. Raises UsageError where that isn't said, or is said twice."""
    from leadline.pruning import Amount

    names = ("ratio", "count", "blocks", "protect_first", "protect_last")
    return Amount(**{name: getattr(arguments, name) for name in names})


def wish_of(arguments: Arguments, subject: Subject) -> Wish:
    """The arguments with counts as numbers, and the model's own values where none are given.

    Raises:
        UsageError: a value that doesn't work, named with its option.
    """
    from leadline.cli.counts import parse_count
    from leadline.pruning import Reading, Wish

    context = subject.context if arguments.context is None else arguments.context
    reading = Reading(
        context=context,
        stride=context if arguments.stride is None else arguments.stride,
        tokens=parse_count(arguments.evaluate_tokens, "--evaluate-tokens"),
        batch_size=arguments.batch_size,
    )
    return Wish(
        amount=amount_of(arguments),
        reading=reading,
        criterion=arguments.criterion,
        unit=arguments.unit,
        normalised=arguments.normalised,
        definition=arguments.gradient_definition or "sum",
        calibration_tokens=parse_count(arguments.calibration_tokens, "--calibration-tokens"),
        seed=arguments.seed or 0,
        heal=_healing(arguments, subject, context),
        speed=_timing(arguments, context),
    )


def _healing(arguments: Arguments, subject: Subject, context: int) -> Healing | None:
    from leadline.cli.counts import parse_count
    from leadline.errors import UsageError
    from leadline.pruning import Healing

    if arguments.heal_tokens is None:
        if arguments.heal_lr is not None:
            raise UsageError("--heal-lr goes with --heal-tokens, which says how long to heal")
        return None
    return Healing(
        tokens=parse_count(arguments.heal_tokens, "--heal-tokens"),
        learning_rate=subject.healing_rate if arguments.heal_lr is None else arguments.heal_lr,
        batch_size=arguments.batch_size,
        context=context,
        seed=arguments.seed or 0,
    )


def _timing(arguments: Arguments, context: int) -> Timing | None:
    from leadline.errors import UsageError
    from leadline.pruning import Timing

    if not arguments.speed:
        if arguments.speed_batches is not None:
            raise UsageError(f"--speed-batches {arguments.speed_batches} goes with --speed")
        return None
    batches = numbers(arguments.speed_batches or "1,4,16", "--speed-batches", int)
    return Timing(batch_sizes=batches, prompt=max(1, min(128, context)), tokens=max(1, min(32, context - 1)))


def numbers(text: str, option: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """`0.1,0.2` as numbers. Raises UsageError, naming `option`."""
    from leadline.errors import UsageError

    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        example = "0.1,0.2,0.3,0.5" if kind is float else "1,4,16"
        raise UsageError(f"{option} {text!r} is no list of numbers such as {example}") from None


def summary(record: dict[str, Any], out: Path | None) -> list[str]:
    """What was cut and what it did, in lines."""
    kind, cut, kept = record["unit"], record["cut"], record["kept"]
    total = len(cut) + len(kept)
    lines = []
    if record["scores"] is not None:
        shown = "  ".join(f"{unit}:{score:.4g}" for unit, score in record["scores"].items())
        share = record["gradient_definition"]
        by = f"{record['criterion']}{f', gradient share by the definition {share}' if share else ''}"
        lines += [f"scores by {by}; low is cut first", f"  {shown}"]
    lines.append(f"cut {len(cut)} of {total} {kind}s: {' '.join(cut) or 'nothing'}")
    lines.append(f"kept {kind}s (numbers of the whole model, from 0): {' '.join(kept)}")
    rows = [("whole", record["before"]), ("cut", record["after"]), ("cut and healed", record["healed"])]
    lines += ["", f"{'':16}perplexity  bits/byte  top-1"]
    lines += [
        f"{name:16}{q['perplexity']:10.4f}  {q['bits_per_byte']:9.4f}  {percent(q['accuracy'], 1):>7}"
        for name, q in rows
        if q
    ]
    told = record["before"]
    lines.append(
        f"on {told['tokens']:,} held-out tokens of {record['data']['name']}, context {told['context']}, "
        f"stride {told['stride']}"
    )
    if record["calibration"] is not None:
        lines.append(f"scores from {record['calibration']['tokens']:,} tokens of the training part")
    before, after = record["parameters"]["before"], record["parameters"]["after"]
    if after is not None:
        lines.append(f"parameters {before:,} to {after:,}, {percent((after - before) / max(before, 1), 1, sign=True)}")
    for one in record["speed"] or ():
        lines.append(
            f"{one['work']:10} batch {one['batch_size']:<3} {one['before']:9,.0f} to {one['after']:9,.0f} tokens/s, "
            f"{one['ratio']:.2f}× ({one['ratio_low']:.2f} to {one['ratio_high']:.2f})"
        )
    lines.append("")
    if out is None:
        lines.append("nothing was written (--dry-run): the cut was passed by")
    else:
        found = record["checked"]
        lines.append(
            f"saved in {out}; loaded again, its logits are those of passing the cut by "
            f"(largest difference {max(found['surgery'], found['reload']):.2g})"
            if record["healed"] is None
            else f"saved in {out}; the cut gave the logits of passing it by, and what was loaded again those of the "
            f"healed model (largest difference {max(found['surgery'], found['reload']):.2g})"
        )
    return lines


def sweep_table(results: dict[str, Any]) -> list[str]:
    """Mean perplexity by criterion and ratio, and the stability."""
    from statistics import fmean

    head = "".join(f"{ratio:>10g}" for ratio in results["ratios"])
    lines = [f"{'perplexity':22}{head}   Kendall  Spearman"]
    rows = {name: one for name, one in results["criteria"].items() if name != "cfp"}
    for name, one in ({f"cfp, {d}": one for d, one in results["definitions"].items()} | rows).items():
        means = "".join(f"{fmean(q['perplexity'] for q in p['quality']):10.4g}" for p in one["points"])
        stable = one["stability"] or {"kendall": None, "spearman": None}
        shown = ["–" if v is None else f"{v:.2f}" for v in (stable["kendall"], stable["spearman"])]
        lines.append(f"{name:22}{means}   {shown[0]:>7}  {shown[1]:>8}")
    whole = fmean(q["perplexity"] for q in results["whole"])
    reading = results["reading"]
    lines.append(
        f"nothing cut: {whole:.4g}; {results['whole'][0]['tokens']:,} held-out tokens of {results['data']['name']}, "
        f"context {reading['context']}, stride {reading['stride']}"
    )
    return lines


def command_line(arguments: Arguments) -> str:
    """The command that repeats these arguments, quoted for a shell, without what is at its default."""
    return repeating(["prune", *map(str, arguments.model)], arguments, without=("model", "json"))


class Progress:
    """Says on standard error what is being done, at most every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.said = -SECONDS

    def __call__(self, text: str) -> None:
        if self.clock() - self.said >= SECONDS:
            self.said = self.clock()
            print(text, file=sys.stderr, flush=True)
