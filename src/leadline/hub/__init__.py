"""Models from folders: Leadline's own and Hugging Face's, with their tokenizers and text."""

from leadline.hub.open import OpenedModel, kind_of, open_model
from leadline.hub.text import Text, dataset_for, default_context, heldout_batches, training_batches

__all__ = [
    "OpenedModel",
    "Text",
    "dataset_for",
    "default_context",
    "heldout_batches",
    "kind_of",
    "open_model",
    "training_batches",
]
