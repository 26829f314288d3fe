"""What each design costs in training, as a multiple of PreNorm's time.

    python benchmarks/connections.py [DESIGN ...] [--dim 72] [--rounds 9] [--json FILE]

One step of every design in turn, round after round: forward, backward and optimiser, on one thread. Processor time, so
that other work on the machine matters less. Prints the median of each design's ratio to PreNorm in the same round,
and the range.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from leadline.designs import PRESETS, resolve
from leadline.models import Decoder

DESIGNS = ("attnres", "attnres-block", "mgr-competitive", "mgr-independent", "hc", "mhc-lite", "mhc", "bhyt", "peri-ln")
VOCABULARY = 256
WARM = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("designs", nargs="*", default=DESIGNS)
    parser.add_argument("--dim", type=int, default=72, help="a multiple of 24")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds = measure(["prenorm", *options.designs], options.dim, options.rounds)
    rows = {}
    for name, values in seconds.items():
        ratios = [value / base for value, base in zip(values, seconds["prenorm"], strict=True)]
        rows[name] = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
        print(f"{name:<18} {rows[name]['median']:.2f}  ({rows[name]['low']:.2f} to {rows[name]['high']:.2f})")
    if options.json:
        options.json.write_text(
            json.dumps({"dim": options.dim, "torch": torch.__version__, "rows": rows}, indent=2) + "\n"
        )


def measure(names: list[str], dim: int, rounds: int) -> dict[str, list[float]]:
    """Processor seconds of every design's step, by round."""
    preset = PRESETS["tiny"]
    heads = dim // preset.head_dim
    shape = dataclasses.replace(preset.shape, dim=dim, heads=heads, kv_heads=heads, hidden=round(dim * 8 / 3 / 8) * 8)
    models = {name: Decoder(resolve(name).decoder(shape, VOCABULARY)) for name in names}
    optimisers = {name: torch.optim.AdamW(model.parameters(), fused=True) for name, model in models.items()}
    tokens = torch.randint(
        VOCABULARY, (preset.batch_size, preset.context + 1), generator=torch.Generator().manual_seed(0)
    )
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(WARM + rounds):
        for name, model in models.items():
            begin = time.process_time()
            F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimisers[name].step()
            optimisers[name].zero_grad()
            if number >= WARM:
                seconds[name].append(time.process_time() - begin)
    return seconds


if __name__ == "__main__":
    main()
