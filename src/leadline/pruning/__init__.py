"""Which blocks to remove, and removing them."""
