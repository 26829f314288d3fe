"""What reports are drawn with: SVG lines and heat maps, colours for light and dark, numbers as a reader wants them."""
