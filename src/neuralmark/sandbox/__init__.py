"""A process that reads what nobody vouches for, and can do nothing else.

    limits      how much memory and time it gets
    calls       which system calls it may make: the seccomp program (pure)
    confining   in the process itself: limits, seccomp, Landlock, namespaces
    channel     messages between the two
    child       the life of the process
    confined    the process as its parent sees it
    served      models that are far, read by the parent for it

The parent trusts nothing that comes back: answers are JSON of a limited size, never pickles. The
process has no network, starts no other, sends no signals, and opens files to read only.
"""
