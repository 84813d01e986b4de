"""GGUF: held against the gguf package; what its converters did to a model is undone."""

import struct
import sys
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGML_QUANT_SIZES, MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import Key
from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.readers import gguf_header, gguf_types
from neuralmark.checkpoints.readers.gguf_header import read_header
from neuralmark.checkpoints.readers.gguf_names import FAMILIES, PAIRED, SHIFTED, taken_apart
from neuralmark.checkpoints.readers.gguf_types import TYPES, UNDECODED, quants
from neuralmark.errors import (
    AmbiguousFolderError,
    MalformedError,
    MissingExtraError,
    NeuralMarkError,
    OutputError,
    UnknownFormatError,
    UnsuitableTensorError,
)
from tests.support import kquants
from tests.support.checks import one_line
from tests.support.commands import call
from tests.support.far import MirrorPlace
from tests.support.llamas import (
    HEADS,
    INNER,
    KV_HEADS,
    LAYERS,
    OURS,
    WIDTH,
    converted,
    llama_folder,
    paired,
)
from tests.support.makers import values
from tests.support.makers.gguf import save
from tests.support.models import SMALL, gaussian

Kind = gguf.GGMLQuantizationType
QUANTISED = [kind for kind in Kind if GGML_QUANT_SIZES[kind][0] > 1 and kind.name not in UNDECODED]


