"""CIFAR-10, in the files for Python."""

from neuralmark.zoo.fetching import Archive
from neuralmark.zoo.sets._cifar import Cifar


class Cifar10(Cifar):
    """Ten classes."""

    name = "cifar10"
    title = "CIFAR-10"
    folders = ("cifar-10-batches-py",)
    layout = "cifar-10-batches-py/data_batch_1 to data_batch_5 and test_batch"
    archive = Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
    )
    mean = (0.4914, 0.4822, 0.4465)
    deviation = (0.2470, 0.2435, 0.2616)

    classes = 10
    label = "labels"
    train = tuple(f"data_batch_{number}" for number in range(1, 6))
    test = "test_batch"
