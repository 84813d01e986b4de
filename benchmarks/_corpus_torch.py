"""Small files of the formats around torch, as seeds for fuzzing: run in a process of its own.

    python -m benchmarks._corpus_torch FOLDER

torch and onnx would hide the memory that the readers take. The same bytes every time.
"""

import os
import sys
import uuid
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

State = dict[str, torch.Tensor]


class Layers(nn.Module):
    """Two layers and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both, one after the other."""
        given: torch.Tensor = self.second(self.norm(torch.relu(self.first(x))))
        return given


def exported(model: nn.Module) -> None:
    """A program, TorchScript, and TorchScript frozen."""
    x = torch.ones(2, 12)
    torch.export.save(torch.export.export(model, (x,)), "program.pt2")
    torch.jit.script(model).save("script.pt")
    torch.jit.freeze(torch.jit.script(model)).save("frozen.pt")


def optimizer(state: State) -> None:
    """Nothing but float32 copies, and their moments."""
    groups = [{"params": [0, 1], "param_names": list(state)[:2]}]
    inner = {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": groups}
    masters = [list(state.values())[:2]]
    torch.save({"optimizer": {"optimizer": inner, "fp32_from_fp16_params": masters}}, "optim.pt")


def distributed(state: State) -> None:
    """A checkpoint of torch.distributed."""
    with mock.patch.object(uuid, "uuid4", return_value=uuid.UUID(int=7)):
        save({"model": state, "step": 3}, checkpoint_id="dcp", no_dist=True)


def zero(state: State) -> None:
    """Two processes of DeepSpeed's stage 2."""
    folder = Path("zero")
    folder.mkdir()
    flat = torch.cat([tensor.reshape(-1) for tensor in state.values()])
    halves = nn.functional.pad(flat, (0, -len(flat) % 4)).chunk(2)
    shapes = [{name: tensor.shape for name, tensor in state.items()}]
    states = {"module": {}, "buffer_names": [], "param_shapes": shapes, "shared_params": {}}
    torch.save(states, folder / "mp_rank_00_model_states.pt")
    for rank, half in enumerate(halves):
        kept = {
            "zero_stage": 2,
            "partition_count": 2,
            "single_partition_of_fp32_groups": [half.clone()],
        }
        file = folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": kept}, file)


def ranks(state: State) -> None:
    """Two processes, each with its DTensors."""
    Path("ranks").mkdir()
    for rank in range(2):
        dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        mesh = init_device_mesh("cpu", (2,))
        mine = {
            name: DTensor.from_local(
                tensor.chunk(2)[rank].clone(),
                mesh,
                [Shard(0)],
                run_check=False,
                shape=tensor.shape,
                stride=tensor.stride(),
            )
            for name, tensor in state.items()
        }
        torch.save(mine, f"ranks/model_rank_{rank}.pt")
        dist.destroy_process_group()


def graphs(state: State) -> None:
    """Graphs: weights as bytes, as lists, quantised, in branches, and in a file beside."""
    weight = state["first.weight"].numpy()
    quantised = (weight * 90).astype(np.int8)
    floats = helper.make_tensor("listed", TensorProto.FLOAT, (3,), [1.0, 2.0, 3.0])
    halves = helper.make_tensor("halves", TensorProto.FLOAT16, (2,), [0.5, 1.5])
    tensors = [
        numpy_helper.from_array(weight.T.copy(), "onnx::MatMul_7"),
        numpy_helper.from_array(quantised, "w_quantized"),
        numpy_helper.from_array(np.full(16, 1 / 90, np.float32), "w_scale"),
        numpy_helper.from_array(np.array(True), "which"),
        *(floats, halves),
    ]
    value = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    branch = helper.make_graph(
        [helper.make_node("Identity", ["b"], ["inner"])],
        "branch",
        [],
        [value],
        [numpy_helper.from_array(weight[:2], "b")],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "onnx::MatMul_7"], ["m"], name="/layers.0/up/MatMul"),
        helper.make_node("DequantizeLinear", ["w_quantized", "w_scale"], ["w"], axis=0),
        helper.make_node("If", ["which"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(weight[:3], "c")),
    ]
    shown = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    taken = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 12))]
    model = helper.make_model(helper.make_graph(nodes, "graph", taken, shown, tensors))
    onnx.save(model, "graph.onnx")
    Path("beside").mkdir()
    onnx.save(
        model,
        "beside/graph.onnx",
        save_as_external_data=True,
        location="graph.data",
        size_threshold=64,
    )


def main(folder: Path) -> None:
    """Write them all."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    torch.manual_seed(0)
    model = Layers().eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    exported(model)
    optimizer(state)
    distributed(state)
    zero(state)
    ranks(state)
    graphs(state)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