def blocks(kind: Kind, rows: int, width: int) -> npt.NDArray[np.uint8]:
    """Any bytes are blocks of some weights; those that are scales become numbers of usual size."""
    size, length = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(kind.value).integers(0, 256, (rows, width // size * length))
    return raw.astype(np.uint8)


# what the package knows


def test_the_types_are_those_of_the_package() -> None:
    known = {kind.value: (kind.name, *GGML_QUANT_SIZES[kind]) for kind in Kind}
    assert {number: tuple(kind) for number, kind in TYPES.items()} == known
    for kind in Kind:
        if TYPES[kind.value].block > 1:
            raw = blocks(kind, 1, TYPES[kind.value].block)
            if kind.name in UNDECODED:
                with pytest.raises(NotImplementedError):
                    gguf.quants.dequantize(raw, kind)
            else:
                with np.errstate(all="ignore"):
                    gguf.quants.dequantize(raw, kind)


def test_the_packages_map_leads_back_from_every_name() -> None:
    numbers = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    known = 0
    for name, family in FAMILIES.items():
        arch = numbers[name]
        there = {TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS[arch]}
        back = gguf.get_tensor_name_map(arch, 3)
        for stored in there:
            full = stored.format(bid=2) + ".weight"
            found = taken_apart(full, name)
            hugging = found.name
            if hugging is None and found.expert is not None:
                hugging = found.expert.replace(".{}", "")  # the converter stacks them
            if hugging is not None:
                assert back.get_name(hugging, (".weight",)) == full, (name, hugging)
                known += 1
        parts = {stored.rpartition(".")[2] for stored in there}
        assert len(parts & {*family.inner, *family.outer}) >= 0.5 * len(parts - {"rope_freqs"})
    assert known > 300
    assert set(numbers) >= PAIRED | SHIFTED


def test_names_that_are_not_known_are_kept() -> None:
    assert taken_apart("blk.1.ffn_up.weight", "unheard-of").name is None
    assert taken_apart("blk.1.odd_part.weight", "llama").name is None
    assert taken_apart("rope_freqs.weight", "llama").name is None
    assert taken_apart("anything at all", "llama").name is None
    assert taken_apart("token_embd.weight", "llama").name == "model.embed_tokens.weight"
    assert taken_apart("blk.7.attn_q.bias", "qwen2").name == "model.layers.7.self_attn.q_proj.bias"


def test_the_header_is_what_the_packages_reader_reads(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "", "ü"] * 2000)
    writer.add_array("tokenizer.ggml.scores", [0.5] * 8000)
    writer.add_array("llama.attention.head_count_kv", [4, 8, 4])
    writer.add_string("general.name", "n" * 5000)
    writer.add_string("general.author", "somebody")
    writer.add_bool("llama.use_parallel_residual", True)
    writer.add_float64("x.double", 0.25)
    writer.add_int8("x.tiny", -3)
    writer.add_uint64("x.large", 1 << 60)
    writer.add_custom_alignment(64)
    for i, kind in enumerate((np.float16, np.float32, np.float64, np.int8, np.int64)):
        writer.add_tensor(f"t{i}", np.arange(2 * (i + 1), dtype=kind).reshape(2, i + 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs, ours = gguf.GGUFReader(tmp_path / "m.gguf"), read_header(tmp_path / "m.gguf")
    for name, value in ours.fields.items():
        told = theirs.get_field(name)
        assert told is not None
        assert value == (tuple(told.contents()) if isinstance(value, tuple) else told.contents())
    lists = {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "general.name"}
    own = {f"GGUF.{name}" for name in ("version", "tensor_count", "kv_count")}
    assert set(theirs.fields) - set(ours.fields) == lists | own
    assert [(t.name, t.type, t.offset) for t in ours.tensors] == [
        (t.name, t.tensor_type, t.data_offset) for t in theirs.tensors
    ]
    assert ours.of_layer("llama.attention.head_count_kv", 1) == 8
    assert ours.of_layer("llama.attention.head_count_kv", 3) is None
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    for tensor in theirs.tensors:
        assert checkpoint.info(tensor.name).shape == tensor.data.shape
        if tensor.data.dtype.kind == "f":
            assert np.array_equal(values(checkpoint, tensor.name), tensor.data)


# quantised tensors


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_every_type_reads_as_the_package_dequantises(kind: Kind, tmp_path: Path) -> None:
    raw = blocks(kind, 6, 1024)
    path = save(tmp_path / "m.gguf", {"w": raw}, kinds={"w": kind})
    checkpoint = open_checkpoint(path)
    info = checkpoint.info("w")
    assert (info.dtype, info.shape, info.stored) == ("F32", (6, 1024), kind.name)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind)
    assert np.array_equal(values(checkpoint, "w"), expected, equal_nan=True)
    for start, stop in ((0, 1), (31, 33), (255, 1030), (1000, 6144), (6143, 6144), (5, 5)):
        run = checkpoint.read_run("w", start, stop).view("<f4")
        assert np.array_equal(run, expected.reshape(-1)[start:stop], equal_nan=True)


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_the_quantisers_of_these_tests_are_near(kind: Kind) -> None:
    array = gaussian(8, 512)
    array[0, :256] = 0
    back = gguf.quants.dequantize(OURS[kind](array), kind)
    assert np.abs(back - array).mean() < 0.12 * np.abs(array).mean()


def test_scales_of_whole_tensors_are_applied(tmp_path: Path) -> None:
    """NVFP4 has one number for each tensor, or each expert, in a tensor of its own."""
    raw = blocks(Kind.NVFP4, 3 * 2, 64).reshape(3, 2, -1)
    scales = np.array([2, 0.5, 4], np.float32)
    arrays = {
        "blk.0.ffn_up_exps.weight": raw,
        "blk.0.ffn_up_exps.scale": scales,
        "blk.0.ffn_up.weight": raw[0],
        "blk.0.ffn_up.scale": scales[:1],
        "blk.0.attn_v.weight": raw[0],
    }
    kinds = {name: Kind.NVFP4 for name in arrays if name.endswith("weight")}
    path = save(tmp_path / "m.gguf", arrays, "qwen3moe", kinds)
    checkpoint = open_checkpoint(path)
    with np.errstate(all="ignore"):
        plain = gguf.quants.dequantize(raw, Kind.NVFP4)
    layer = "model.layers.0"
    for number, scale in enumerate(scales):
        found = values(checkpoint, f"{layer}.mlp.experts.{number}.up_proj.weight")
        assert np.array_equal(found, plain[number] * scale, equal_nan=True)
    found = values(checkpoint, f"{layer}.mlp.up_proj.weight")
    assert np.array_equal(found, plain[0] * 2, equal_nan=True)
    found = values(checkpoint, f"{layer}.self_attn.v_proj.weight")
    assert np.array_equal(found, plain[0], equal_nan=True)


def test_quantised_tensors_say_what_to_do(tmp_path: Path) -> None:
    raw = gguf.quants.quantize(gaussian(256, 256), Kind.Q8_0)
    path = save(tmp_path / "m.gguf", {"w": raw}, kinds={"w": Kind.Q8_0})
    before = path.read_bytes()
    with pytest.raises(UnsuitableTensorError, match=r"not marked: it is quantised \(Q8_0\): mark"):
        neuralmark.embed(path, Key.new(SMALL), tmp_path / "out.gguf")
    with pytest.raises(UnsuitableTensorError, match="convert"):
        neuralmark.embed(path, Key.new(SMALL), in_place=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", [Kind.Q8_K, Kind.Q1_0])
def test_types_that_nobody_can_dequantise_are_listed(kind: Kind, tmp_path: Path) -> None:
    path = save(tmp_path / "m.gguf", {"w": blocks(kind, 2, 256)}, kinds={"w": kind})
    info = open_checkpoint(path).info("w")
    assert (info.dtype, info.shape) == (kind.name, (2, 256))
    assert info.obstacle == f"its type {kind.name} cannot be dequantised"
    data = path.read_bytes()
    number = struct.pack("<QQI", 256, 2, kind.value)
    path.write_bytes(data.replace(number, struct.pack("<QQI", 256, 2, 999)))
    assert open_checkpoint(path).info("w").dtype == "GGML type 999"


def test_without_the_package_only_quantised_tensors_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = gaussian(64, 64)
    raw = gguf.quants.quantize(array, Kind.Q4_0)
    arrays = {"q": raw, "h": array.astype(np.float16), "b": gguf.quants.quantize(array, Kind.BF16)}
    path = save(tmp_path / "m.gguf", arrays, kinds={"q": Kind.Q4_0, "b": Kind.BF16})
    checkpoint = open_checkpoint(path)
    quants.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'neuralmark\[gguf\]'"):
        values(checkpoint, "q")
    assert np.array_equal(values(checkpoint, "h"), array.astype(np.float16))
    assert np.abs(values(checkpoint, "b") - array).max() < 0.01 * np.abs(array).max()


def test_blocks_are_decoded_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece is small, whatever is asked for; rows in pairs come with what lies between."""
    array = gaussian(64, 512)
    raw = gguf.quants.quantize(paired(array, 4), Kind.Q8_0)
    fields = {"llama.attention.head_count": 4}
    name = "blk.0.attn_q.weight"
    path = save(tmp_path / "m.gguf", {name: raw}, "llama", {name: Kind.Q8_0}, fields)
    expected = gguf.quants.dequantize(gguf.quants.quantize(array, Kind.Q8_0), Kind.Q8_0)
    seen: list[int] = []
    whole = gguf_types.dequantised

    def counted(raw: Any, kind: Any) -> Any:
        seen.append(len(raw) // kind.size * kind.block)
        return whole(raw, kind)

    monkeypatch.setattr(gguf_types, "dequantised", counted)
    for most, near in ((1 << 18, 1 << 20), (96, 1 << 20), (96, 0), (1500, 0)):
        monkeypatch.setattr(gguf_types, "AT_ONCE", most)
        monkeypatch.setattr(gguf_types, "NEAR", near)
        seen.clear()
        checkpoint = open_checkpoint(path)
        assert checkpoint.heads == 4
        (hugging,) = checkpoint.names()
        assert np.array_equal(values(checkpoint, hugging), expected)
        assert np.array_equal(
            checkpoint.read_run(hugging, 700, 9001).view("<f4"), expected.reshape(-1)[700:9001]
        )
        assert max(seen) <= most


# what the converter did


def twin(tmp_path: Path, kind: Kind = Kind.F32, experts: int = 0) -> tuple[Path, Path]:
    folder = llama_folder(tmp_path / "llama", experts)
    return folder, converted(folder, tmp_path / "llama.gguf", kind)


@pytest.mark.parametrize("experts", [0, 3])
def test_a_llama_reads_as_its_folder(experts: int, tmp_path: Path) -> None:
    folder, path = twin(tmp_path, Kind.F32, experts)
    source, checkpoint = load_file(folder / "model.safetensors"), open_checkpoint(path)
    assert set(checkpoint.names()) == set(source)
    for name, array in source.items():
        assert np.array_equal(values(checkpoint, name), array), name
    for name in checkpoint.names():
        assert np.array_equal(values(open_checkpoint(MirrorPlace(path)), name), source[name])


def test_quantised_rows_are_put_back(tmp_path: Path) -> None:
    folder, path = twin(tmp_path, Kind.Q4_K)
    source, checkpoint = load_file(folder / "model.safetensors"), open_checkpoint(path)
    for name, array in source.items():
        if array.ndim > 1:
            expected = gguf.quants.dequantize(kquants.q4_k(array), Kind.Q4_K)
            assert np.array_equal(values(checkpoint, name), expected), name


@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q8_0, Kind.Q4_K], ids=str)
def test_transformers_reads_the_same(kind: Kind, tmp_path: Path) -> None:
    """Its own reader of GGUF undoes names and rows by itself."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    _, path = twin(tmp_path, kind)
    with torch.device("meta"):
        config = LlamaConfig(  # type: ignore[no-untyped-call]
            vocab_size=64,
            hidden_size=WIDTH,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
        )
        empty = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_gguf_checkpoint(  # type: ignore[no-untyped-call]
            str(path), return_tensors=True, model_to_load=empty
        )
    checkpoint = open_checkpoint(path)
    assert set(checkpoint.names()) == set(loaded["tensors"])
    for name, tensor in loaded["tensors"].items():
        assert np.array_equal(values(checkpoint, name), tensor.float().numpy()), name


@pytest.mark.parametrize("in_place", [False, True])
def test_a_llama_is_marked_where_its_rows_lie(in_place: bool, tmp_path: Path) -> None:
    """Marked as GGUF in float16: only the marked tensors change, and converting back finds it."""
    _, path = twin(tmp_path, Kind.F16)
    before, key = path.read_bytes(), Key.new(SMALL)
    names = [f"model.layers.{i}.self_attn.{part}_proj.weight" for i in (0, 1) for part in "qk"]
    out = path if in_place else tmp_path / "out.gguf"
    options = neuralmark.EmbedOptions(tensors=names)
    done = neuralmark.embed(path, key, None if in_place else out, options, in_place=in_place)
    assert done.verdict is not None
    assert done.verdict.matched == 256
    after = out.read_bytes()
    stored = {t.name: t for t in gguf.GGUFReader(out).tensors}
    changed = np.flatnonzero(np.frombuffer(before, "u1") != np.frombuffer(after, "u1"))
    spans = [
        (t.data_offset, t.data_offset + t.n_bytes)
        for t in stored.values()
        if ".attn_q." in t.name or ".attn_k." in t.name
    ]
    assert len(changed)
    assert all(any(low <= at < high for low, high in spans) for at in changed.tolist())
    assert (path.read_bytes() == before) is not in_place
    q = stored["blk.0.attn_q.weight"].data.astype(np.float32)
    unpaired = q.reshape(HEADS, -1, 2, q.shape[1]).swapaxes(1, 2).reshape(q.shape)
    assert np.array_equal(values(open_checkpoint(out), names[0]), unpaired)


@pytest.mark.parametrize("anchor", [True, False])
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_K, Kind.IQ4_NL], ids=str)
def test_a_marked_folder_is_verified_after_conversion(
    kind: Kind, anchor: bool, tmp_path: Path
) -> None:
    folder = llama_folder(tmp_path / "llama")
    key = Key.new(SMALL)
    options = neuralmark.EmbedOptions(anchor=anchor)
    done = neuralmark.embed(folder, key, tmp_path / "marked", options)
    path = converted(tmp_path / "marked", tmp_path / "suspect.gguf", kind)
    verdict = neuralmark.verify(path, key, claim=done.claim)
    assert verdict.verified
    assert verdict.matched == 256
    assert verdict.trials <= 2  # as stored, and by rows: nothing had to be searched
    stranger = neuralmark.verify(
        converted(folder, tmp_path / "clean.gguf", kind), key, claim=done.claim
    )
    assert not stranger.verified


@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q8_0], ids=str)
def test_the_turned_matrices_of_gpt2_are_found(kind: Kind, tmp_path: Path) -> None:
    """Its layers are [in, out] in transformers and [out, in] in GGUF."""
    shapes = {"attn_qkv": (128, 384), "attn_output": (128, 128), "ffn_up": (128, 512)}
    shapes["ffn_down"] = (512, 128)
    stored = [f"blk.{i}.{part}.weight" for i in (0, 1) for part in shapes]
    names = {each: str(taken_apart(each, "gpt2").name) for each in stored}
    source = {
        names[each]: gaussian(*shapes[each.split(".")[2]], seed=i) for i, each in enumerate(stored)
    }
    save_file(source, tmp_path / "gpt2.safetensors")
    key, out = Key.new(SMALL), tmp_path / "marked.safetensors"
    done = neuralmark.embed(
        tmp_path / "gpt2.safetensors", key, out, neuralmark.EmbedOptions(anchor=False)
    )
    marked = load_file(out)
    turned = {each: gguf.quants.quantize(marked[names[each]].T.copy(), kind) for each in stored}
    path = save(tmp_path / "m.gguf", turned, "gpt2", dict.fromkeys(stored, kind))
    verdict = neuralmark.verify(path, key, claim=done.claim)
    assert verdict.verified
    assert verdict.matched == 256


