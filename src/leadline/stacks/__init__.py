"""Models seen as stacks of blocks: Leadline's own and Hugging Face's, found by structure."""

from leadline.stacks.base import Stack, StackWatcher, Unit
from leadline.stacks.find import stack_of

__all__ = ["Stack", "StackWatcher", "Unit", "stack_of"]
