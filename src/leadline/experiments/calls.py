"""Whole experiments: many runs, their measurements, a verdict, and one report.

    found = ll.compare("prenorm", "mgr", data="data/mine", tokens=500_000, seeds="3", out="runs/mine")
    found.to_pandas()                     # a row for each design; in a notebook `found` shows the report
    ll.study("gfa", blocks=12, out="runs/gfa")

Options have the names of the command line's, with underscores.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from leadline.experiments.engine import Experiment
    from leadline.experiments.options import ExperimentConfig

COLUMNS = ("name", "status", "bits_per_byte", "difference", "tokens", "tokens_per_second", "parameters", "error")
"""Of the table of an experiment."""


@dataclasses.dataclass(frozen=True)
class Results:
    """What an experiment found.

    Attributes:
        out: its folder, with `report.html` and `results.json`.
        content: of `results.json`.
    """

    out: Path
    content: dict[str, Any]

    @property
    def headline(self) -> str:
        """The finding in a sentence."""
        found = self.content.get("verdict", self.content)
        return str(found["headline"])

    def rows(self) -> list[dict[str, Any]]:
        """A row for each arm: name, status, held-out bits per byte with its interval, difference, size and speed."""
        rows = []
        for arm in self.content["arms"]:
            row: dict[str, Any] = {}
            for name in COLUMNS:
                value = arm.get(name)
                if isinstance(value, dict):
                    row |= {name: value["mean"], f"{name}_low": value["low"], f"{name}_high": value["high"]}
                else:
                    row[name] = value
            rows.append(row)
        return rows

    def to_pandas(self) -> pandas.DataFrame:
        """`rows` as a data frame. Raises ImportError where pandas isn't installed."""
        import pandas

        return pandas.DataFrame(self.rows()).set_index("name")

    def _repr_html_(self) -> str:
        """The report, for notebooks."""
        page = html.escape((self.out / "report.html").read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:70em;border:0"></iframe>'


def compare(*designs: str, **options: Any) -> Results:
    """Trains designs side by side, as `leadline compare` does; see `CompareConfig` for the options.

    Raises:
        UsageError: an option doesn't work, or `out` holds something else.
        LeadlineError: the folder can't be written, or what it holds is damaged.
        KeyboardInterrupt: interrupted; the same call resumes.
    """
    from leadline.experiments.compare.config import CompareConfig
    from leadline.experiments.compare.experiment import Compare

    return _run(Compare, CompareConfig(designs=designs), options)


def study(name: str, **options: Any) -> Results:
    """Runs a study, as `leadline study NAME` does: "gfa", "cascade" or "pruning".

    Raises:
        UsageError: there is no such study; and as `compare`.
    """
    from leadline.errors import UsageError
    from leadline.experiments.studies import STUDIES

    for config, kind in STUDIES.items():
        if kind.kind == name:
            return _run(kind, config(), options)
    raise UsageError(f"study {name!r} is not known; {', '.join(kind.kind for kind in STUDIES.values())} work")


def _run(kind: Callable[..., Experiment[Any]], config: ExperimentConfig, options: dict[str, Any]) -> Results:
    from leadline.data import resolve
    from leadline.experiments import engine

    if "out" in options:
        options["out"] = Path(options["out"])
    config = config.replaced(**options)
    experiment = kind(config, resolve(config.data.data))
    return Results(out=config.out, content=engine.run(experiment))
