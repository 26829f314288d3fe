"""One self-contained HTML page from the results of a comparison.

    write_report(results, path)

The page needs no network and no script: pictures are inline SVG, what can be shown and hidden is CSS.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leadline.files import write_text

__all__ = ["write_report"]


def write_report(results: dict[str, Any], path: Path) -> None:
    """Writes the report of `results` (what results.json holds) to `path`, whole or not at all.

    Everything is optional: what is missing, null or not finite shows as a dash, and pictures without values are
    left out.

    Raises:
        OSError: the file cannot be written.
    """
    from leadline.experiments.compare.report.page import render

    write_text(path, render(results))
