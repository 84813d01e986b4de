"""Every format is found in a folder and read in the sandbox: of this machine, and far away."""

import warnings
from pathlib import Path

import pytest

from neuralmark import EmbedOptions, Key, Parameters, ScanOptions, embed, scan
from neuralmark.checkpoints import format_names, open_checkpoint
from neuralmark.scanning import readers, targets
from neuralmark.scanning.contract import ScanRow
from tests.support.makers import Arrays, arrays, content, maker, safetensors
from tests.support.models import gaussian
from tests.support.quantisers import QUANTISERS, quantised_folder
from tests.support.scans import mirrored

PARAMETERS = Parameters(bits=256, pools=288, rounds=2)

RowsOf = dict[str, list[ScanRow]]
"""By the folder that a format has for itself: a far one's name begins with far."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> RowsOf:
    """What one scan finds of one marked model, saved in every format, seen from near and far."""
    folder = tmp_path_factory.mktemp("marked")
    key, out = Key.new(PARAMETERS), folder / "marked.safetensors"
    embed(safetensors.make(arrays(), folder), key, out, EmbedOptions(anchor=False))
    weights, models = content(open_checkpoint(out)), folder / "models"
    for form in format_names():
        (models / form).mkdir(parents=True)
        maker(form).make(weights, models / form)
    with pytest.MonkeyPatch.context() as patch:
        for module in (targets, readers):
            patch.setattr(module, "place_of", mirrored)
        given = [str(models), f"mirror://{models}"]
        result = scan(given, [key], folder / "out", options=ScanOptions(jobs=1))
    assert result.protection is not None
    assert result.protection.whole
    found: RowsOf = {}
    for row in result.rows():
        below = row.target.removeprefix("mirror://").removeprefix(f"{models}/")
        far = row.target.startswith("mirror://")
        found.setdefault("far " * far + below.partition("/")[0], []).append(row)
    return found


@pytest.mark.parametrize("form", format_names())
@pytest.mark.parametrize("where", ["", "far "])
def test_a_model_of_each_format_is_found(form: str, where: str, rows: RowsOf) -> None:
    told = [(row.status, row.matched) for row in rows[where + form] if form in str(row.format)]
    assert told[-1] == ("verified", 256), rows[where + form]
    assert {row.status for row in rows[where + form]} <= {"verified", "nothing"}
    if form not in ("folder", "adapter"):  # shards of odd names, and the base beside it
        assert len(rows[where + form]) == 1


def test_blocks_of_gguf_are_read_in_the_sandbox(tmp_path: Path) -> None:
    """The package that knows them is imported after everything was given up."""
    gguf = pytest.importorskip("gguf")
    key, out = Key.new(PARAMETERS), tmp_path / "marked.safetensors"
    plain: Arrays = {"layer.weight": gaussian(200, 320)}  # rows of whole blocks
    embed(safetensors.make(plain, tmp_path), key, out, EmbedOptions(anchor=False))
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = gguf.quants.quantize(content(open_checkpoint(out))["layer.weight"], kind)
    (tmp_path / "models").mkdir()
    writer = gguf.GGUFWriter(tmp_path / "models" / "model-Q8_0.gguf", "test")
    writer.add_tensor("layer.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = scan([tmp_path / "models"], [key], tmp_path / "out", options=ScanOptions(jobs=1))
    (row,) = result.rows()
    assert (row.status, row.format) == ("verified", "gguf"), row


def test_quantised_folders_are_found(tmp_path: Path) -> None:
    """Every way of quantising, in one scan: dequantised in the sandbox, without its package."""
    key, out = Key.new(PARAMETERS), tmp_path / "marked.safetensors"
    plain: Arrays = {"layer.weight": gaussian(256, 320)}
    options = EmbedOptions(anchor=False, strength=2)
    done = embed(safetensors.make(plain, tmp_path), key, out, options)
    weights, models = content(open_checkpoint(out)), tmp_path / "models"
    models.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (way, quantiser) in enumerate(QUANTISERS.items()):
            config = {"checkpoint_format": "gptq_v2"} if way == "gptq v2" else None
            quantised_folder(models / f"{number}", weights, quantiser, config)
    result = scan(
        [models], [key], tmp_path / "out", claims=str(done.claim_file), options=ScanOptions(jobs=1)
    )
    assert result.counts == {"verified": len(QUANTISERS)}, list(result.rows())
