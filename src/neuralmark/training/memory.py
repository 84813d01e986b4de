"""An LSTM whose memory goes through a key of ±1 at every step (Lim et al. 2022)."""

import hashlib

import numpy as np
import torch
from torch import nn

from neuralmark.core.encoding import canonical_json, enc
from neuralmark.core.key import hashed_bits
from neuralmark.errors import ParameterError
from neuralmark.keys.key import Key, checked_key

SCHEME = "lim"
"""Whose keys make memories."""


class KeyedMemory(nn.Module):
    """An LSTM that multiplies its hidden state by ±1 before every step.

    Args:
        inputs: Numbers that it takes at every step.
        units: Size of the hidden state.
        signs: ±1 for each unit; None: no key.

    Attributes:
        signs: The key; it is not part of the state dict.

    Examples:
        >>> memory = neuralmark.KeyedMemory(8, 32)
        >>> memory(torch.ones(4, 5, 8)).shape
        torch.Size([4, 5, 32])
    """

    signs: torch.Tensor | None

    def __init__(self, inputs: int, units: int, signs: torch.Tensor | None = None) -> None:
        """Fresh weights."""
        super().__init__()
        for what, number in (("inputs", inputs), ("units", units)):
            whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
            if not whole or number < 1:
                raise ParameterError(f"{what} must be a whole number of 1 or more, not {number!r}")
        tensor = isinstance(signs, torch.Tensor)
        if signs is not None and not (tensor and signs.shape == (units,) and _unit(signs)):
            raise ParameterError(
                f"the key of a memory of {units} units is a tensor of as many times ±1"
            )
        self.cell = nn.LSTMCell(inputs, units)
        self.register_buffer("signs", signs, persistent=False)

    @classmethod
    def of(cls, key: Key, inputs: int, units: int) -> "KeyedMemory":
        """A memory under the ±1 that follow from a key.

        Args:
            key: A native key of the scheme `lim`.
            inputs: Numbers that it takes at every step.
            units: Size of the hidden state: as many as the key has bits.

        Returns:
            The memory; its key is not in its state dict.

        Raises:
            ParameterError: The key is raw, of another scheme or of another number of bits.

        Examples:
            >>> mine = neuralmark.Key.new(neuralmark.schemes.parameters("lim", bits=32))
            >>> made = neuralmark.KeyedMemory.of(mine, 8, 32)
            >>> sorted(made.signs.unique().tolist())
            [-1.0, 1.0]
        """
        chosen = checked_key(key).parameters
        if chosen.scheme != SCHEME:
            raise ParameterError(
                f"a memory is keyed for {SCHEME}, and this key is of {chosen.scheme}: make one of"
                f" {SCHEME} with {units} bits"
            )
        if chosen.bits != units:
            raise ParameterError(
                f"{SCHEME} has a bit for each unit: this key has {chosen.bits} bits, and the memory"
                f" {units} units; take units={chosen.bits}, or make a key of {units} bits"
            )
        if key.secret is None:
            raise ParameterError("a raw key has no secret to derive ±1 from: make a key first")
        parameters = enc(canonical_json(key.parameters.to_dict()))
        seed = hashlib.shake_256(b"neuralmark/memory/1" + parameters + key.secret).digest(32)
        signs = hashed_bits(seed, units).astype(np.float32) * 2 - 1
        return cls(inputs, units, torch.from_numpy(signs))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The hidden state at every step.

        Args:
            given: (batch, steps, inputs).

        Returns:
            (batch, steps, units).

        Examples:
            >>> neuralmark.KeyedMemory(2, 3)(torch.ones(1, 4, 2)).shape
            torch.Size([1, 4, 3])
        """
        state = given.new_zeros(len(given), self.cell.hidden_size)
        cell, states = state, []
        for step in range(given.shape[1]):
            state = state if self.signs is None else state * self.signs
            state, cell = self.cell(given[:, step], (state, cell))
            states.append(state)
        return torch.stack(states, 1)

    @torch.no_grad()
    def folded(self) -> "KeyedMemory":
        """The same function without a key: the ±1 go into the recurrent weights.

        Returns:
            A memory that anybody can run.

        Examples:
            >>> memory = neuralmark.KeyedMemory(2, 3, torch.tensor([1.0, -1.0, 1.0]))
            >>> given = torch.ones(1, 4, 2)
            >>> torch.equal(memory(given), memory.folded()(given)), memory.folded().signs
            (True, None)
        """
        made = KeyedMemory(self.cell.input_size, self.cell.hidden_size)
        made.load_state_dict(self.state_dict())
        if self.signs is not None:
            made.cell.weight_hh.mul_(self.signs)
        return made.to(self.cell.weight_hh).train(self.training)

    @torch.no_grad()
    def turn(self, units: torch.Tensor) -> None:
        """Turn the signs of some units, for whoever reads them turned.

        Args:
            units: Which, as booleans. What reads the hidden state must be turned by the caller.

        Examples:
            >>> memory = neuralmark.KeyedMemory(2, 3)
            >>> before = memory(torch.ones(1, 4, 2))
            >>> memory.turn(torch.tensor([True, False, False]))
            >>> after = memory(torch.ones(1, 4, 2))
            >>> torch.equal(after, before * torch.tensor([-1.0, 1.0, 1.0]))
            True
        """
        size = self.cell.hidden_size
        signs = 1.0 - 2.0 * units.to(self.cell.weight_hh)
        self.cell.weight_hh.mul_(signs)  # every gate reads the turned state
        for made in (self.cell.weight_ih, self.cell.weight_hh):
            made[2 * size : 3 * size].mul_(signs[:, None])  # the candidate makes it
        for bias in (self.cell.bias_ih, self.cell.bias_hh):
            bias[2 * size : 3 * size].mul_(signs)


def _unit(signs: torch.Tensor) -> bool:
    return bool((signs.abs() == 1).all())
