"""Names without what wrappers add, and in their natural order."""

import pytest

from neuralmark.core.names import canonical_name, natural


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("a.weight", "a.weight"),
        ("module.a.weight", "a.weight"),
        ("base_model.model.a.weight", "a.weight"),
        ("base_model.model.module.module.a.weight", "a.weight"),
        ("_orig_mod.a.base_layer.weight", "a.weight"),
        ("a._fsdp_wrapped_module._checkpoint_wrapped_module.weight", "a.weight"),
        ("a.module.weight", "a.module.weight"),
        ("module", "module"),
        ("_orig_mod", "_orig_mod"),
        ("base_model.model.", "base_model.model."),
    ],
)
def test_what_wrappers_add_is_dropped(stored: str, name: str) -> None:
    assert canonical_name(stored) == name


def test_numbers_are_sorted_as_numbers_before_words() -> None:
    names = ["l.2", "l.02", "l.10", "l.9", "l.0", "l.00", "l.100", "l.a", "l.", "l", "l.²", "10.l"]
    assert sorted(names, key=natural) == [
        *("10.l", "l", "l.", "l.0", "l.00", "l.02", "l.2", "l.9", "l.10", "l.100"),
        *("l.a", "l.²"),
    ]
    assert natural("l.10") == ((1, 0, "l."), (0, 2, "10 10"), (1, 0, ""))


def test_a_number_may_have_thousands_of_digits() -> None:
    long = "l." + "9" * 5000
    assert natural("l.10") < natural(long) < natural(long + "0")
