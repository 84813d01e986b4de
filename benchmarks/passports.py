"""Passports and their breaks, in small, on real CIFAR-10.

    python -m benchmarks.passports --data /path/to/cifar [--images 5000] [--epochs 10] [--json]

The small network (stride 2) with passports behind its last two convolutions, 512 output channels
and as many bits. Parts:

branches   both branches trained together: accuracy of each, bits; then what a forger makes of it.
           `cerb` (a block, 10 % and 2 % of the data, weights frozen), `forge-passport` (in closed
           form, no data), and for shipped passports `fold-in`.
filter     the hashed filter before the passports (R = 1, 2, 4) against none: accuracy, what the
           passport shows in the weights to somebody without the key, second marks, pruning, and the
           main direction taken out (`deflate`).
survival   bits after attacks on files (at embed's default strength, which is 1 here, or --strength)
           and trained marks, by position and with the anchor.
grinding   secrets tried on a network without mark: mean and variance against n/2 and n/4.

Must be reached: every trained mark has all bits; the forger's signature is complete while the
weights stay, and his accuracy within 6 points of the owner's at 10 % of the data; passports in
closed form have the deployed network's accuracy to the last image; folded passports change nothing;
the tried secrets are coins.
"""

import copy
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import neuralmark
from benchmarks._cifar import SmallCNN, load
from benchmarks._common import Report, parser
from neuralmark import AttachOptions, Claim, EmbedOptions, Key, Passports, schemes
from neuralmark.attacks import Data
from neuralmark.attacks.cerb import Cerb
from neuralmark.attacks.contract import Attack, Scene
from neuralmark.attacks.deflate import Deflate
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.finetune import Finetune
from neuralmark.attacks.fold_in import FoldIn
from neuralmark.attacks.forge_passport import ForgePassport
from neuralmark.attacks.noise import Noise
from neuralmark.attacks.prune import Prune
from neuralmark.attacks.restructure import Restructure
from neuralmark.attacks.rewrite import Rewrite
from neuralmark.attacks.tools.ambiguity import ExpandedNorm
from neuralmark.attacks.tools.forging import best_drawn, ground_at
from neuralmark.core.key import Filter

PARTS = ("branches", "filter", "survival", "grinding")
LAYERS = ["conv3", "conv4"]
BITS = 512
NAMES = ("deepipr", "passport-aware", "trapdoor")
TOP = 10
ATTACKS: dict[str, Attack] = {
    "prune 50 %": Prune(0.5),
    "prune 90 %": Prune(0.9),
    "random 50 %": Prune(0.5, "random"),
    "noise 0.5": Noise(0.5),
    "fine-tune 0.01": Finetune(0.01, epochs=3, classifier="keep"),
    "second mark 4σ": Rewrite(4.0),
    "eight marks 4σ": Rewrite(4.0, keys=8),
    "main direction out": Deflate(1),
    "permuted": Restructure("permute", 1.0),
}


def fresh(grouped: bool = False) -> Any:
    """The network; DeepIPR's second version takes group norms of 16 channels."""
    torch.manual_seed(0)
    model = SmallCNN(stride=2)
    if grouped:
        model.bn3, model.bn4 = nn.GroupNorm(16, 256), nn.GroupNorm(16, 256)
    return model


def key_of(name: str, rounds: int = 0, version: int = 2, number: int = 1) -> Key:
    """A fixed key; passports of 4 x 4, as large as the layers' inputs."""
    own: dict[str, Any] = {"side": 4}
    own |= {"version": version} if name == "deepipr" else {}
    how: Filter = "stream" if rounds else "none"
    made = schemes.parameters(name, bits=BITS, filter=how, rounds=rounds or None, own=own)
    return Key(made, b"", salt=bytes(32), secret=bytes([number]) * 32)


@dataclass(frozen=True)
class Trained:
    """A network with its private branch."""

    model: Any
    private: Passports | None
    key: Key | None
    claim: Claim | None

    def bits(self, model: Any = None) -> int:
        """Bits that match."""
        assert self.key is not None
        given = self.model if model is None else model
        return neuralmark.verify(given, self.key, claim=self.claim).matched


_kept: dict[tuple[str, bool], Trained] = {}


def trained(data: Data, epochs: int, key: Key | None = None, *, grouped: bool = False) -> Trained:
    """The network of a key, trained once for all parts."""
    name = ("" if key is None else key.fingerprint, grouped)
    if name not in _kept:
        _kept[name] = _trained(data, epochs, key, grouped)
    return _kept[name]


