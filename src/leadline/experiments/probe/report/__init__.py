"""One page from the measurements of one model or of several side by side.

    write_report(results, path)

`results` is what `leadline probe` keeps in results.json: `leadline.experiments.probe.results.ProbeFile`, as data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leadline.files import write_text

__all__ = ["report_of", "write_report"]


def write_report(results: dict[str, Any], path: Path) -> None:
    """Writes the report to `path`, whole or not at all.

    Pictures without values are left out, and a missing value shows as a dash.

    Raises:
        OSError: the file cannot be written.
    """
    write_text(path, report_of(results))


def report_of(results: dict[str, Any]) -> str:
    """The report, one HTML file."""
    from leadline.experiments.probe.report.page import build
    from leadline.report.page import render

    return render(build(results))
