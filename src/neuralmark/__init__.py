"""Prove who owns a neural network: a keyed watermark in its weights, with an exact bound.

    key = neuralmark.Key.new(owner="Acme")
    neuralmark.embed("model.safetensors", key, "marked.safetensors")
    verdict = neuralmark.verify("suspect.safetensors", key)

The names below are the whole public surface; everything else may change between releases.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neuralmark.version import __version__

if TYPE_CHECKING:
    from neuralmark import attacks, errors, schemes
    from neuralmark.api import lineage, recheck, trace, verify
    from neuralmark.core.key import Parameters
    from neuralmark.disputes import Claimant, Ruling, arbitrate, rule
    from neuralmark.keys.key import Key
    from neuralmark.marking.claiming import rebuild_claim
    from neuralmark.marking.embedding import Embedding, embed, recover
    from neuralmark.marking.inspection import Inspection, inspect
    from neuralmark.marking.issuing import issue_copies
    from neuralmark.marking.matrices import import_key
    from neuralmark.marking.options import (
        AttachOptions,
        CopyOptions,
        EmbedOptions,
        InspectOptions,
        VerifyOptions,
    )
    from neuralmark.marking.rechecking import Recheck
    from neuralmark.marking.showing import buyer_key
    from neuralmark.records import Claim, CopyRegister, Lineage, Trace, Verdict
    from neuralmark.remote import RemoteOptions, at_url
    from neuralmark.sandbox.limits import SandboxLimits
    from neuralmark.scanning.contract import ScanOptions
    from neuralmark.scanning.rounds import ScanResult, scan
    from neuralmark.training.attach import attach
    from neuralmark.training.compensation import Compensation, compensate
    from neuralmark.training.handle import LiveMark
    from neuralmark.training.imprinting import imprint
    from neuralmark.training.memory import KeyedMemory
    from neuralmark.training.passports import Passports
    from neuralmark.triggers.triggers import Triggers

__all__ = [
    "AttachOptions",
    "Claim",
    "Claimant",
    "Compensation",
    "CopyOptions",
    "CopyRegister",
    "EmbedOptions",
    "Embedding",
    "InspectOptions",
    "Inspection",
    "Key",
    "KeyedMemory",
    "Lineage",
    "LiveMark",
    "Parameters",
    "Passports",
    "Recheck",
    "RemoteOptions",
    "Ruling",
    "SandboxLimits",
    "ScanOptions",
    "ScanResult",
    "Trace",
    "Triggers",
    "Verdict",
    "VerifyOptions",
    "__version__",
    "arbitrate",
    "at_url",
    "attach",
    "attacks",
    "buyer_key",
    "compensate",
    "embed",
    "errors",
    "import_key",
    "imprint",
    "inspect",
    "issue_copies",
    "lineage",
    "rebuild_claim",
    "recheck",
    "recover",
    "rule",
    "scan",
    "schemes",
    "trace",
    "verify",
]

_HOME = {
    "AttachOptions": "marking.options",
    "Claim": "records",
    "Claimant": "disputes",
    "Compensation": "training.compensation",
    "CopyOptions": "marking.options",
    "CopyRegister": "records",
    "EmbedOptions": "marking.options",
    "Embedding": "marking.embedding",
    "InspectOptions": "marking.options",
    "Inspection": "marking.inspection",
    "Key": "keys.key",
    "KeyedMemory": "training.memory",
    "Lineage": "records",
    "LiveMark": "training.handle",
    "Parameters": "core.key",
    "Passports": "training.passports",
    "Recheck": "marking.rechecking",
    "RemoteOptions": "remote",
    "Ruling": "disputes",
    "SandboxLimits": "sandbox.limits",
    "ScanOptions": "scanning.contract",
    "ScanResult": "scanning.rounds",
    "Trace": "records",
    "Triggers": "triggers.triggers",
    "Verdict": "records",
    "VerifyOptions": "marking.options",
    "arbitrate": "disputes",
    "at_url": "remote",
    "attach": "training.attach",
    "buyer_key": "marking.showing",
    "compensate": "training.compensation",
    "embed": "marking.embedding",
    "import_key": "marking.matrices",
    "imprint": "training.imprinting",
    "inspect": "marking.inspection",
    "issue_copies": "marking.issuing",
    "lineage": "api",
    "rebuild_claim": "marking.claiming",
    "recheck": "api",
    "recover": "marking.embedding",
    "rule": "disputes",
    "scan": "scanning.rounds",
    "trace": "api",
    "verify": "api",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that nothing loads what it does not need."""
    if name in ("attacks", "errors", "schemes"):
        return import_module(f"neuralmark.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'neuralmark' has no attribute {name!r}")
    value = getattr(import_module(f"neuralmark.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
