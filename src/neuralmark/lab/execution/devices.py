"""Where a run computes: the processor, or one of the machine's GPUs."""

from typing import TYPE_CHECKING, Final, Literal, get_args

from neuralmark.errors import ParameterError

if TYPE_CHECKING:
    import torch

Device = Literal["auto", "cpu", "cuda"]
AUTO: Final = "auto"
CPU: Final = "cpu"
CUDA: Final = "cuda"
DEVICES: tuple[Device, ...] = get_args(Device)


def device_for(run: str, wanted: Device) -> "torch.device":
    """The device of a run; where there are several GPUs, the run's name says which.

    On a GPU cuDNN is held to deterministic kernels; others (attention) may still differ a little
    from one time to the next.
    """
    import torch

    if wanted not in DEVICES:
        raise ParameterError(f"device must be one of {', '.join(DEVICES)}, not {wanted!r}")
    there = torch.cuda.is_available()
    if wanted == CUDA and not there:
        raise ParameterError("torch finds no GPU here: use device='cpu', or a CUDA build of torch")
    if wanted == CPU or not there:
        return torch.device(CPU)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return torch.device(CUDA, int(run, 16) % torch.cuda.device_count())


def name_of(device: "torch.device") -> str:
    """As it stands in a row."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == CUDA else device.type
