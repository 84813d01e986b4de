"""The product's main job on something real: handwritten digits, a small network, one mark."""
