"""Two ways to make a sequence of one set of images: cut it by class, or permute its pixels.

With data_seed 0 rows and permutations are those of the published runs, in the same order.
"""

from dataclasses import replace

import numpy as np

from funcl.tasks.checks import read_only
from funcl.tasks.order import stratified_order
from funcl.tasks.sequence import TaskSequence

Arrays = dict[str, np.ndarray]


def split(
    arrays: Arrays, *, heads: str, data_seed: int, scale: float | None = None
) -> TaskSequence:
    """Cut ten classes into five tasks of two: (0, 1), (2, 3), ...

    The training rows are shuffled once, before they are cut; test rows keep their order.
    """
    y_train, y_test = arrays["y_train"], arrays["y_test"]
    order = stratified_order(y_train, len(y_test), np.random.RandomState(data_seed))
    pairs = [(first, first + 1) for first in range(0, 10, 2)]
    tasks = []
    for pair in pairs:
        train = order[np.isin(y_train[order], pair)]
        test = np.isin(y_test, pair)
        tasks.append(
            (arrays["x_train"][train], y_train[train], arrays["x_test"][test], y_test[test])
        )
    return TaskSequence.from_arrays(
        tasks,
        heads=heads,
        names=[f"{first}/{second}" for first, second in pairs],
        scale=scale,
        data_seed=data_seed,
    )


def permute(
    arrays: Arrays, *, data_seed: int, scale: float | None = None, count: int = 10
) -> TaskSequence:
    """Show all classes in every task, under a permutation of the pixels of its own.

    The first task is permuted too. Rows are shuffled once and are in the same order in all
    tasks: the tasks share their arrays and differ in the permutation alone.
    """
    generator = np.random.RandomState(data_seed)
    order = stratified_order(arrays["y_train"], len(arrays["y_test"]), generator)
    shared = (
        arrays["x_train"][order],
        arrays["y_train"][order],
        arrays["x_test"],
        arrays["y_test"],
    )
    sequence = TaskSequence.from_arrays(
        [shared] * count,
        heads="single",
        names=[f"permutation {number}" for number in range(1, count + 1)],
        scale=scale,
        data_seed=data_seed,
    )
    pixels = shared[0][0].size
    permutations = [generator.permutation(pixels).astype(np.int32) for _ in range(count)]
    tasks = [
        replace(task, permutation=read_only(permutation))
        for task, permutation in zip(sequence, permutations, strict=True)
    ]
    return replace(sequence, tasks=tuple(tasks))
