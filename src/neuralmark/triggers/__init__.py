"""Triggers: the inputs at which a live model's activations are read, committed to by their digest.

`triggers` has the record, sealed under the key; `inputs` reads the data that they are drawn from.
"""
