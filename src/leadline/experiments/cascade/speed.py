"""How fast trained models generate, side by side: latency at batch 1, and tokens a second at a larger batch.

A turn generates some tokens after the same prompt, with a cache; the prompt is read before the clock starts. Rounds are
interleaved and ratios are formed within a round, see `leadline.bench.rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from leadline.bench.rounds import Candidate, run_rounds, timer_for, what_is_timed
from leadline.choices import Backend
from leadline.config import to_dict
from leadline.data import DataSet, evaluation_batches
from leadline.errors import LeadlineError
from leadline.experiments.machine import describe_machine
from leadline.files import check_sum, write_json_with_sum
from leadline.models import Decoder, stream_tokens
from leadline.ops import use_backend
from leadline.pruning.speed import torch_threads
from leadline.reading import read_json
from leadline.statistics import median_of, ratios
from leadline.training import load_model

Say = Callable[[str], None]
PARTS = ("latency", "throughput")


class SpeedFile(TypedDict):
    """What is read of the file that keeps measurements; see `measure_speed`."""

    method: str
    latency: dict[str, list[float]]
    throughput: dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """What to measure.

    Attributes:
        rounds: that are kept.
        warm: before them, not kept.
        group: tokens that a model generates in its turn.
        batch: sequences at once for the throughput.
        context: that the models were trained with; the prompt is half of it, and prompt and text fit into it.
        threads: of PyTorch; what it takes by itself unless given.
    """

    rounds: int = 51
    warm: int = 3
    group: int = 16
    batch: int = 16
    context: int = 128
    device: str = "cpu"
    backend: Backend = "auto"
    threads: int | None = None

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return max(1, self.context // 2)

    @property
    def tokens(self) -> int:
        """Tokens of a turn; one more is generated before the clock starts."""
        return max(1, min(self.group, self.context - self.prompt - 1))


def measure_speed(
    folders: Mapping[str, Path], data: DataSet, options: SpeedOptions, path: Path, *, say: Say = lambda text: None
) -> dict[str, Any]:
    """Seconds a token of every model in every round, at batch 1 and at `options.batch`.

    What was measured with the same options, on such a machine and with the same PyTorch, is kept in `path` and read
    from there.

    Args:
        folders: a trained run's folder by name.

    Returns:
        `options`, `method`, and `latency` and `throughput`: seconds of a turn's token by name and round.

    Raises:
        KeyboardInterrupt: interrupted; nothing is kept.
    """
    threads = options.threads or torch.get_num_threads()
    asked = {
        "options": to_dict(options),
        "models": {name: folder.name for name, folder in folders.items()},
        "threads": threads,
        "torch": torch.__version__,
        "cpu": describe_machine()["cpu"],
    }
    kept = _kept(path, asked)
    if kept is not None or not folders:
        return kept or {**asked, "method": "nothing was trained", "latency": {}, "throughput": {}}
    models = {name: load_model(folder)[0].to(options.device) for name, folder in folders.items()}
    with torch_threads(threads):
        found: dict[str, Any] = {
            **asked,
            "method": f"{what_is_timed(torch.device(options.device), 'wall')} of greedy generation with a cache, "
            f"{options.tokens} tokens a turn after a prompt of {options.prompt}, "
            f"{threads} thread{'s' if threads > 1 else ''}; interleaved rounds, {options.warm} of them to warm up",
            "latency": _rounds(models, data, options, 1, say, "latency"),
            "throughput": _rounds(models, data, options, options.batch, say, "throughput"),
        }
    write_json_with_sum(path, found)
    return found


def speed_of(speeds: Mapping[str, Any], name: str, baseline: str, control: str | None = None) -> dict[str, Any] | None:
    """A model's latency in ms a token and its tokens a second, with the ratios of both; None if unmeasured.

    Returns:
        The ratios to the baseline, and under `control` those to another model. A ratio of throughput is tokens a second
        over the other's: more is better.
    """
    latency, throughput = speeds["latency"].get(name), speeds["throughput"].get(name)
    if not latency or not throughput:
        return None
    batch = int(speeds["options"]["batch"])
    return {
        "milliseconds_per_token": asdict(median_of([1e3 * seconds for seconds in latency])),
        "tokens_per_second": asdict(median_of([batch / seconds for seconds in throughput])),
        **_ratios(speeds, name, baseline),
        "control": None if control is None else _ratios(speeds, name, control),
    }


def _ratios(speeds: Mapping[str, Any], name: str, other: str) -> dict[str, Any]:
    latency, throughput = ([speeds[what][name], speeds[what].get(other)] for what in PARTS)
    if not latency[1] or not throughput[1]:
        return {"latency_ratio": None, "throughput_ratio": None, "latency_rounds": []}
    rounds = ratios(*latency)
    return {
        "latency_ratio": asdict(median_of(rounds)),
        "throughput_ratio": asdict(median_of(ratios(throughput[1], throughput[0]))),
        "latency_rounds": rounds,
    }


def _rounds(
    models: Mapping[str, Decoder], data: DataSet, options: SpeedOptions, batch: int, say: Say, what: str
) -> dict[str, list[float]]:
    # Held-out text, (batch, length); the same passages again where there are too few.
    text = next(iter(evaluation_batches(data.heldout, batch, options.prompt, batch * options.prompt))).tokens
    prompt = text.repeat(-(-batch // text.shape[0]), 1)[:batch]
    streams = [(name, Stream(model, prompt, options)) for name, model in models.items()]
    timings = run_rounds(
        [Candidate(name=name, call=one.token, after=one.restart, calls=options.tokens) for name, one in streams],
        options.rounds,
        timer_for(torch.device(options.device), "wall"),
        warm=options.warm,
        say=lambda text: say(f"{what}: {text}"),
    )
    if timings.interrupted:
        raise KeyboardInterrupt
    return timings.seconds


class Stream:
    """A model that generates after a prompt, and starts again after each turn."""

    def __init__(self, model: Decoder, prompt: Tensor, options: SpeedOptions) -> None:
        self.model, self.prompt, self.options = model, prompt, options
        self.tokens: Iterator[Tensor] = iter(())
        self.restart()

    def restart(self) -> None:
        """Reads the prompt, which gives the first token."""
        self.tokens = stream_tokens(self.model, self.prompt, self.options.tokens + 1, temperature=0)
        self.token()

    def token(self) -> None:
        """The next token of every sequence."""
        with use_backend(self.options.backend):
            next(self.tokens)


def _kept(path: Path, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an earlier call wrote with the same options; None where it is to be measured."""
    try:
        content: dict[str, Any] = {**read_json(path, SpeedFile, advice="remove it to measure again")}
        check_sum(path)
    except FileNotFoundError:
        return None
    if any(each <= 0 for part in PARTS for turns in content[part].values() for each in turns):
        raise LeadlineError(f"{path} is damaged: a turn took no time; remove it to measure again")
    return content if all(content.get(key) == value for key, value in asked.items()) else None
