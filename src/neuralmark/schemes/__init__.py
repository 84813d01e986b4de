"""Watermarking schemes behind one interface. One file a scheme."""
