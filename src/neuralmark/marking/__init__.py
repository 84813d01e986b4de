"""Marks in checkpoints: where they go, how they are read, judged, drafted and written."""
