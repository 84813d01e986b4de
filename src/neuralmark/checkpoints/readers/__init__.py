"""What formats share: archives, pickles read without running them, element types."""
