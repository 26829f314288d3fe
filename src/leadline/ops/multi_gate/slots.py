"""Slots: where the backward pass of Multi-Gate Residuals finds streams that the forward pass did not keep."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from leadline.errors import UsageError


class InversionError(UsageError, RuntimeError):
    """A backward pass that inversion can't serve. `memory="store"` works."""


class Slot:
    """Where the backward pass finds one state of the streams.

    Until a later step takes the streams over, the slot holds them, so that a pass which ends here works. If somebody
    else keeps them alive until the backward pass (a recomputed block keeps its input), they are used as they are.
    """

    __slots__ = ("__weakref__", "_alive", "_exact", "_found", "_held", "_version", "error")

    def __init__(self, streams: Tensor, *, hold: bool) -> None:
        self._alive = weakref.ref(streams)
        self._version = streams._version
        self._held = streams.detach() if hold else None
        self._found: Tensor | None = None
        self._exact = False
        self.error: Tensor | None = None
        _SLOTS.add(self)

    def belongs_to(self, streams: Tensor) -> bool:
        """Whether `streams` are this state, and their gradient comes by the step that made it.

        Raises:
            InversionError: they are, and were changed in place.
        """
        known = self._known()
        if known is None or not streams.requires_grad or not _same_memory(known, streams):
            return False
        self._check(known)
        return True

    def hand_over(self) -> None:
        """A later step answers for the streams from here on."""
        self._held = None

    def put(self, streams: Tensor, exact: bool, error: Tensor | None) -> None:
        """From a later step's backward pass. The better of several stays."""
        if self._found is None or exact:
            self._found, self._exact = streams, exact
        if error is not None:
            self.error = error if self.error is None else torch.maximum(self.error, error)

    def exact(self) -> Tensor | None:
        """The streams, where they are there to the bit."""
        if self._exact:
            return self._found
        known = self._known()
        if known is not None:
            self._check(known)
        return known

    def recomputed(self) -> Tensor | None:
        """What was put here by inversion, if anything."""
        return None if self._exact else self._found

    def streams(self) -> Tensor:
        """The streams, (N, ..., D).

        Raises:
            InversionError: nobody put them here.
        """
        known = self.exact()
        if known is None:
            known = self._found
        if known is None:
            raise InversionError(
                "memory='invert' can't work out the streams of a sublayer: they were read by a later sublayer or "
                "readout that takes no part in this backward pass; memory='store' works"
            )
        return known

    def clear(self) -> None:
        """Lets go of everything."""
        self._held = self._found = self.error = None
        self._exact = False

    def tensors(self) -> list[Tensor]:
        """What is held now."""
        return [tensor for tensor in (self._held, self._found) if tensor is not None]

    def _known(self) -> Tensor | None:
        alive = self._alive()
        return self._held if alive is None else alive.detach()

    def _check(self, streams: Tensor) -> None:
        if streams._version != self._version:
            raise InversionError(
                "streams were changed in place after memory='invert' took them over; change a copy, or use "
                "memory='store'"
            )


_SLOTS: weakref.WeakSet[Slot] = weakref.WeakSet()


def tape_bytes() -> int:
    """Bytes of streams that all tapes of this process hold now, beside what autograd saves.

    After a whole forward pass it is 0: all that the backward pass needs goes through `save_for_backward`.
    """
    sizes = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for slot in list(_SLOTS)
        for tensor in slot.tensors()
    }
    return sum(sizes.values())


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
