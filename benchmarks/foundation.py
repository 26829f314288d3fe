"""What the foundation costs: training against a bare loop, the depth record, tokenising, memory, start-up.

    python benchmarks/foundation.py [--rounds 5] [--large-mb 2048] [--json FILE]

Everything that is compared runs interleaved, in this one run. Prints medians, their spread, and the target of each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bare import BareDecoder

from leadline.cli.main import VERBS
from leadline.data import Loader, resolve
from leadline.designs import PRESETS
from leadline.training import RunConfig, train

STEPS = 24
WARM = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large-mb", type=int, default=2048, help="size of the large file for the memory check")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        rows = [
            *training(work, options.rounds),
            *tokenising(work, options.rounds),
            *memory(work, options.large_mb),
            *start_up(options.rounds),
        ]
    width = max(len(row["what"]) for row in rows)
    for row in rows:
        met = "met" if row["met"] else "MISSED"
        spread = f"({row['low']:.3f} to {row['high']:.3f})"
        print(f"{row['what']:<{width}}  {row['value']:>9.3f}  {spread}  {row['target']}: {met}")
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2) + "\n")
    return 0


def row(what: str, values: list[float], target: str, met: Callable[[float], bool]) -> dict[str, Any]:
    """One result: the median, and the range over the rounds."""
    middle = statistics.median(values)
    return {
        "what": what,
        "value": middle,
        "low": min(values),
        "high": max(values),
        "target": target,
        "met": met(middle),
    }


def training(work: Path, rounds: int) -> list[dict[str, Any]]:
    """PreNorm against the bare loop, and with a depth record in every step against none."""
    ratios, costs = [], []
    for number in range(rounds):
        bare = bare_loop()
        plain = leadline_run(work / f"plain{number}", record_every=0)
        recorded = leadline_run(work / f"recorded{number}", record_every=1)
        ratios.append(bare / plain)
        costs.append(100 * (recorded - plain) / plain / RunConfig.of("prenorm").logging.record_every)
    return [
        row("PreNorm, tokens/s over those of a bare loop", ratios, "at least 0.97", lambda value: value >= 0.97),
        row("depth record at its default interval, % of time", costs, "at most 2", lambda value: value <= 2),
    ]


def leadline_run(out: Path, *, record_every: int) -> float:
    """Seconds a step, everything between two steps included; the median."""
    ends: list[float] = []
    preset = PRESETS["tiny"]
    config = RunConfig.of(
        design="prenorm",
        data="sotu",
        tokens=STEPS * preset.batch_tokens,
        record_every=record_every,
        evaluate_every=10 * STEPS,
        evaluate_tokens=preset.context,
    )
    train(config, out, on_step=lambda told: ends.append(time.perf_counter()))
    return median_step(ends)


def bare_loop() -> float:
    """The same model, data, optimiser and clipping without Leadline's loop, model and records; seconds a step."""
    preset = PRESETS["tiny"]
    torch.manual_seed(0)
    data = resolve("sotu")
    model = BareDecoder(data.vocab_size, preset.dim, preset.blocks, preset.heads, preset.hidden)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    loader = Loader(data.train, preset.batch_size, preset.context, 0)
    ends = []
    for _ in range(STEPS):
        tokens, targets = loader.next()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        loss.item()
        ends.append(time.perf_counter())
    return median_step(ends)


def median_step(ends: list[float]) -> float:
    """The median time between two steps, after a warm-up."""
    return statistics.median(after - before for before, after in zip(ends[WARM:], ends[WARM + 1 :], strict=False))


def make_text(path: Path, megabytes: int) -> None:
    """A file of so many MB: real sentences of the speeches, over and over, in documents of about 50 kB."""
    from leadline.data import load_sotu

    text = (
        "\n".join(speech.text for speech in load_sotu())[: 1 << 20].encode()[: 1 << 20].decode(errors="ignore").encode()
    )
    with open(path, "wb") as file:
        written = 0
        while written < megabytes << 20:
            file.write(text)
            written += len(text)


def tokenising(work: Path, rounds: int) -> list[dict[str, Any]]:
    """`data prepare` with bytes against copying the file: a copy that stays in memory, and one that is on the disk.

    `prepare` puts its shards on the disk before it says that it is done, so the second is the like-for-like one.
    """
    source = work / "text.txt"
    make_text(source, 200)
    plain, synced = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        shutil.copyfile(source, work / "copy.txt")
        in_memory = time.perf_counter() - begin
        with open(work / "copy.txt", "rb") as file:
            os.fsync(file.fileno())
        on_disk = time.perf_counter() - begin
        begin = time.perf_counter()
        prepare(source, work / "prepared")
        seconds = time.perf_counter() - begin
        plain.append(in_memory / seconds)
        synced.append(on_disk / seconds)
        shutil.rmtree(work / "prepared")
    target = "at least 0.33"
    return [
        row("byte tokenising, speed over that of a copy", plain, target, lambda value: value >= 0.33),
        row("byte tokenising, speed over that of a synced copy", synced, target, lambda value: value >= 0.33),
    ]


def prepare(source: Path, out: Path) -> None:
    """`leadline data prepare`, in this process."""
    from leadline.data import prepare as prepare_files

    prepare_files([str(source)], out)


def memory(work: Path, large_mb: int) -> list[dict[str, Any]]:
    """The peak memory of `data prepare` on a small and on a large file, each in a process of its own."""
    peaks = []
    for megabytes in (100, large_mb):
        source = work / f"{megabytes}.txt"
        make_text(source, megabytes)
        peaks.append(peak_of("data", "prepare", str(source), "--out", str(work / f"prepared{megabytes}")))
        source.unlink()
        shutil.rmtree(work / f"prepared{megabytes}")
    what = f"peak memory of data prepare, {large_mb} MB over 100 MB of text"
    return [row(what, [peaks[1] / peaks[0]], "at most 1.1", lambda value: value <= 1.1)]


def peak_of(*arguments: str) -> float:
    """The peak memory in MB of a command, in a process that has run no other."""
    script = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    command = [sys.executable, "-c", script, sys.executable, "-m", "leadline.cli.main", *arguments]
    kilobytes = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return kilobytes / 1024


def start_up(rounds: int) -> list[dict[str, Any]]:
    """Seconds until help is printed, for every verb."""
    rows = []
    for arguments in ([], *[[verb] for verb in VERBS]):
        seconds = []
        for _ in range(rounds):
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "leadline.cli.main", *arguments, "--help"], check=True, capture_output=True
            )
            seconds.append(time.perf_counter() - begin)
        name = " ".join(["leadline", *arguments, "--help"])
        rows.append(row(f"{name}, seconds", seconds, "under 0.7", lambda value: value < 0.7))
    return rows


if __name__ == "__main__":
    sys.exit(main())
