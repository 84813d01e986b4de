"""Batteries that every plug-in goes through."""
