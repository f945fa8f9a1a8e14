"""Ten Gaussians in the plane, two to a task: the toy sequence whose predictions can be drawn."""

import numpy as np

from funcl.tasks.sequence import TaskSequence

POINTS_PER_GAUSSIAN = 2_000
HELD_OUT = 400

# One row per task, (centre x, centre y, deviation x, deviation y) of class 0 and then of class 1.
GAUSSIANS = np.array(
    [
        [[0.0, 0.2, 0.08, 0.22], [0.45, 0.0, 0.08, 0.16]],
        [[0.6, 0.9, 0.24, 0.08], [0.7, 0.45, 0.16, 0.08]],
        [[1.3, 0.4, 0.04, 0.20], [1.0, 0.1, 0.06, 0.16]],
        [[1.6, -0.1, 0.16, 0.05], [1.7, -0.4, 0.24, 0.05]],
        [[2.0, 0.3, 0.05, 0.16], [2.3, 0.1, 0.05, 0.22]],
    ]
)


def gaussians(*, data_seed: int) -> TaskSequence:
    """Make five tasks of two Gaussians each; a random tenth of each is the test part."""
    generator = np.random.default_rng(data_seed)
    tasks = []
    for components in GAUSSIANS:
        centres, deviations = components[:, None, :2], components[:, None, 2:]
        noise = generator.standard_normal((2, POINTS_PER_GAUSSIAN, 2))
        x = (centres + deviations * noise).reshape(-1, 2).astype(np.float32)
        y = np.repeat([0, 1], POINTS_PER_GAUSSIAN)
        test, train = np.split(generator.permutation(len(x)), [HELD_OUT])
        tasks.append((x[train], y[train], x[test], y[test]))
    return TaskSequence.from_arrays(tasks, heads="single", name="toy2d", data_seed=data_seed)
