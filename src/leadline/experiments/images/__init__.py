"""ResNets on real images: one run with the gradient share recorded, then what every block is worth (claim G1)."""

from leadline.experiments.images.config import ImageRunConfig
from leadline.experiments.images.measuring import measure_images, run_images
from leadline.experiments.images.training import train_images

__all__ = ["ImageRunConfig", "measure_images", "run_images", "train_images"]
