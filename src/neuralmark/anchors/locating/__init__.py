"""Which part of a suspect is which tensor of the anchor, and in which layout."""
