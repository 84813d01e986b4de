"""Ruling on disputes (being written)."""
