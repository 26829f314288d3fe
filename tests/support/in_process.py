"""The jobs of an experiment without a process for each; the tests that resume an experiment start some."""

from __future__ import annotations

import importlib
from typing import Any

from leadline.experiments import worker
from leadline.experiments.jobs import Job


def run_here(jobs: list[Job], **options: Any) -> dict[str, str]:
    """Does what workers do for the jobs that are not done, in the order of the jobs."""
    for job in jobs:
        if not job.done:
            job.folder.mkdir(parents=True, exist_ok=True)
            module, _, name = job.content["task"].partition(":")
            getattr(importlib.import_module(f"{worker.PACKAGE}{module}"), name)(job.folder, job.content)
    return {}