def test_norms_of_gemma_lose_what_was_added(tmp_path: Path) -> None:
    norm = gaussian(64).astype(np.float16).astype(np.float32)
    arrays = {
        "output_norm.weight": norm + 1,
        "blk.0.post_ffw_norm.weight": norm + 1,
        "blk.0.ffn_up.weight": gaussian(64, 64),
    }
    checkpoint = open_checkpoint(save(tmp_path / "m.gguf", arrays, "gemma2"))
    for name in ("model.norm.weight", "model.layers.0.post_feedforward_layernorm.weight"):
        assert np.allclose(values(checkpoint, name), norm, rtol=0, atol=1.2e-7)
        assert np.array_equal(
            checkpoint.read_run(name, 3, 9).view("<f4"), values(checkpoint, name)[3:9]
        )
        assert "1 added" in str(checkpoint.info(name).fixed)
    assert np.array_equal(
        values(checkpoint, "model.layers.0.mlp.up_proj.weight"), arrays["blk.0.ffn_up.weight"]
    )


def test_heads_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    array = gaussian(60, 8)
    for heads in (0, 7, 60, 30):  # none, no divisor, heads of one row, heads of one pair
        fields = {"llama.attention.head_count": heads}
        path = save(tmp_path / f"{heads}.gguf", {"blk.0.attn_q.weight": array}, "llama", {}, fields)
        checkpoint = open_checkpoint(path)
        assert np.array_equal(values(checkpoint, checkpoint.names()[0]), array)
    bias = gaussian(60)
    fields = {"llama.attention.head_count": 10}
    stored = {"blk.0.attn_q.bias": paired(bias, 10), "attn_q.weight": array}
    checkpoint = open_checkpoint(save(tmp_path / "b.gguf", stored, "llama", {}, fields))
    assert np.array_equal(values(checkpoint, "model.layers.0.self_attn.q_proj.bias"), bias)
    assert np.array_equal(values(checkpoint, "attn_q.weight"), array)


