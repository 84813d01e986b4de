"""Sealing a training: a second mark, bound to an anchor of the weights as they came out of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.choosing import fitting_heads
from neuralmark.anchors.originals import OriginalTensor, Piece
from neuralmark.anchors.sealed import write_anchor
from neuralmark.errors import OutputError, ParameterError, UnsuitableTensorError
from neuralmark.keys.key import Key
from neuralmark.marking.anchoring import remarks
from neuralmark.marking.beside import Places, places_for
from neuralmark.marking.claiming import claimed_anchor
from neuralmark.marking.drafting import require_writable
from neuralmark.marking.embedding import Embedding
from neuralmark.marking.options import EmbedOptions, options_of
from neuralmark.marking.placement import listed
from neuralmark.marking.verification import examine
from neuralmark.records import Claim, Verdict
from neuralmark.storage import files
from neuralmark.structures.book import Hints
from neuralmark.training.attach import locate, stored_names
from neuralmark.training.handle import LiveMark
from neuralmark.training.imprinting import write_mark
from neuralmark.training.layout import is_dtensor, require_agreement
from neuralmark.training.live import LiveModel, LiveSuspect
from neuralmark.training.site import SealWish, Site

_PIECE = 1 << 19


@torch.no_grad()
def seal_training(mark: LiveMark, trained: Site, out: str | Path, wish: SealWish) -> Embedding:
    """What `LiveMark.seal` does."""
    options = _for_live(options_of(EmbedOptions, wish.options))
    key, module = trained.key, trained.model.module
    require_writable(key)
    names = listed(options.tensors)
    site = locate(module, key, names or "auto", spread=options.spread)
    _require_written(site)
    places = _agreed_places(site, Path(out), wish)
    if mark.settings.mode == "projection":
        mark.project()
    first = mark.claim()
    before = _verdict(module, key, first)
    with _files(places, writes=_writes(wish)) as drafts:
        anchor = _anchor(site, options, None if drafts is None else drafts.anchor)
        require_agreement(site.model.peers(), {"anchor": anchor.digest})
        bound = site.bound_to(claimed_anchor(anchor))
        done = write_mark(bound, options.strength, options.budget, named=names is not None)
        assert done.claim is not None
        if drafts is not None:
            with files.create(drafts.claim, files.PRIVATE) as file:
                file.write(done.claim.to_json().encode("utf-8"))
    mark.detach()
    after = _verdict(module, key, first)
    return replace(
        done,
        claim=done.claim.at(places.claim),
        claim_file=str(places.claim),
        anchor_file=str(places.anchor),
        warnings=done.warnings + remarks(anchor, _told_heads(site)) + _disturbed(before, after),
        others=((before, after),),
    )


def _for_live(options: EmbedOptions) -> EmbedOptions:
    """Refuse what only files can do."""
    wanted = {
        "base": options.base is not None,
        "in_span": options.in_span,
        "check": options.check is not None,
        "other_keys": bool(options.other_keys),
        "anchor": options.anchor is not True,
    }
    for name, given in wanted.items():
        if given:
            raise ParameterError(
                f"{name} is not for sealing a live model: save it, and mark the file with embed"
            )
    return options


def _require_written(site: Site) -> None:
    """Refuse weights that are computed from others."""
    for name in stored_names(site):
        if name in site.model.derived:
            raise UnsuitableTensorError(
                f"{name!r} is computed from other parameters and cannot be written: merge or bake"
                " them in, save the model, and mark the file with embed"
            )


def _agreed_places(site: Site, out: Path, wish: SealWish) -> Places:
    """Where the files go; what keeps the first process from writing there stops all of them."""
    failure = None
    try:
        places = places_for(out, site.key, anchor=True, overwrite=wish.overwrite, in_place=False)
        if not places.claim.parent.is_dir():
            raise OutputError(f"{places.claim.parent} is not a folder: create it first")
    except OutputError as error:
        failure = error
    require_agreement(site.model.peers(), {"place of claim and anchor": failure is None})
    if failure is not None:
        raise failure
    return places


def _writes(wish: SealWish) -> bool:
    if wish.writes is not None:
        return wish.writes
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


@contextmanager
def _files(places: Places, *, writes: bool) -> Iterator[Places | None]:
    """Temporary names for claim and anchor, which get their own together; None: not written."""
    if not writes:
        yield None
        return
    assert places.anchor is not None
    with files.replacing_together({places.anchor: True, places.claim: True}) as (anchor, claim):
        yield Places(places.out, claim, anchor)


def _anchor(site: Site, options: EmbedOptions, file: Path | None) -> Anchor:
    """The anchor of the live weights; all processes read them, one may write it."""
    original = LiveOriginal(site.model)
    heads = fitting_heads(original, options.heads, _told_heads(site))
    recipe = AnchorRecipe(site.placement, heads, options.anchor_bits)
    make = partial(build, original, recipe)
    return make() if file is None else write_anchor(file, site.key, make)


def _told_heads(site: Site) -> int:
    """The attention heads that the module's configuration tells of; 0: none."""
    return Hints.of(site.model.module, 0).heads


def _verdict(module: torch.nn.Module, key: Key, claim: Claim) -> Verdict:
    return examine(LiveSuspect(module), key, claim=claim)


def _disturbed(before: Verdict, after: Verdict) -> tuple[str, ...]:
    if not before.verified or after.verified:
        return ()
    return ("the mark that was trained in is not verified any more: the sealed one stands alone",)


class LiveOriginal:
    """The tensors that a live module would save, each gathered when it is asked for."""

    def __init__(self, model: LiveModel) -> None:
        """Nothing is gathered yet."""
        self._model = model

    def tensors(self) -> list[OriginalTensor]:
        """All of them, in the order of the state dict."""
        return [
            OriginalTensor(
                tensor.name,
                tensor.info.name,
                tensor.info.shape,
                tensor.info.obstacle is None and tensor.info.size > 0 and self._floats(tensor),
            )
            for tensor in self._model.tensors()
            if tensor.info.name in self._model.state
        ]

    def _floats(self, tensor: Any) -> bool:
        return self._model.state[tensor.info.name].is_floating_point()

    def pieces(self, stored: str) -> Iterator[Piece]:
        """Stretches of the whole tensor in float32."""
        flat = self._whole(stored).reshape(-1)
        for at in range(0, flat.numel(), _PIECE):
            piece = flat[at : at + _PIECE]
            wide = piece if piece.dtype == torch.float64 else piece.float()
            yield np.asarray(wide.cpu().numpy())

    def shared(self, one: str, other: str) -> bool:
        """Whether the module holds one tensor under both names."""
        return self._model.state[one] is self._model.state[other]

    def equal(self, one: str, other: str) -> bool:
        """By their values."""
        return bool(torch.equal(self._whole(one), self._whole(other)))

    def _whole(self, stored: str) -> torch.Tensor:
        """The tensor, gathered from all processes that hold a part of it."""
        value = self._model.state[stored].detach()
        if is_dtensor(value):
            gathered: torch.Tensor = value.full_tensor()  # type: ignore[attr-defined]
            return gathered
        return value
