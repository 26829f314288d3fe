"""`leadline prune`: cut blocks out of a model, or see what each criterion would cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from leadline.errors import UsageError
from leadline.experiments.pruning.options import PruneOptions, numbers
from leadline.files import write_json
from leadline.progress import StatusLine
from leadline.repeating import repeating
from leadline.report.words import percent

if TYPE_CHECKING:
    from leadline.data import DataSet
    from leadline.hub import OpenedModel
    from leadline.pruning.sweep import SweepConfig

SECONDS = 2.0
"""Between two lines of progress."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(PruneOptions):
    """Remove the blocks of lowest importance from a model, save what is left, and check it against the original.

    Example: leadline prune runs/prenorm --criterion cfp --ratio 0.25 --data sotu --out smaller

    Example: leadline prune runs/seed0 runs/seed1 runs/seed2 --sweep 0.1,0.2,0.3,0.5 --data sotu --out sweep
    """

    model: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="MODEL [MODEL ...]", help_behavior_hint="(required)"),
    ]
    """A run's folder, a model's, or a Hugging Face one; for --sweep several that differ by seed."""

    dry_run: bool = False
    """Score, choose and evaluate with the chosen blocks skipped; write nothing."""

    sweep: str | None = None
    """Ratios at which to compare all criteria, instead of pruning: 0.1,0.2,0.3,0.5 (docs/pruning.md)."""

    criteria: str | None = None
    """With --sweep: which criteria; all that fit unless given."""

    seeds: str | None = None
    """With --sweep and one model: how many calibration texts (3 means 0, 1, 2), or which; 3 unless given."""

    task: Path | None = None
    """With --sweep: questions to answer, JSON lines with question, choices and answer (from 0)."""

    out: Path | None = None
    """Where the result goes: a new or empty folder."""

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the result to this file."""


def run(arguments: Arguments) -> int:
    """Prunes, or sweeps; returns 0."""
    from leadline.training.resolve import usable_device

    out, dry = arguments.out is not None, arguments.dry_run
    _refuse(
        (not arguments.model, "MODEL is missing; it is a run's folder, a model's, or a Hugging Face one"),
        (not out and not dry, "--out is missing: it names a new folder for the result; --dry-run writes nothing"),
        (out and dry, "--dry-run writes nothing, so --out has no place beside it; give one of them"),
    )
    usable_device(arguments.device)
    results, lines = _prune(arguments) if arguments.sweep is None else _sweep(arguments)
    if arguments.json is not None:
        write_json(arguments.json, results)
    print("\n".join(lines))
    return 0


def _prune(given: Arguments) -> tuple[dict[str, Any], list[str]]:
    """The record of a pruning, and what is printed of it."""
    from leadline.experiments.calls import prune

    no_model = "needs a pruned model, and --dry-run makes none; --out in its place works"
    _refuse(
        *((getattr(given, name) is not None, f"--{name} goes with --sweep") for name in ("criteria", "seeds", "task")),
        (given.dry_run and given.heal_tokens is not None, f"--heal-tokens {no_model}"),
        (given.dry_run and given.speed, f"--speed {no_model}"),
        (len(given.model) != 1, f"{len(given.model)} models are given; pruning takes one, and --sweep several"),
    )
    asked = PruneOptions(**{field.name: getattr(given, field.name) for field in dataclasses.fields(PruneOptions)})
    record = prune(given.model[0], given.out, config=asked, progress=StatusLine(SECONDS)).content
    return record, summary(record, given.out)


def _sweep(given: Arguments) -> tuple[dict[str, Any], list[str]]:
    """The results of a sweep, and what is printed of them."""
    from leadline.experiments.options import parse_seeds
    from leadline.experiments.statistics import SMALLEST_EFFECT
    from leadline.lock import LOCK_FILE
    from leadline.pruning import dataset_for, open_model
    from leadline.pruning.report import headline
    from leadline.pruning.sweep import SweepConfig
    from leadline.pruning.sweep_memory import check_sweep_folder
    from leadline.pruning.tasks import read_task

    single = ("criterion", "ratio", "count", "blocks", "heal_tokens", "heal_lr")
    options = [name.replace("_", "-") for name in single if getattr(given, name) is not None] + ["speed"] * given.speed
    several = f"--seeds {given.seeds} goes with one model; several models are the seeds"
    no_seed = f"--seed {given.seed} does nothing in a sweep of one model, whose seeds are calibration texts"
    _refuse(
        *((True, f"--{option} is for a single pruning and does not go with --sweep") for option in options),
        (len(given.model) > 1 and given.seeds is not None, f"{several}, and --seed chooses the text that they share"),
        (len(given.model) == 1 and given.seed is not None, f"{no_seed}; --seeds says how many (3), or which (0,1,5)"),
        (len(set(given.model)) < len(given.model), "a model is named twice; the models of a sweep differ by seed"),
    )
    if given.out is not None:
        check_sweep_folder(given.out, (LOCK_FILE,))
    task = None if given.task is None else read_task(given.task)
    ratios, seeds = numbers(given.sweep or "", "sweep", float), parse_seeds(given.seeds or "3")
    criteria = None if given.criteria is None else tuple(given.criteria.replace(" ", "").split(","))
    models = [open_model(path, given.device, layers=given.layers) for path in given.model]
    for opened in models:  # each of them has to be of that text's tokens
        data = dataset_for(opened, given.data, StatusLine(SECONDS))
    without = given.gradient_definition is not None and "cfp" not in (criteria or ("cfp",))
    _refuse((without, f"--gradient-definition is of cfp, and --criteria {given.criteria} is without it"))
    config = SweepConfig(
        ratios=ratios,
        base=dataclasses.replace(given, criterion="random", count=0).of(models[0]),
        criteria=criteria,
        seeds=seeds,
        task=task,
        smallest_effect=SMALLEST_EFFECT,
    )
    results = _swept(models, data, config, given)
    found = results["verdict"]
    lines = [headline(results), "", *sweep_table(results), "", f"{found['claim']}: {found['verdict']}"]
    lines += [f"  {found['evidence']}"]
    lines += [f"left out: {name}, because {reason}" for name, reason in results["left_out"].items()]
    return results, lines + ([f"\nreport: {given.out / 'report.html'}"] if given.out is not None else [])


def _swept(models: Sequence[OpenedModel], data: DataSet, config: SweepConfig, arguments: Arguments) -> dict[str, Any]:
    """Sweeps; into a folder where one is named, resuming what is in it."""
    from leadline.lock import claimed
    from leadline.pruning.report import write_sweep
    from leadline.pruning.sweep import asked_of, sweep
    from leadline.pruning.sweep_memory import MEMORY_FILE, SweepMemory, check_same_sweep

    out = arguments.out
    if out is None:
        return sweep(models, data, config, StatusLine(SECONDS))
    asked = asked_of(models, data, config)
    with claimed(out, "prune", lambda: check_same_sweep(out, asked)):
        results = sweep(models, data, config, StatusLine(SECONDS), SweepMemory(asked, out / MEMORY_FILE))
        write_sweep(results, out, command_line(arguments))
    return results


def _refuse(*cases: tuple[bool, str]) -> None:
    """Raises UsageError with the first message whose case is true."""
    for wrong, message in cases:
        if wrong:
            raise UsageError(message)


def summary(record: dict[str, Any], out: Path | None) -> list[str]:
    """What was cut and what it did, in lines."""
    kind, cut, kept = record["unit"], record["cut"], record["kept"]
    lines = []
    if record["scores"] is not None:
        scores = "  ".join(f"{unit}:{score:.4g}" for unit, score in record["scores"].items())
        share = record["gradient_definition"]
        by = f"{record['criterion']}{f', gradient share by the definition {share}' if share else ''}"
        lines += [f"scores by {by}; low is cut first", f"  {scores}"]
    lines.append(f"cut {len(cut)} of {len(cut) + len(kept)} {kind}s: {' '.join(cut) or 'nothing'}")
    lines.append(f"kept {kind}s (numbers of the whole model, from 0): {' '.join(kept)}")
    lines += ["", f"{'':16}perplexity  bits/byte  top-1"]
    for name, q in (("whole", record["before"]), ("cut", record["after"]), ("cut and healed", record["healed"])):
        if q:
            top = percent(q["accuracy"], 1)
            lines.append(f"{name:16}{q['perplexity']:10.4f}  {q['bits_per_byte']:9.4f}  {top:>7}")
    before = record["before"]
    lines.append(
        f"on {before['tokens']:,} held-out tokens of {record['data']['name']}, context {before['context']}, "
        f"stride {before['stride']}"
    )
    if record["calibration"] is not None:
        lines.append(f"scores from {record['calibration']['tokens']:,} tokens of the training split")
    total, after = record["parameters"]["before"], record["parameters"]["after"]
    if after is not None:
        lines.append(f"parameters {total:,} to {after:,}, {percent((after - total) / max(total, 1), 1, sign=True)}")
    lines += [
        f"{one['work']:10} batch {one['batch_size']:<3} {one['before']:9,.0f} to {one['after']:9,.0f} tokens/s, "
        f"{one['ratio']:.2f}× ({one['ratio_low']:.2f} to {one['ratio_high']:.2f})"
        for one in record["speed"] or ()
    ]
    if out is None:
        return [*lines, "", f"nothing was written (--dry-run): these {kind}s were skipped"]
    checked = record["checked"]
    matches = f"the reloaded model matches the original with those {kind}s skipped"
    if record["healed"] is not None:
        matches = (
            f"the reloaded model matches the healed model, and before healing the original with those {kind}s skipped"
        )
    difference = max(checked["surgery"], checked["reload"])
    return [*lines, "", f"saved in {out}; {matches} (largest difference of logits {difference:.2g})"]


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