def test_a_name_that_is_taken_stays(tmp_path: Path) -> None:
    arrays = {"output.weight": gaussian(4, 8), "lm_head.weight": gaussian(4, 8, seed=1)}
    assert open_checkpoint(save(tmp_path / "m.gguf", arrays, "llama")).names() == list(arrays)


# models in parts, folders


def in_parts(folder: Path) -> Path:
    folder.mkdir()
    source = llama_folder(folder.parent / "source")
    converted(source, folder / "m.gguf", Kind.F32, split_max_tensors=8)
    return folder / "m-00001-of-00003.gguf"


def test_parts_are_one_model(tmp_path: Path) -> None:
    first = in_parts(tmp_path / "parts")
    source = load_file(tmp_path / "source" / "model.safetensors")
    for path in (first, first.with_name("m-00003-of-00003.gguf"), first.parent, MirrorPlace(first)):
        checkpoint = open_checkpoint(path)
        assert len(checkpoint.files()) == 3
        assert set(checkpoint.names()) == set(source)
        assert all(np.array_equal(values(checkpoint, name), source[name]) for name in source)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_folder_of_parts_is_marked(in_place: bool, tmp_path: Path) -> None:
    first = in_parts(tmp_path / "parts")
    key = Key.new(SMALL)
    with pytest.raises(OutputError, match="one shard of several"):
        neuralmark.embed(first, key, tmp_path / "out.gguf")
    out = None if in_place else tmp_path / "out"
    done = neuralmark.embed(first.parent, key, out, in_place=in_place)
    assert not any("unmarked" in warning for warning in done.warnings)
    marked = first.parent if in_place else tmp_path / "out"
    assert neuralmark.verify(marked / first.name, key, claim=done.claim).matched == 256


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    first = in_parts(tmp_path / "parts")
    second = first.with_name("m-00002-of-00003.gguf")
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(MalformedError, match=r"00002-of-00003\.gguf of its model is missing"):
        open_checkpoint(first)
    second.write_bytes(first.read_bytes())
    with pytest.raises(MalformedError, match="does not say that it is part 2 of 3"):
        open_checkpoint(first)
    second.write_bytes(kept)
    first.rename(first.with_name("renamed.gguf"))
    with pytest.raises(MalformedError, match="not named so") as caught:
        open_checkpoint(first.with_name("renamed.gguf"))
    one_line(caught.value)


