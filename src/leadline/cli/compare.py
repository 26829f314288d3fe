"""`leadline compare`: the main job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from leadline.experiments.compare.config import CompareConfig as Arguments
from leadline.report.words import fixed


def run(arguments: Arguments) -> int:
    """Runs the comparison and prints its verdict. Returns 0, or 1 where a run failed."""
    from leadline.experiments.calls import run_experiment

    found = run_experiment(arguments, print)
    print_verdict(found.content, arguments.out)
    return 1 if found.failed else 0


def print_verdict(results: dict[str, Any], out: Path) -> None:
    """The verdict and a short table, on standard output."""
    print()
    print(results["verdict"]["headline"])
    for sentence in results["verdict"]["sentences"]:
        print(f"  {sentence}")
    print()
    width = max(len(design["name"]) for design in results["arms"])
    print(f"{'design':{width}}  bits/byte  difference  beyond noise  tokens/s")
    for design in results["arms"]:
        print(f"{design['name']:{width}}  {_columns(design, results['baseline'])}")
    for design in results["arms"]:
        for folder in design["damaged"]:
            print(f"damaged: {folder}; the same command with --rerun trains it again")
    print()
    print(f"report: {out / 'report.html'}")
    sys.stdout.flush()


def _columns(design: dict[str, Any], baseline: str) -> str:
    if design["bits_per_byte"] is None:
        return "   failed"
    difference = design["difference"]
    said, beyond = "", ""
    if design["name"] == baseline:
        said = "baseline"
    elif difference is not None:
        said = fixed(difference["mean"], sign=True)
        beyond = {True: "yes", False: "no", None: "one seed"}[difference["beyond_noise"]]
        beyond = "little text" if difference["too_little_text"] else beyond
        beyond = "yes, small" if beyond == "yes" and not difference["matters"] else beyond
    speed = design["tokens_per_second"]
    return (
        f"{design['bits_per_byte']['mean']:9.3f}  {said:>10}  {beyond:>12}  " + (f"{speed:8,.0f}" if speed else "")
    ).rstrip()
