"""`heldout.npy`: the held-out losses of a run's end, by sequence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from leadline.errors import LeadlineError
from leadline.files import check_sum, write_atomically

SEQUENCES = "heldout.npy"


def write_sequences(folder: Path, losses: Tensor) -> None:
    """Writes the mean loss of every held-out sequence, (sequences,) nats a token, as float32.

    Raises:
        OSError: it can't be written.
    """

    def write(path: Path) -> None:
        with open(path, "wb") as handle:
            np.save(handle, losses.float().numpy())

    write_atomically(folder / SEQUENCES, write)


def load_sequences(folder: Path) -> NDArray[np.float64] | None:
    """What `write_sequences` wrote, (sequences,), as float64; None for a run of an earlier version, without it.

    Raises:
        LeadlineError: the file can't be read, or holds something else.
    """
    path = folder / SEQUENCES
    try:
        found = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        raise LeadlineError(f"{path} cannot be read ({error}); remove it, and intervals cover seeds alone") from error
    if (
        not isinstance(found, np.ndarray)
        or found.ndim != 1
        or found.dtype != np.float32
        or not np.isfinite(found).all()
    ):
        raise LeadlineError(f"{path} is damaged: it should hold a finite loss for each held-out sequence; remove it")
    check_sum(path)
    return found.astype(np.float64)
