"""What a finished run says of itself: `summary.json`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from leadline.errors import LeadlineError


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
    """The summary in a file.

    Raises:
        LeadlineError: it is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Summary(**{**content, "notes": tuple(content["notes"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LeadlineError(f"{path} is damaged ({error}); remove it to finish the run again") from error
