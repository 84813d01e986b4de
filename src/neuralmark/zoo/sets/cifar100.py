"""CIFAR-100, in the files for Python; the fine labels."""

from neuralmark.zoo.fetching import Archive
from neuralmark.zoo.sets._cifar import Cifar


class Cifar100(Cifar):
    """A hundred classes."""

    name = "cifar100"
    title = "CIFAR-100"
    folders = ("cifar-100-python",)
    layout = "cifar-100-python/train and test"
    archive = Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
    )
    mean = (0.5071, 0.4865, 0.4409)
    deviation = (0.2673, 0.2564, 0.2762)

    classes = 100
    label = "fine_labels"
    train = ("train",)
    test = "test"
