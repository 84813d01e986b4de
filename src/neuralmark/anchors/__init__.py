"""Anchors: a coarse copy of what was marked, and the mark found wherever the weights went.

The anchor is taken before the mark is written, and the key is derived from its digest. So whatever
is decided by likeness to the anchor alone is decided before the key is drawn, and costs no trial.
Nothing in this package sees a key's matrix, bits or carriers.

    anchor    what an anchor is: its entries, its digest; coarse values by name
    coarse    rows of weights as 4-bit integers, and back (pure)
    payload   the coarse copy of one tensor as bytes, and back
    header    all that is not payload, and the digest
    chunks    bytes sealed under a key derived from the secret, read anywhere
    sealed    the anchor's file
    originals what anchors are made of: checkpoints, arrays
    heads     how many attention heads a model has
    choosing  which tensors are kept beside the marked ones
    building  the anchor of a checkpoint or a live model
    opening   the anchor of a claim, from its file or from the original
    moves     how an axis of a suspect's tensor becomes an axis of the anchor's (pure)
    locating  which part of the suspect is which anchor tensor, in which layout
    aligning  the order, signs, scales and rotations of channels, heads and streams (pure)
    factors   factors of rows and columns, by regression on the anchor (pure)
    spectrum  directions in which a residual stands out, shrunk (pure)
    levels    factors that only show when what hides them is set aside (pure)
    residue   a difference divided into what is trusted and what is not (pure)
    cleaning  what was added to the weights and shows itself against the anchor (pure)
    refinding a second look for what nothing could be aligned to
    effort    how much is done for it
    restoring all of it in order: a suspect in the anchor's coordinates, and what was done
    descent   how alike a suspect is to the anchor, for the verdict's line
    lineage   the same of two models, without a mark
"""
