"""The data sets that live in files: what they hold, where they are kept, where they come from."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The four files of the IDX format under the names that all of MNIST's family use.
IDX_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


@dataclass(frozen=True)
class Dataset:
    """A data set of images and labels, and how to know it.

    `arrays` holds the sha256 of the bytes of each array in the original order. `rows` holds,
    for "train" and "test", a digest that does not depend on the order: the sha256 over the
    sorted sha256 digests of all rows, a row being its label's byte and then its image's.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    arrays: dict[str, str]
    rows: dict[str, str]
    folders: tuple[str, ...]
    mirrors: tuple[str, ...]

    @property
    def archive(self) -> str:
        """The name of the .npz file that holds all four arrays."""
        return f"{self.name}.npz"


IMAGE_SHAPES = {
    "x_train": (60_000, 28, 28),
    "y_train": (60_000,),
    "x_test": (10_000, 28, 28),
    "y_test": (10_000,),
}

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="mnist",
            shapes=IMAGE_SHAPES,
            arrays={
                "x_train": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                "y_train": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
                "x_test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                "y_test": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
            },
            rows={
                "train": "3655811c0e1223700a4714a92a51f55bd215ed7dc1fa2baa4326a2b58042d82d",
                "test": "634538fb34c5277fce98470b8b285d1e8419eb87f328da42ef1faf690d2c3911",
            },
            folders=("mnist", "MNIST/raw", "."),
            mirrors=(
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ),
        ),
        Dataset(
            name="fashion_mnist",
            shapes=IMAGE_SHAPES,
            arrays={
                "x_train": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "y_train": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "x_test": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "y_test": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            },
            rows={
                "train": "0c69d5cdeb902b69084012f812f066de080317bb3c64f43ca87f910d8ec86906",
                "test": "90c92c0507755a7d443edde8297ce4d0f131e42884e2e87e7fc9b81ffe215258",
            },
            folders=("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "."),
            mirrors=(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
        ),
    )
}


def shared_folders() -> list[Path]:
    """Return the folders where other programs may have put a data set already."""
    home = _home()
    return [
        Path("data"),  # torchvision, by its own examples
        home / "data",
        home / "datasets",
        Path(os.environ.get("KERAS_HOME") or home / ".keras") / "datasets",
        Path("/usr/share/datasets"),  # Debian's dataset-fashion-mnist
    ]


def candidates(dataset: Dataset, folder: Path) -> Iterator[dict[str, Path]]:
    """Yield the copies of a data set in a folder: the file of each array, one .npz or four IDX.

    A copy may be short of files. IDX files that lie in the folder itself may belong to another
    set, for their names are the same.
    """
    # os.path, and not Path, answers "no" where a folder may not be read.
    if os.path.isfile(folder / dataset.archive):
        yield dict.fromkeys(IDX_FILES, folder / dataset.archive)
    for inner in dataset.folders:
        present = {}
        for array, stem in IDX_FILES.items():
            for name in (stem, f"{stem}.gz"):
                if os.path.isfile(folder / inner / name):
                    present.setdefault(array, folder / inner / name)
        if present:
            yield present


def _home() -> Path:
    return Path(os.path.expanduser("~"))
