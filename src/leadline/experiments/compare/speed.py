"""Speed of all designs of a comparison: steps of training, interleaved, after the runs, when nothing else is at work.

Runs of one design follow each other and share the machine, whose load drifts; so their own speeds can't be compared.
Here every design makes a step in every round, and a ratio is formed within a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from leadline.errors import LeadlineError
from leadline.files import check_sum, write_json_with_sum
from leadline.progress import note
from leadline.reading import read_json
from leadline.statistics import LEVEL, Median, median_of

if TYPE_CHECKING:
    import torch

    from leadline.training import RunConfig
    from leadline.training.resolve import Run

SPEED_ROUNDS = 6
"""The fewest that give the median an interval of 95 %."""
SPEED_FILE = "speed.json"
MOST_TOKENS = 2048
"""Of a measured step: longer ones are cut to whole sequences of about as many, so that rounds stay short."""
MOST_PARAMETERS = 200_000_000
"""Of all designs together, which are in memory at once; larger ones are not measured."""

Seconds = dict[str, list[float]]


def ratio_of(mine: Sequence[float], other: Sequence[float]) -> Median:
    """One design's time for a step over another's: the median over rounds with its interval.

    Raises:
        ValueError: they have not as many rounds, or none.
    """
    return median_of([a / max(b, 1e-12) for a, b in zip(mine, other, strict=True)])


def decides(ratio: Median) -> bool:
    """Whether the interval has 95 %, and excludes equal times."""
    return ratio.coverage >= LEVEL and (ratio.low > 1 or ratio.high < 1)


def measured_speeds(out: Path, configs: Mapping[str, RunConfig], rounds: int, threads: int) -> Seconds:
    """Seconds of a training step by design and round, kept in `speed.json`: what is there is not measured again.

    Args:
        configs: a run's configuration by design.
        threads: of the measurement, which has the machine to itself.

    Returns:
        Empty where no rounds are asked for, or the designs don't fit into memory together.
    """
    if rounds < 1 or len(configs) < 2:
        return {}
    asked = {"designs": list(configs), "rounds": rounds}
    kept = _kept(out / SPEED_FILE, asked)
    if kept is not None:
        return kept
    note(f"speed: {rounds} rounds of a step of each design")
    seconds = _measure(configs, rounds, threads)
    write_json_with_sum(out / SPEED_FILE, {**asked, "seconds": seconds})
    return seconds


class SpeedFile(TypedDict):
    """The content of `speed.json`."""

    designs: list[str]
    rounds: int
    seconds: Seconds


def _kept(path: Path, asked: Mapping[str, Any]) -> Seconds | None:
    """The measurement that is there, if it is whole and of the same designs and rounds; it costs little to repeat."""
    try:
        content = read_json(path, SpeedFile)
        check_sum(path)
    except (LeadlineError, OSError):
        return None
    seconds = content["seconds"]
    kept = {"designs": content["designs"], "rounds": content["rounds"]}
    same = kept == asked and set(seconds) in ({*asked["designs"]}, set())
    return seconds if same and all(len(of) == asked["rounds"] and min(of) > 0 for of in seconds.values()) else None


def _measure(configs: Mapping[str, RunConfig], rounds: int, threads: int) -> Seconds:
    import torch

    from leadline.designs import count_parameters
    from leadline.ops import use_backend
    from leadline.pruning.speed import interleaved, synchronise, torch_threads
    from leadline.training.resolve import decide, usable_device

    runs = []
    for config in configs.values():
        size = max(1, min(config.data.batch_size or 1, MOST_TOKENS // (config.model.context or 1)))
        runs.append(decide(config.replaced(batch_size=size, grad_accumulation=1)))
    if sum(count_parameters(run.model).total for run in runs) > MOST_PARAMETERS:
        return {}
    first = runs[0].config.runtime
    device = usable_device(first.device)
    warm = 1 if first.backend in ("auto", "reference", "lean") else 2  # one more, in which bodies are compiled
    with torch_threads(threads), use_backend(first.backend):
        try:
            steps = [_step(run, device) for run in runs]
            found = interleaved(steps, rounds, warm, lambda: synchronise(device))
        except torch.OutOfMemoryError:
            return {}
    return dict(zip(configs, found, strict=True))


def _step(run: Run, device: torch.device) -> Callable[[], object]:
    """A step of a new model: forward, backward and the optimiser, on one batch."""
    from leadline.data import Loader
    from leadline.models import Decoder
    from leadline.training.optimiser import make_optimiser
    from leadline.training.step import Passes

    model = Decoder(run.model, seed=run.config.seed).to(device)
    passes = Passes(model, run, device)
    optimiser = make_optimiser(model, run.config, run.learning_rate)
    batch = Loader(run.data.train, run.batch_size, run.context, run.config.seed).next()

    def step() -> None:
        passes.gradients(batch, 1, recorded=False)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step
