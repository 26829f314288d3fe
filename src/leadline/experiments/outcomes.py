"""What the calls of `leadline.experiments.calls` return: a table, a report, and the numbers behind both."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from leadline.training.records import Summary

if TYPE_CHECKING:
    import pandas

Rows = list[dict[str, Any]]
COLUMNS = ("name", "status", "bits_per_byte", "difference", "tokens", "tokens_per_second", "parameters", "error")
"""Of the table of an experiment."""


class Shown:
    """What has a table and a page; in a notebook it shows the page."""

    _index: ClassVar[str | list[str]]
    """The columns that the rows of `to_pandas` go by."""

    def page(self) -> str:
        """The report, one HTML file."""
        raise TypeError(f"{type(self).__name__} does not define page")

    def rows(self) -> Rows:
        """The table."""
        raise TypeError(f"{type(self).__name__} does not define rows")

    def to_pandas(self) -> pandas.DataFrame:
        """`rows` as a data frame. Raises ImportError where pandas isn't installed."""
        import pandas

        return pandas.DataFrame(self.rows()).set_index(self._index)

    def _repr_html_(self) -> str:
        page = html.escape(self.page(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:70em;border:0"></iframe>'


@dataclass(frozen=True)
class Results(Shown):
    """What was found.

    Attributes:
        content: plain data, as the folder's JSON file has it.
        out: the folder; None where nothing was written.
    """

    content: dict[str, Any]
    out: Path | None

    def write(self, path: Path | str) -> None:
        """Writes the report to a file, whole or not at all."""
        from leadline.files import write_text

        write_text(Path(path), self.page())


@dataclass(frozen=True)
class ExperimentResults(Results):
    """Of a comparison or a study; `failed` says whether one of its runs failed."""

    _index = "name"
    failed: bool = False

    @property
    def headline(self) -> str:
        """The finding in a sentence."""
        return str(self.content.get("verdict", self.content)["headline"])

    def rows(self) -> Rows:
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

    def page(self) -> str:
        """The report as it was written."""
        assert self.out is not None
        return (self.out / "report.html").read_text(encoding="utf-8")


@dataclass(frozen=True)
class ProbeResults(Results):
    """Of one model or several that were probed."""

    _index: ClassVar[str | list[str]] = ["model", "block"]

    def rows(self) -> Rows:
        """A row for each block of each model: importance with its interval, Block Influence, gradient shares, size."""
        from leadline.experiments.probe.results import ProbeValues

        rows = []
        for model in ProbeValues.read(self.content).measured:
            columns = {
                "importance": model.values("ablation", "blocks", "nats"),
                "importance_low": model.values("ablation", "blocks", "nats_low"),
                "importance_high": model.values("ablation", "blocks", "nats_high"),
                "block_influence": model.values("similarity", "block_influence"),
                "training_gradient_share": model.training_share,
                "gradient_share": model.values("gradients", "blocks", "share"),
                "output_rms": model.values("activations", "blocks", "rms"),
                "lens_bits_per_byte": model.values("lens", "bits_per_byte"),
            }
            for block in range(model.blocks):
                values = {name: column[block] if block < len(column) else None for name, column in columns.items()}
                rows.append({"model": model.name, "block": block, **values})
        return rows

    def page(self) -> str:
        """The report."""
        from leadline.experiments.probe.report import report_of

        return report_of(self.content)


@dataclass(frozen=True)
class PruneResults(Results):
    """Of one model that was pruned, or, where `out` is None, evaluated with the units skipped."""

    _index = "unit"

    def rows(self) -> Rows:
        """A row for each unit: its score, and whether it was cut."""
        scores: Mapping[str, float] = self.content["scores"] or {}
        cut, kept = self.content["cut"], self.content["kept"]
        names = list(scores) or sorted([*cut, *kept], key=lambda unit: float(unit.partition(".")[0]))
        return [{"unit": name, "score": scores.get(name), "cut": name in cut} for name in names]

    def page(self) -> str:
        """A page with the quality before and after, and every unit's score."""
        from leadline.pruning.report import record_page
        from leadline.report.page import render

        return render(record_page(self.content))


@dataclass(frozen=True, kw_only=True)
class TrainedRun(Summary, Shown):
    """A finished run: its summary, and `out`, its folder."""

    _index = "step"
    out: Path

    def rows(self) -> Rows:
        """A row for each step: loss, learning rate, gradient norm, speed; held-out losses where it was evaluated."""
        from leadline.training.records import EVALS, STEPS

        steps, evaluations = (
            [json.loads(line) for line in (self.out / name).read_text(encoding="utf-8").splitlines()]
            for name in (STEPS, EVALS)
        )
        heldout = {
            one["step"]: {"heldout_loss": one["loss"], "bits_per_byte": one["bits_per_byte"]} for one in evaluations
        }
        return [{**one, **heldout.get(one["step"], {})} for one in steps]

    def page(self) -> str:
        """A page with the learning curve and the summary."""
        from leadline.experiments.page import run_page
        from leadline.report.page import render

        return render(run_page(self, self.rows()))
