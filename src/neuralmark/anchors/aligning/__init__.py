"""Putting a suspect's channels, heads and streams back into the anchor's order."""
