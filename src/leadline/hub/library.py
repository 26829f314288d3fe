"""The transformers library as it should be heard: errors in one line, no progress bars."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


def one_line(error: object) -> str:
    """What the library says, which is often over many lines."""
    return " ".join(str(error).split())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the library's progress bars, which fill a log."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
