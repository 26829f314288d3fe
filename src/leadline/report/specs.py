"""The words and axes of a report's pictures, sections and tables, from the file `report.toml` beside its code.

specs = Specs("leadline.experiments.cascade")
specs.section("learning", [over_blocks(panels, specs("share"))])
specs.table("arms", rows)
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from typing import Any

from leadline.config import from_dict
from leadline.report.page import Column, Table, TableRow
from leadline.report.pictures import Picture, PictureSpec, Section

FILE = "report.toml"


@dataclasses.dataclass(frozen=True)
class Specs:
    """The content of a package's `report.toml`, which has tables `pictures`, `sections` and `tables`."""

    package: str

    @cached_property
    def content(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What stands in the file."""
        return tomllib.loads(resources.files(self.package).joinpath(FILE).read_text(encoding="utf-8"))

    def __call__(self, name: str, **changes: Any) -> PictureSpec:
        """A picture's; `changes` are what is known only now. Raises KeyError where there is none of that name."""
        return from_dict(PictureSpec, {"name": name, **self.content["pictures"][name], **changes})

    def section(self, name: str, pictures: Sequence[Picture | None], **changes: Any) -> Section:
        """A section with those of the pictures that there are."""
        found = {**self.content["sections"][name], **changes}
        return Section(name=name, pictures=[picture for picture in pictures if picture is not None], **found)

    def table(self, name: str, rows: Sequence[TableRow], **changes: Any) -> Table:
        """A table of these rows."""
        found = {**self.content["tables"][name], **changes}
        columns = found.pop("columns")
        made = [column if isinstance(column, Column) else Column(**column) for column in columns]
        return Table(rows=rows, columns=made, **found)
