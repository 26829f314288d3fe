"""A study's folder: what was asked for lies in `study.json`, and one process at a time works in it.

with at_work(out, "cascade", plan):
    ...                              # the same plan goes on where it was; another one is an error
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leadline.config import differing, to_dict
from leadline.errors import UsageError
from leadline.files import check_folder, write_json
from leadline.interrupt import termination_interrupts
from leadline.lock import LOCK_FILE, claimed
from leadline.reading import read_json

PLAN_FILE = "study.json"


@contextlib.contextmanager
def at_work(out: Path, kind: str, plan: Any) -> Iterator[None]:
    """Makes the folder this study's, or checks that it is, and holds it; SIGTERM becomes Ctrl-C meanwhile.

    Args:
        kind: the study's name.
        plan: a frozen dataclass; two equal plans share a folder.

    Raises:
        UsageError: the folder is a file, or holds something else or another plan; says what differs.
        LeadlineError: it can't be written, or another process is at work in it.
    """
    check_folder(out, "--out")
    content = json.loads(json.dumps({"study": kind, **to_dict(plan)}))
    with claimed(out, "study", lambda: check_plan(out, content)), termination_interrupts():
        if not (out / PLAN_FILE).exists():
            write_json(out / PLAN_FILE, content)
        yield


def check_plan(out: Path, content: Mapping[str, Any]) -> None:
    """Makes sure that a study of this content may use the folder, and writes nothing.

    Raises:
        UsageError: it holds something else, or another study; says what differs.
        LeadlineError: what it holds is damaged.
    """
    path = out / PLAN_FILE
    if not path.exists():
        if out.exists() and any(entry.name != LOCK_FILE for entry in out.iterdir()):
            raise UsageError(f"--out {out} holds something that is no study; name a new or empty folder")
        return
    different = differing(read_json(path, dict[str, Any], advice="give another --out"), content)
    if different:
        shown = "; ".join(different[:4]) + ("; …" if len(different) > 4 else "")
        raise UsageError(f"--out {out} holds another study: {shown}. Give another --out, or the same options.")
