"""Real reports for the documentation's gallery: the demo, a probe of SmolLM2-135M, and every study at its defaults.

    python recipes/gallery.py                     all of them, which takes some hours on two cores
    python recipes/gallery.py demo study-cascade  some of them

Each is a command of Leadline's in `runs/gallery`, and resumes like it. Its report goes to `docs/gallery`, with a
picture of its first screen where Chromium is installed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "gallery"
SMOLLM2 = "models/smollm2"
MOST_BYTES = 1 << 20
"""Of one report."""
DEMO = "compare --data sotu --preset tiny --tokens 307200 --seeds 1 --evaluations 6 --measure-tokens 4096"
COMMANDS = {
    "demo": DEMO,
    "probe-smollm2": f"probe {SMOLLM2} --data sotu --tokens 4k --ablation-tokens 1k",
    "study-gfa": "study gfa --seeds 6",
    "study-cascade": "study cascade",
    "study-pruning": "study pruning",
}


def main() -> int:
    """Runs what was asked for; returns 0, or the exit code of the first command that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMMANDS)}; all unless given")
    names = parser.parse_args().names or list(COMMANDS)
    for name in names:
        if name not in COMMANDS:
            parser.error(f"{name!r} is not in the gallery; {', '.join(COMMANDS)} are")
    for name in names:
        code = make(name)
        if code != 0:
            return code
    return 0


def make(name: str) -> int:
    """Runs one command, and puts its report into the gallery. Returns the command's exit code."""
    if name == "probe-smollm2" and not (ROOT / SMOLLM2 / "config.json").is_file():
        recipe = [sys.executable, "recipes/smollm2.py", "--out", SMOLLM2]
        if code := subprocess.run(recipe, cwd=ROOT, check=False).returncode:
            return code
    out = f"runs/gallery/{name}"  # as it stands in the report
    command = [sys.executable, "-m", "leadline", *COMMANDS[name].split(), "--out", out]
    print(f"leadline {COMMANDS[name]}", flush=True)
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        return code
    show(name, ROOT / out / "report.html")
    return 0


def show(name: str, report: Path) -> None:
    """Copies a report into the gallery, and takes a picture of its first screen."""
    if report.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{report} has {report.stat().st_size:,} bytes; the gallery takes {MOST_BYTES:,} of each")
    PAGES.mkdir(parents=True, exist_ok=True)
    shutil.copy(report, PAGES / f"{name}.html")
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("chromium is not installed: the picture stays as it is")
        return
    picture = PAGES / f"{name}.png"
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1180,820", f"--screenshot={picture}"]
    subprocess.run([browser, *options, f"file://{PAGES / name}.html"], check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