def test_a_part_less(tmp_path: Path) -> None:
    first = in_parts(tmp_path / "parts")
    data = first.read_bytes()
    key = b"split.tensors.count"
    at = data.index(key) + len(key) + 4
    first.write_bytes(data[:at] + struct.pack("<i", 99) + data[at + 4 :])
    with pytest.raises(MalformedError, match="and it says 99"):
        open_checkpoint(first)


def test_the_same_tensor_in_two_parts(tmp_path: Path) -> None:
    first = in_parts(tmp_path / "parts")
    second = first.with_name("m-00002-of-00003.gguf")
    here, there = ([t.name for t in read_header(part).tensors] for part in (first, second))
    one, two = next((a, b) for a in here for b in there if len(a) == len(b))
    second.write_bytes(second.read_bytes().replace(two.encode(), one.encode()))
    with pytest.raises(MalformedError, match="a second time"):
        open_checkpoint(first)


def test_a_folder_of_several_models_is_ambiguous(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        save(tmp_path / name, {"w": gaussian(4, 8)})
    with pytest.raises(AmbiguousFolderError, match=r"a\.gguf and b\.gguf: name one"):
        open_checkpoint(tmp_path)
    (tmp_path / "b.gguf").unlink()
    assert open_checkpoint(tmp_path).format == "folder of gguf"


def test_a_gguf_beside_the_model_is_not_published_unmarked(tmp_path: Path) -> None:
    folder = llama_folder(tmp_path / "llama")
    converted(folder, folder / "llama-q8.gguf", Kind.Q8_0)
    with pytest.raises(OutputError, match=r"llama-q8\.gguf would be published without the mark"):
        neuralmark.embed(folder, Key.new(SMALL), tmp_path / "out")
    done = neuralmark.embed(folder, Key.new(SMALL), in_place=True)
    assert any(warning.startswith("llama-q8.gguf") for warning in done.warnings)


def test_inspect_shows_how_tensors_are_stored(tmp_path: Path) -> None:
    _, path = twin(tmp_path, Kind.Q6_K)
    shown = call("inspect", path, "--json").json
    rows = {row["name"]: row for row in shown["rows"]}
    assert shown["format"] == "gguf"
    assert rows["model.layers.0.self_attn.q_proj.weight"]["dtype"] == "Q6_K"
    assert rows["model.norm.weight"]["dtype"] == "F32"
    assert "Q6_K" in call("inspect", path).out


# malformed files


def small(tmp_path: Path) -> tuple[Path, bytes]:
    path = save(tmp_path / "m.gguf", {"abcd": gaussian(8, 8), "efgh": gaussian(8, 8)})
    return path, path.read_bytes()


def test_other_versions_and_byte_orders(tmp_path: Path) -> None:
    path, data = small(tmp_path)
    for version in (0, 1, 4, 77):
        path.write_bytes(data[:4] + struct.pack("<I", version) + data[8:])
        with pytest.raises(UnknownFormatError, match=f"version {version}, and 2 and 3 are read"):
            open_checkpoint(path)
    save(tmp_path / "big.gguf", {"w": gaussian(8, 8)}, endianess=gguf.GGUFEndian.BIG)
    with pytest.raises(UnknownFormatError, match="big-endian GGUF file") as caught:
        open_checkpoint(tmp_path / "big.gguf")
    assert "gguf-convert-endian" in one_line(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"efgh", b"abcd", "two tensors named 'abcd'"),
        (b"efgh", b"ef\xffh", "name of a tensor is not text"),
        (b"general.architecture", b"general.\xffrchitecture", "name of a field is not text"),
        (struct.pack("<Q4s", 4, b"efgh"), struct.pack("<Q4s", 1 << 40, b"efgh"), "over 1,024"),
        (struct.pack("<4sI", b"efgh", 2), struct.pack("<4sI", b"efgh", 5), "5 dimensions, over 4"),
        (struct.pack("<4sIQ", b"efgh", 2, 8), struct.pack("<4sIQ", b"efgh", 2, 9), "ends at byte"),
        (struct.pack("<4sIQQIQ", b"efgh", 2, 8, 8, 0, 256),
         struct.pack("<4sIQQIQ", b"efgh", 2, 8, 8, 0, 224), "overlaps another tensor"),
        (struct.pack("<4sIQQIQ", b"efgh", 2, 8, 8, 0, 256),
         struct.pack("<4sIQQIQ", b"efgh", 2, 8, 8, 0, 257), "at a multiple of 32"),
        (struct.pack("<4sIQQI", b"efgh", 2, 8, 8, 0),
         struct.pack("<4sIQQI", b"efgh", 2, 8, 8, 8), "no whole blocks of Q8_0"),
        (struct.pack("<4sIQQ", b"efgh", 2, 8, 8),
         struct.pack("<4sIQQ", b"efgh", 2, 1 << 40, 1 << 40), "elements"),
        (struct.pack("<IQ4s", 8, 4, b"none"), struct.pack("<IQ4s", 99, 4, b"none"), "type 99"),
        (struct.pack("<QQ", 2, 1), struct.pack("<QQ", 2, 1 << 20), "1,048,576 fields"),
        (struct.pack("<QQ", 2, 1), struct.pack("<QQ", 1 << 30, 1), "1,073,741,824 tensors"),
    ],
)  # fmt: skip
def test_malformed_headers(old: bytes, new: bytes, words: str, tmp_path: Path) -> None:
    path, data = small(tmp_path)
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))
    with pytest.raises(MalformedError, match=words) as caught:
        open_checkpoint(path)
    one_line(caught.value)


