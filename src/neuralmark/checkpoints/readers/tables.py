"""Which of the tensors in a nested dictionary are the model: by the keys they were saved under."""

from collections.abc import Mapping
from dataclasses import dataclass

from neuralmark.checkpoints.readers.torch_tables import SKIPPED_KEYS, USUAL_KEYS

OTHER_SKIPPED = ("optim", "optims", "optimizers_state", "lr_schedulers")


@dataclass(frozen=True)
class Tables:
    """The model's tensors and those of other tables: names within the table to stored names."""

    model: dict[str, str]
    others: dict[str, dict[str, str]]


def tables_of(paths: Mapping[str, tuple[str, ...]]) -> Tables:
    """Sort tensors into tables by the first of their keys, as a file of torch is sorted."""
    tables: dict[str, dict[str, str]] = {}
    kept: dict[str, str] = {}
    flat = False
    for name, keys in paths.items():
        if keys[0] in (*SKIPPED_KEYS, *OTHER_SKIPPED) and len(keys) > 1:
            continue
        title = ".".join(keys)
        kept[name if title in kept else title] = name
        if len(keys) == 1:
            flat = True
        else:
            tables.setdefault(keys[0], {})[".".join(keys[1:])] = name
    chosen = None if flat else next((key for key in USUAL_KEYS if key in tables), None)
    if chosen is None:
        return Tables(kept, {})
    return Tables(tables.pop(chosen), tables)
