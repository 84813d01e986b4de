"""What is to be run: presets, specifications, keys; checked before anything runs."""