def fields_of(path: Path, *fields: bytes) -> Path:
    """A file without tensors and with these fields, as bytes."""
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + b"".join(fields))
    return path


def field(key: bytes, kind: int, rest: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + rest


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([field(b"a", 4, bytes(4))] * 2, "the field 'a' twice"),
        ([field(b"a", 9, struct.pack("<IQ", 9, 1))], "list of the unknown type 9"),
        ([field(b"a", 9, struct.pack("<IQ", 8, 1 << 50))], "words in lists"),
        ([field(b"a", 9, struct.pack("<IQ", 8, 3) + bytes(8))], "cut off"),
        ([field(b"a", 9, struct.pack("<IQ", 4, 1 << 50))], "cut off"),
        ([field(b"a", 8, struct.pack("<Q", 1 << 60))], "cut off"),
        ([field(b"general.alignment", 4, struct.pack("<I", 0))], "alignment '0' is none"),
        ([field(b"general.alignment", 4, struct.pack("<I", 12))], "alignment '12' is none"),
        ([field(b"general.alignment", 6, struct.pack("<f", 0.5))], "alignment '0.5' is none"),
    ],
)
def test_malformed_fields(fields: list[bytes], words: str, tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match=words) as caught:
        open_checkpoint(fields_of(tmp_path / "m.gguf", *fields))
    one_line(caught.value)


