"""One bound for a whole scan, fixed before anything is read (pure).

Every mark that is looked for in every target gets the same share of the chance of error, and shares
it among its ways of looking. So each way counts as marks x targets x ways trials, and the chance
that anything at all is verified by luck stays below 2^-128. A scan that watches goes on for ever:
its r-th round gets 1/(r(r+1)) of the whole, and all rounds together get no more than one.
"""


def looks(marks: int, targets: int, turn: int | None = None) -> int:
    """How many looks one look is among: marks x targets, and the share of the round if it watches.

    Args:
        marks: Keys, or claims where a key has several.
        targets: Models of this round.
        turn: The number of the round, from 1 on; None: there is only one.

    Returns:
        By what the ways of a look are multiplied.

    >>> looks(100, 1000), looks(100, 1000, 1), looks(100, 1000, 2)
    (100000, 200000, 600000)
    """
    share = 1 if turn is None else turn * (turn + 1)
    return max(1, marks) * max(1, targets) * share


def told(marks: int, targets: int, turn: int | None = None) -> str:
    """The correction in words.

    >>> told(100, 1000)
    '100 marks x 1,000 targets x their ways of looking'
    """
    more = "" if turn is None else f" x {turn * (turn + 1)} for round {turn} of watching"
    looked = f"{marks:,} mark{'s' * (marks != 1)} x {targets:,} target{'s' * (targets != 1)}"
    return f"{looked} x their ways of looking{more}"
