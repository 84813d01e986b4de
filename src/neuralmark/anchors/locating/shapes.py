"""Shapes: how the axes of one become those of another without moving a value (pure)."""

from collections.abc import Iterator

Shape = tuple[int, ...]


def groups_of(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Axes of two shapes of one size, in the smallest groups that hold the same values."""
    one = two = 0
    while one < len(old) or two < len(new):
        mine, other = [], []
        left = right = 1
        while True:
            if (left <= right and one < len(old)) or two == len(new):
                left *= old[one]
                mine.append(one)
                one += 1
            else:
                right *= new[two]
                other.append(two)
                two += 1
            if left == right and mine and other:
                break
            if one == len(old) and two == len(new):
                break
        if one == len(old) or two == len(new):  # only axes of length 1 are left
            mine += range(one, len(old))
            other += range(two, len(new))
            one, two = len(old), len(new)
        yield mine, other