def _trained(data: Data, epochs: int, key: Key | None, grouped: bool) -> Trained:
    """Both branches on both losses, and the published sign loss; without a key, the network."""
    model = fresh(grouped)
    private, ships = None, False
    if key is not None:
        private = Passports(model, key, LAYERS)
        ships = dict(key.parameters.own).get("version") == 1
        if ships:
            private.install()
    apart = [] if private is None or ships else list(private.parameters())
    optimizer = torch.optim.SGD(
        [*model.parameters(), *apart], 0.02, momentum=0.9, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, epochs * math.ceil(len(data.labels) / 64)
    )
    mark = None
    if key is not None and private is not None:
        options = AttachOptions(tensors=private.tensors, mode="gradient")
        mark = neuralmark.attach(model, optimizer, key, options)
    generator = torch.Generator().manual_seed(7)
    model.train()
    for _ in range(epochs):
        for some in torch.randperm(len(data.labels), generator=generator).split(64):
            inputs, labels = data.inputs[some], data.labels[some]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            if apart or (private is not None and not ships):
                assert private is not None
                loss = loss + functional.cross_entropy(private(inputs), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    claim = None if mark is None else mark.claim()
    if mark is not None:
        mark.detach()
    return Trained(model, private, key, claim)


@torch.no_grad()
def accuracy(network: Any, data: Data) -> float:
    """Share of the test images that are told right, in percent."""
    told = torch.cat([network(some).argmax(1) for some in data.test_inputs.split(500)])
    return 100 * float((told == data.test_labels).double().mean())


def branches(report: Report, data: Data, epochs: int) -> None:
    """Every scheme: both accuracies, bits, and what forgers reach."""
    clean = trained(data, epochs)
    base = accuracy(clean.model, data)
    rows: list[list[object]] = [["none", f"{base:.1f}", "–", "–"]]
    forged: list[list[object]] = []
    for name, version, grouped in (
        ("deepipr", 1, False),
        ("deepipr", 2, True),
        ("passport-aware", 0, False),
        ("trapdoor", 0, False),
    ):
        label = f"{name} V{version}" if version else name
        made = trained(data, epochs, key_of(name, version=version or 2), grouped=grouped)
        assert made.private is not None
        public, private = accuracy(made.model, data), accuracy(made.private, data)
        rows.append([label, f"{public:.1f}", f"{private:.1f}", made.bits()])
        report.target(f"{label}: bits", made.bits(), str(BITS), passed=made.bits() == BITS)
        forged += forge(report, label, made, public, data)
    report.table(["passports", "public", "private", "bits"], rows, "accuracy (%), bits of 512")
    head = ["network", "attack", "accuracy", "own signature", "differs", "owner's bits"]
    report.table(head, forged, "forgers (weights untouched)")


def forge(
    report: Report, label: str, made: Trained, before: float, data: Data
) -> list[list[object]]:
    """What a forger without passports makes of a network."""
    assert made.key is not None
    assert made.claim is not None
    rows: list[list[object]] = []
    for share in (0.1, 0.02):
        done = launch(Cerb(share, epochs=round(4 / share)), made.model, made.key,
                      claim=made.claim, data=data)  # fmt: skip
        after, own = accuracy(done.model, data), done.figures["forged_rate"]
        parts = [p for p in done.model.modules() if isinstance(p, ExpandedNorm)]  # type: ignore[union-attr]
        gammas = torch.cat([part.gamma.detach() for part in parts]).numpy()
        signs = made.key.at(made.claim.placement).signs
        differs = float((np.sign(gammas) != signs).mean())
        kept = made.bits(done.model)
        rows.append([label, f"cerb {100 * share:.0f} %", f"{before:.1f} → {after:.1f}",
                     f"{100 * own:.1f} %", f"{100 * differs:.0f} %", kept])  # fmt: skip
        report.target(f"{label}: owner after cerb", kept, str(BITS), passed=kept == BITS)
        if share == 0.1:
            report.target(f"{label}: cerb's signature", own, "1", passed=own == 1)
            report.target(f"{label}: cerb's loss", before - after, "< 6", passed=before - after < 6)
    name = made.key.parameters.scheme
    if dict(made.key.parameters.own).get("version") == 1:
        done = launch(FoldIn(), made.model, made.key, claim=made.claim, data=data)
        after = accuracy(done.model, data)
        rows.append([label, "fold-in", f"{before:.1f} → {after:.1f}", "–", "–",
                     made.bits(done.model)])  # fmt: skip
        report.target(f"{label}: folded", before - after, "0", passed=before == after)
        return rows
    done = launch(ForgePassport(name), made.model, made.key, claim=made.claim, data=data)  # type: ignore[arg-type]
    rate = done.figures["best_rate"]
    if "private_accuracy" not in done.figures:
        rows.append([label, "forge-passport", "–", f"{100 * rate:.1f} %", "–", made.bits()])
        return rows
    public, private = (100 * done.figures[f"{kind}_accuracy"] for kind in ("public", "private"))
    rows.append([label, "forge-passport", f"{public:.1f} → {private:.1f}", f"{100 * rate:.1f} %",
                 "–", made.bits()])  # fmt: skip
    assert done.after is not None
    report.target(
        f"{label}: closed form", public - private, "0", passed=abs(public - private) < 0.1
    )
    report.target(
        f"{label}: unproven", rate, "1, not verified", passed=rate == 1 and not done.after.verified
    )
    return rows


def shown(model: Any, key: Key, claim: Claim) -> tuple[float, float]:
    """The largest likeness of a layer's ten main directions to the passport's, and to any other."""
    scheme = schemes.get(key.parameters.scheme)
    assert isinstance(scheme, schemes.PassportScheme)
    parts = scheme.passports_of(key.at(claim.placement), claim.placement)
    weight = model.conv4.weight.detach().double().flatten(1)
    main = torch.linalg.svd(weight, full_matrices=False).Vh[:TOP].numpy()

    def likeness(passport: Any) -> float:
        mean = parts[1].shape.windows(passport.astype(np.float64)).mean(1)
        return float(np.abs(main @ (mean / np.linalg.norm(mean))).max())

    other = key_of(key.parameters.scheme, key.parameters.rounds, number=9)
    foreign = scheme.passports_of(other.at(claim.placement), claim.placement)[1]
    return likeness(parts[1].scale), likeness(foreign.scale)


def deflated(made: Trained, data: Data, rounds: int) -> str:
    """Bits and accuracy without the main direction of both layers, once and 2^R times over.

    Passports that read a share 2^-R of the weights keep 1 - t/2^R of what they read when the
    direction is subtracted t times: whoever knows the filter's rounds subtracts it more often.
    """
    tensors = LaunchOptions(tensors=[f"{name}.weight" for name in LAYERS])
    told = []
    for times in sorted({1.0, 2.0**rounds}):
        attack = Deflate(1, times)
        done = launch(attack, made.model, made.key, tensors, claim=made.claim, data=data)
        told.append(f"{times:g}x {made.bits(done.model)} bits, {accuracy(done.model, data):.1f} %")
        tune = Finetune(0.01, epochs=1, classifier="keep")
        tuned = launch(tune, done.model, data=data)  # type: ignore[arg-type]
        told.append(f"tuned {made.bits(tuned.model)}, {accuracy(tuned.model, data):.1f} %")
    return "; ".join(told)


def hashed(report: Report, data: Data, epochs: int, turns: Sequence[int]) -> None:
    """The hashed filter before the passports, and none."""
    rows = []
    clean = trained(data, epochs).model
    for rounds in turns:
        key = key_of("passport-aware", rounds)
        made = trained(data, epochs, key)
        assert made.private is not None
        assert made.claim is not None
        one, two = shown(made.model, key, made.claim)
        cells: list[object] = [rounds or "none", f"{accuracy(made.model, data):.1f}",
                               f"{accuracy(made.private, data):.1f}", made.bits(),
                               f"{one:.2f} ({two:.2f})"]  # fmt: skip
        for attack in (Rewrite(4.0), Rewrite(4.0, keys=8), Prune(0.9)):
            done = launch(attack, made.model, key, claim=made.claim)
            assert done.after is not None
            cells.append(done.after.matched)
        written = copy.deepcopy(clean)
        put = neuralmark.imprint(
            written, key, tensors=[f"{n}.weight" for n in LAYERS], strength=2.0
        )
        assert put.claim is not None
        one, two = shown(written, key, put.claim)
        cells += [f"{100 * put.change_relative:.1f} %", f"{one:.2f} ({two:.2f})"]
        cells.append(deflated(made, data, rounds))
        rows.append(cells)
        report.note(" ".join(map(str, cells)))
    head = ["R", "public", "private", "bits", "shows", "second mark", "eight marks", "90 % pruned"]
    head += ["imprint moves", "imprint shows", "main direction out"]
    report.table(head, rows, "passport-aware behind the hashed filter")


def in_a_file(model: Any, key: Key, folder: str, strength: float | None) -> tuple[Any, Claim, Path]:
    """The network with a mark that was written into its file; its claim and its anchor."""
    given, out = Path(folder) / "m.safetensors", Path(folder) / "o.safetensors"
    save_file(model.state_dict(), given)
    options = EmbedOptions(tensors=[f"{name}.weight" for name in LAYERS], strength=strength)
    put = neuralmark.embed(given, key, out, options)
    assert put.claim is not None
    assert put.anchor_file is not None
    marked = copy.deepcopy(model)
    marked.load_state_dict(load_file(out))
    return marked, put.claim, Path(put.anchor_file)


def after(one: Trained, attack: Attack, anchor: Path | None, data: Data) -> str:
    """Bits after an attack, by position and with the anchor; the accuracy where it is the price."""
    assert one.key is not None
    if isinstance(attack, Rewrite) and not schemes.get(one.key.parameters.scheme).writes:
        return "–"
    layers = [f"{name}.weight" for name in LAYERS] if isinstance(attack, Deflate) else None
    options = LaunchOptions(anchor=anchor, tensors=layers)
    done = launch(attack, one.model, one.key, options, claim=one.claim, data=data)
    bits = "/".join(str(r.matched) for r in (done.after, done.aligned) if r is not None)
    return f"{bits} at {accuracy(done.model, data):.1f} %" if layers else bits


def survival(report: Report, data: Data, epochs: int, strength: float | None) -> None:
    """Bits after attacks: marks in files; trapdoor's and one of DeepIPR's trained."""
    clean = trained(data, epochs).model
    rows = []
    for name, rounds, trains in (
        *(("deepipr", 0, False), ("deepipr", 1, False), ("deepipr", 4, False)),
        *(("passport-aware", 0, True), ("trapdoor", 0, True)),
    ):
        key = key_of(name, rounds)
        label = f"{name} R={rounds}{' trained' if trains else ''}"
        with tempfile.TemporaryDirectory() as folder:
            anchor: Path | None = None
            if trains:
                made = trained(data, epochs, key)
                model, claim = made.model, made.claim
                assert claim is not None
            else:
                model, claim, anchor = in_a_file(clean, key, folder, strength)
            cells: list[object] = [label]
            one = Trained(model, None, key, claim)
            cells += [after(one, attack, anchor, data) for attack in ATTACKS.values()]
            if anchor is not None:
                aligned = int(str(cells[-1]).partition("/")[2])
                report.target(f"{label}: aligned", aligned, "all", passed=aligned == BITS)
            cells.append(f"{accuracy(clean, data):.1f} → {accuracy(model, data):.1f}")
            rows.append(cells)
            report.note(" ".join(map(str, cells)))
    head = ["scheme", *ATTACKS, "accuracy"]
    report.table(head, rows, f"bits of {BITS} after attacks, by position / with the anchor")


def grinding(report: Report, data: Data, epochs: int, tries: int) -> None:
    """Secrets on a network without mark: they must be coins."""
    model = trained(data, epochs).model
    weights = {n: v.detach().numpy() for n, v in model.state_dict().items()}
    placement = (("conv4.weight", weights["conv4.weight"].shape),)
    rows = []
    for name in NAMES:
        for rounds in (0, 1):
            key = key_of(name, rounds)
            own = dict(key.parameters.own)
            how: Filter = "stream" if rounds else "none"
            parameters = schemes.parameters(name, bits=256, filter=how, own=own)
            scene = Scene(weights, ("conv4.weight",), np.random.default_rng(0))
            _, counts = best_drawn(scene, ground_at(scene, placement, parameters), tries)
            mean, variance = float(counts.mean()), float(counts.var())
            rows.append([f"{name} R={rounds}", f"{mean:.2f}", f"{variance:.1f}", counts.max()])
            report.target(f"{name} R={rounds}: mean", mean, "128 within 4 deviations",
                          passed=abs(mean - 128) < 4 * 8 / math.sqrt(tries))  # fmt: skip
            report.target(f"{name} R={rounds}: variance", variance, "64 within 4 deviations",
                          passed=abs(variance / 64 - 1) < 4 * math.sqrt(2 / tries))  # fmt: skip
    report.table(["scheme", "mean", "variance", "best"], rows, f"{tries:,} secrets, 256 bits")


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--data", type=Path, required=True, help="folder of cifar-10-batches-py")
    made.add_argument("--images", type=int, default=5000)
    made.add_argument("--epochs", type=int, default=10)
    made.add_argument("--rounds", default="0,1,2,4", help="of the filter; 0: none")
    made.add_argument("--tries", type=int, default=2000)
    made.add_argument("--strength", type=float, help="of survival; without, embed's default")
    made.add_argument("--parts", default=",".join(PARTS), help="which parts to run")
    options = made.parse_args(arguments)
    report = Report("passports", options.json)
    data = load(options.data, "cifar10", options.images, 2000)
    for part in options.parts.split(","):
        if part == "branches":
            branches(report, data, options.epochs)
        elif part == "filter":
            hashed(report, data, options.epochs, [int(r) for r in options.rounds.split(",")])
        elif part == "survival":
            survival(report, data, options.epochs, options.strength)
        elif part == "grinding":
            grinding(report, data, options.epochs, options.tries)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
