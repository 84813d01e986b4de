"""Names of tensors: what wrappers add to them, and their natural order."""

import re

_LEADING = ("module.", "base_model.model.")
_INNER = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")


def canonical_name(stored: str) -> str:
    """Drop what wrappers add to a name.

    >>> canonical_name("module._orig_mod.layer.base_layer.weight")
    'layer.weight'
    """
    name = ".".join(part for part in stored.split(".") if part not in _INNER)
    while name.startswith(_LEADING):
        for prefix in _LEADING:
            name = name.removeprefix(prefix)
    return name or stored


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which layer 2 comes before layer 10.

    >>> sorted(["l.10.w", "l.2.w"], key=natural)
    ['l.2.w', 'l.10.w']
    """
    return tuple(_ranked(part) for part in re.split(r"([0-9]+)", name))


def _ranked(part: str) -> tuple[int, int, str]:
    """Numbers by their digits, never as numbers: a name may have thousands of them."""
    if not (part.isdigit() and part.isascii()):
        return 1, 0, part
    digits = part.lstrip("0")
    return 0, len(digits), f"{digits} {part}"
