"""Families of networks, one file each: `recognise(book, hints)` gives the map of one."""
