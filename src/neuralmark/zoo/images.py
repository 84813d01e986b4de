"""Images as tensors, and what is done to a batch of them: crops, flips, normalising."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from neuralmark.errors import ParameterError

if TYPE_CHECKING:
    import torch

    from neuralmark.attacks import Data

PADDING = 4


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set in memory: images as uint8 (N, C, H, W), labels as int64.

    Attributes:
        name: Name of the set.
        train_images: Images for training.
        train_labels: Their classes.
        test_images: Images for testing.
        test_labels: Their classes.
        classes: How many classes there are.
        mean: Of the pixels by channel, on a scale from 0 to 1.
        deviation: The same of their deviation.
        padding: How far a random crop may move.
        flip: Whether images may be mirrored at random.
        note: What is not as in the published set, such as '20,000 of 50,000 training images'.
        digest: SHA-256 of all images and labels.

    Examples:
        >>> from neuralmark import zoo
        >>> digits = zoo.data("digits")
        >>> len(digits.train_labels), len(digits.test_labels)
        (1348, 449)
    """

    name: str
    train_images: "torch.Tensor" = field(repr=False)
    train_labels: "torch.Tensor" = field(repr=False)
    test_images: "torch.Tensor" = field(repr=False)
    test_labels: "torch.Tensor" = field(repr=False)
    classes: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    padding: int = PADDING
    flip: bool = True
    note: str = ""
    digest: str = ""

    def to(self, device: "torch.device | str") -> "DataSet":
        """The same data on a device.

        Args:
            device: A torch device, or its name.

        Returns:
            A data set whose tensors are there.

        Examples:
            >>> from neuralmark import zoo
            >>> zoo.data("digits", limit=10).to("cpu").train_images.device
            device(type='cpu')
        """
        moved = {
            name: getattr(self, name).to(device)
            for name in ("train_images", "train_labels", "test_images", "test_labels")
        }
        return replace(self, **moved)

    def augmented(self, index: "torch.Tensor", generator: "torch.Generator") -> "torch.Tensor":
        """Training images, cropped and flipped at random, normalised.

        Args:
            index: Numbers of the images.
            generator: Where all chance comes from.

        Returns:
            The batch as float32.

        Examples:
            >>> import torch
            >>> from neuralmark import zoo
            >>> digits = zoo.data("digits", limit=10)
            >>> digits.augmented(torch.arange(4), torch.Generator()).shape
            torch.Size([4, 1, 8, 8])
        """
        images = augment(self.train_images[index], generator, self.padding, self.flip)
        return normalise(images, self.mean, self.deviation)

    def trained(self, index: "torch.Tensor") -> "torch.Tensor":
        """Training images, normalised only.

        Args:
            index: Numbers of the images.

        Returns:
            The batch as float32.

        Examples:
            >>> import torch
            >>> from neuralmark import zoo
            >>> zoo.data("digits", limit=10).trained(torch.arange(4)).shape
            torch.Size([4, 1, 8, 8])
        """
        return normalise(self.train_images[index], self.mean, self.deviation)

    def tested(self, index: "torch.Tensor") -> "torch.Tensor":
        """Test images, normalised.

        Args:
            index: Numbers of the images.

        Returns:
            The batch as float32.

        Examples:
            >>> import torch
            >>> from neuralmark import zoo
            >>> zoo.data("digits", test_limit=10).tested(torch.arange(4)).shape
            torch.Size([4, 1, 8, 8])
        """
        return normalise(self.test_images[index], self.mean, self.deviation)

    def as_data(self) -> "Data":
        """All of it, normalised, as the attacks take it. Four times as large as the images.

        Returns:
            Labelled examples.

        Examples:
            >>> from neuralmark import zoo
            >>> zoo.data("digits", limit=100).as_data().inputs.shape
            torch.Size([100, 1, 8, 8])
        """
        from neuralmark.attacks import Data

        train = normalise(self.train_images, self.mean, self.deviation)
        test = normalise(self.test_images, self.mean, self.deviation)
        return Data(train, self.train_labels, test, self.test_labels, self.augmented)


def digest_of(name: str, *tensors: "torch.Tensor") -> str:
    """SHA-256 over the name and the shape and content of each tensor."""
    digest = hashlib.sha256(name.encode())
    for tensor in tensors:
        array = tensor.numpy()
        digest.update(f"\n{array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def normalise(
    images: "torch.Tensor", mean: Sequence[float], deviation: Sequence[float]
) -> "torch.Tensor":
    """Pixels from 0 to 255 as float32 around 0, by channel.

    Args:
        images: A batch of images (N, C, height, width).
        mean: Of the pixels by channel, on a scale from 0 to 1.
        deviation: The same of their deviation.

    Returns:
        The batch as float32.

    Raises:
        ParameterError: The images do not have as many channels as the mean.

    Examples:
        >>> import torch
        >>> normalise(torch.zeros(1, 1, 1, 2), mean=[0.5], deviation=[0.25]).tolist()
        [[[[-2.0, -2.0]]]]
    """
    import torch

    if images.dim() != 4 or images.shape[1] != len(mean) or len(mean) != len(deviation):
        raise ParameterError(
            f"images must be (N, {len(mean)}, height, width), not {tuple(images.shape)}"
        )
    scale = torch.tensor([1 / (255 * each) for each in deviation], device=images.device)
    shift = torch.tensor(
        [-m / d for m, d in zip(mean, deviation, strict=True)], device=images.device
    )
    form = (1, -1, 1, 1)
    return torch.addcmul(shift.view(form), images.float(), scale.view(form))


def augment(
    images: "torch.Tensor", generator: "torch.Generator", padding: int = PADDING, flip: bool = True
) -> "torch.Tensor":
    """Crop each image at random from itself with a black border, and mirror every other one.

    The whole batch at once.

    Args:
        images: A batch of images (N, C, height, width).
        generator: Where all chance comes from.
        padding: How far a crop may move.
        flip: Whether images may be mirrored.

    Returns:
        A batch of the same shape.

    Raises:
        ParameterError: It is not a batch of images, or the padding is negative.

    Examples:
        >>> import torch
        >>> batch = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        >>> augment(batch, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 32, 32])
    """
    import torch
    from torch.nn.functional import pad

    if images.dim() != 4:
        raise ParameterError(f"images must be (N, C, height, width), not {tuple(images.shape)}")
    if padding < 0:
        raise ParameterError(f"padding must not be negative: {padding}")
    count, _, height, width = images.shape
    if padding:
        down, right = torch.randint(0, 2 * padding + 1, (2, count), generator=generator)
        windows = pad(images, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
        images = windows[torch.arange(count), :, down, right]
    if flip:
        mirrored = (torch.rand(count, generator=generator) < 0.5).to(images.device)
        images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
    return images
