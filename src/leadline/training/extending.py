"""A run that has ended, made longer: `leadline train --out runs/x --extend 2M`.

With "wsd" the run resumes where its decay had not begun, so it is the run that would have been longer from the start.
With "cosine" a new warm-up and a new fall follow the old ones.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from leadline.errors import LeadlineError, UsageError
from leadline.files import sync_folder
from leadline.lock import LOCK_FILE
from leadline.training.checkpoint import FOLDER, checkpoints, drop_later, step_of
from leadline.training.config import RunConfig
from leadline.training.optimiser import decay_start
from leadline.training.records import SUMMARY
from leadline.training.resolve import Run


def extended(kept: RunConfig, out: Path, config: RunConfig | str, tokens: int) -> RunConfig:
    """The configuration of the run in `out`, `tokens` longer; that of the run itself where this was begun already.

    Args:
        kept: the configuration of the run as it is there.
        config: the run's own, or its design, with everything else as the run has it.
        tokens: rounded up to whole steps.

    Raises:
        UsageError: the run has not ended, or has no checkpoint to go on from.
    """
    batch = (kept.data.batch_size or 1) * (kept.model.context or 1)
    steps, more = (kept.data.tokens or 0) // batch, -(-tokens // batch)
    config = kept.replaced(design=config) if isinstance(config, str) else config
    config = config.replaced(tokens=kept.data.tokens, steps=None, extended=kept.schedule.extended)
    newest = max((step_of(path) for path in checkpoints(out)), default=0)
    if not (out / SUMMARY).is_file():
        if steps - max((0, *kept.schedule.extended)) == more and kept.schedule.extended:
            return config
        raise UsageError(
            f"--extend {tokens}: the run in {out} has not ended, its newest checkpoint is of step {newest:,} of "
            f"{steps:,}; resume it without --extend first"
        )
    config = config.replaced(tokens=(steps + more) * batch, extended=(*kept.schedule.extended, steps))
    resumed_from(out, config, steps)
    return config


def resumed_from(out: Path, config: RunConfig, steps: int) -> Path:
    """The checkpoint that an extended run goes on from, where the run before had `steps` steps.

    Raises:
        UsageError: there is none.
    """
    begin = decay_start(steps, config.schedule)
    last = steps if begin is None else begin
    found = [path for path in checkpoints(out) if step_of(path) <= last]
    if not found or (begin is None and step_of(found[-1]) != steps):
        what = f"step {steps:,}, its last" if begin is None else f"step {last:,} or before, where its decay begins"
        raise UsageError(
            f"--extend: {out} has no checkpoint of {what}; train another run with --tokens {config.data.tokens} instead"
        )
    return found[-1]


def set_aside(out: Path, run: Run) -> None:
    """Keeps what had ended as a run of its own in `ended-STEPS`; the checkpoint to resume from is the newest then.

    Stopped at any place and called again, it does the rest; what it copies is not lost in between.

    Raises:
        LeadlineError: it can't be written.
    """
    steps = run.config.schedule.extended[-1]
    chosen = resumed_from(out, run.config, steps)
    aside = out / f"ended-{steps}"
    partial = aside.with_name(f".{aside.name}.partial")
    try:
        if not aside.exists():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for path in out.iterdir():
                if path.is_file() and path.name != LOCK_FILE:
                    shutil.copy2(path, partial)
            ended = checkpoints(out)[-1]
            shutil.copytree(ended, partial / FOLDER / ended.name, copy_function=_link)
            os.replace(partial, aside)
            sync_folder(out)
        drop_later(out, chosen)
    except OSError as error:
        raise LeadlineError(f"can't set aside what had ended in {aside}: {error.strerror or error}") from error


def _link(source: str, target: str) -> None:
    """A checkpoint's files never change, so that a second name costs no space; where there are no links, a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def extension(run: Run) -> str | None:
    """What an extended run does, in words; None for another."""
    schedule = run.config.schedule
    if not schedule.extended:
        return None
    ended, begin = schedule.extended[-1], decay_start(run.steps, schedule)
    if begin is None:
        how = f"a new warm-up and cosine from step {ended:,}"
    else:
        before = decay_start(ended, schedule)
        how = f"from step {before:,} on as if it had been as long from the start; its decay begins after step {begin:,}"
    return f"extends a run of {ended:,} steps to {run.steps:,}, {how}; what had ended stays in ended-{ended}"
