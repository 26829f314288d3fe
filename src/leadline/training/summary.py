"""What a finished run says of itself: `summary.json`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from leadline.errors import LeadlineError
from leadline.files import check_sum
from leadline.reading import read_json

SUMMARY = "summary.json"
ADVICE = "remove it to finish the run again"
NEVER_BELOW_0 = (
    "loss",
    "bits_per_byte",
    "train_loss",
    "steps",
    "tokens",
    "tokens_per_second",
    "peak_memory_bytes",
    "parameters",
    "flops_per_token",
    "depth_flops_per_token",
    "seconds",
    "learning_rate",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What a finished run says of itself; `summary.json`.

    Attributes:
        loss: held-out, nats a token.
        bits_per_byte: held-out.
        tokens_per_second: of training alone, without evaluations and checkpoints.
        peak_memory_bytes: of the GPU, or of the process on a CPU.
        flops_per_token: of training, the operators along depth included; of the whole model, whatever steps dropped.
        depth_flops_per_token: of these alone.
        seconds: of training alone.
        notes: what else should be known, such as what the FLOPs don't count.
    """

    loss: float
    bits_per_byte: float
    train_loss: float
    steps: int
    tokens: int
    tokens_per_second: float
    peak_memory_bytes: int
    parameters: int
    flops_per_token: int
    depth_flops_per_token: int
    seconds: float
    learning_rate: float
    notes: tuple[str, ...]


def read_summary(path: Path) -> Summary:
    """The summary in a file; what another kind of run says beside it is passed over.

    Raises:
        FileNotFoundError: there is none.
        LeadlineError: it is damaged.
    """
    summary = read_json(path, Summary, more=True, advice=ADVICE)
    below = [f"{name} is {value}" for name in NEVER_BELOW_0 if (value := getattr(summary, name)) < 0]
    if below:
        raise LeadlineError(f"{path} is damaged: {', '.join(below)}; {ADVICE}")
    check_sum(path)
    return summary
