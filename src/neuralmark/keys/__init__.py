"""Keys, and the sealed files that hold them."""