def test_experts_beyond_measure_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuralmark.checkpoints.gguf.MAX_TENSORS", 3)
    monkeypatch.setattr(gguf_header, "MAX_TENSORS", 3)
    path = save(tmp_path / "m.gguf", {"blk.0.ffn_up_exps.weight": gaussian(4, 2, 2)}, "qwen3moe")
    with pytest.raises(MalformedError, match="over 3 tensors"):
        open_checkpoint(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    raw = gguf.quants.quantize(gaussian(64, 64), Kind.Q8_0)
    arrays = {"blk.0.ffn_up.weight": raw, "output_norm.weight": gaussian(64)}
    path = save(tmp_path / "m.gguf", arrays, "gemma", {"blk.0.ffn_up.weight": Kind.Q8_0})
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:200])
    for name in checkpoint.names():
        with pytest.raises(NeuralMarkError, match="ends inside"):
            values(checkpoint, name)


def test_a_scale_that_is_gone(tmp_path: Path) -> None:
    arrays: dict[str, npt.NDArray[Any]] = {"a.weight": blocks(Kind.NVFP4, 2, 64)}
    arrays["a.scale"] = np.ones(1, np.float32)
    path = save(tmp_path / "m.gguf", arrays, kinds={"a.weight": Kind.NVFP4})
    checkpoint = open_checkpoint(path)
    at = next(each.offset for each in read_header(path).tensors if each.name == "a.scale")
    path.write_bytes(path.read_bytes()[:at])
    with pytest.raises(MalformedError, match="ends inside the scale"):
        values(checkpoint, "a.weight")


def test_where_tensors_lie(tmp_path: Path) -> None:
    """Of quantised and shifted ones too: they do not overlap, and none is tied to another."""
    arrays = {"blk.0.ffn_up.weight": gguf.quants.quantize(gaussian(64, 64), Kind.Q8_0)}
    arrays["output_norm.weight"] = gaussian(64)
    path = save(tmp_path / "m.gguf", arrays, "gemma", {"blk.0.ffn_up.weight": Kind.Q8_0})
    checkpoint = open_checkpoint(path)
    names = checkpoint.names()
    assert [checkpoint.span(name).nbytes for name in names] == [64 * 64 // 32 * 34, 64 * 4]
    assert checkpoint.overlap(names) is None
    assert checkpoint.tied() == set()


def test_a_header_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path, data = small(tmp_path)

    class Shrinking(MirrorPlace):
        def size(self) -> int:
            return len(data)

    path.write_bytes(data[:60])
    with pytest.raises(MalformedError, match="cut off"):
        open_checkpoint(Shrinking(path))
