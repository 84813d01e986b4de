"""Triggers: which are drawn, their digest, their sealed file."""
