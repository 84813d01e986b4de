"""From the library's language to the command line's: `overwrite=True` is `--force`.

The one place where messages are translated. A test forbids options in the library's messages.
"""

import re

_WORDS = {
    "rebuild_claim(model, key)": "'neuralmark claim MODEL --key KEY'",
    "give the live module in the place of the file, and triggers=...": (
        "verify, recheck and attack take its network as --code FILE.py:NAME, and --triggers (other"
        " commands take keys of weights only)"
    ),
    "triggers=...": "--triggers",
    "VerifyOptions(example=...)": "--example",
    "example=...": "--example",
    "RemoteOptions(allow_private=True)": "--allow-private",
    "overwrite=True": "--force",
    "in_place=True": "--in-place",
    "in_span=True": "--in-span",
    "spread='all'": "--spread all",
    "device='cpu'": "--device cpu",
    "tensors=[...]": "--tensor",
    "others=[...]": "--other FILE",
    "other_keys=[...]": "--other-key",
    "claim=...": "--claim",
    "own={'version': 3}": "--set version=3",
    "anchor=False": "--no-anchor",
    "VerifyOptions(anchor=...)": "--anchor",
    "Claimant(anchor=...)": "--anchor NAME FILE",
    "VerifyOptions(align_limit=...)": "--align-limit",
    "VerifyOptions(effort=...)": "--effort",
    "SandboxLimits(memory=...)": "--memory",
    "SandboxLimits(seconds=...)": "--time-limit",
    "VerifyOptions(sandbox=...)": "--sandbox",
    "VerifyOptions(base=...)": "--base",
    "align_limit": "--align-limit",
    "anchor=...": "--anchor",
    "original=...": "--original FILE",
    "heads=...": "--heads",
    "base=...": "--base",
    "out=...": "-o",
    "strength=...": "--strength",
    "budget=...": "--budget",
    "passphrase=...": "passphrase (--passphrase-file)",
    "data=DIR": "--data DIR",
    "results=DIR": "--results DIR",
}
_LAUNCH = re.compile(
    r"run it from Python, neuralmark\.attacks\.launch\(neuralmark\.attacks\.get\('([a-z-]+)'\)\(\),"
    r" module, key\)"
)
_AMONG = re.compile(r"VerifyOptions\(among=(\d+)\)")
_NUMBERS = re.compile(r"\b(bits|pools|rounds)=(\d+)")


def in_options(message: str) -> str:
    """A message of the library for somebody at a terminal.

    >>> in_options("out.bin exists already: choose another name, or pass overwrite=True")
    'out.bin exists already: choose another name, or pass --force'
    >>> in_options("make a key with pools=512")
    'make a key with --pools 512'
    """
    for ours, theirs in _WORDS.items():
        message = message.replace(ours, theirs)
    message = _LAUNCH.sub(r"neuralmark attack \1 MODEL --code FILE.py:NAME", message)
    message = _AMONG.sub(r"--among \1", message)
    return _NUMBERS.sub(r"--\1 \2", message)
