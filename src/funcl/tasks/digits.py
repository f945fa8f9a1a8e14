"""Small handwritten digits that ship with the package: 1,797 images of 8 x 8 pixels, 0 to 16."""

from importlib.resources import files

import numpy as np

from funcl.tasks import images
from funcl.tasks.sequence import TaskSequence

SCALE = 1 / 16


def arrays() -> images.Arrays:
    """Read the digits; every fifth image of a class, in the order of the file, is a test image."""
    with (
        (files("funcl.tasks") / "digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        x, y = archive["x"], archive["y"]
    test = np.zeros(len(y), bool)
    for digit in range(10):
        test[np.flatnonzero(y == digit)[4::5]] = True
    return {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}


def split(*, heads: str, data_seed: int) -> TaskSequence:
    """Cut the digits into five tasks of two: (0, 1), (2, 3), ..."""
    return images.split(arrays(), heads=heads, data_seed=data_seed, scale=SCALE)


def permute(*, data_seed: int) -> TaskSequence:
    """Show all digits in each of ten tasks, under a permutation of the pixels of its own."""
    return images.permute(arrays(), data_seed=data_seed, scale=SCALE)
