"""Runs that nobody trained: plausible numbers for tables, figures and the page."""

import json
from pathlib import Path

import numpy as np

from funcl.evaluate.history import History

TASKS = ["0/1", "2/3", "4/5", "6/7", "8/9"]


def history(
    *, loss=0.002, seeds=3, tasks=TASKS, method="sfsvi", variant=None, diverged=(), **about
) -> History:
    """A history whose tasks lose `loss` of their accuracy with every later task."""
    random = np.random.default_rng(0)
    number = len(tasks)
    about = {
        "sequence": "split-mnist", "heads": "multi", "scenario": "task-incremental",
        "split": "test", "data_seed": 0,
        "seconds": {"train": 41.2, "compile": 9.7, "evaluate": 1.9},
        "settings": {"method": {"prior_variance": 0.001}},
    } | about  # fmt: skip
    made = History.blank(tasks=tasks, seeds=range(seeds), method=method, variant=variant, **about)
    age = np.subtract.outer(np.arange(number), np.arange(number)).astype(float)
    age[age < 0] = np.nan
    noise = random.normal(0, 0.001, (seeds, number, number))
    accuracy = np.clip(0.996 - loss * age + noise, 0, 1)
    bins = np.zeros((seeds, number, 15, 3))
    share = np.concatenate([np.zeros(7), [2, 3, 5, 8, 12, 20, 60, 1890]])
    bins[..., 0] = share
    bins[..., 1] = share * (np.arange(15) + 0.5) / 15
    bins[..., 2] = bins[..., 1] * (0.97 - 3 * loss)
    for seed in diverged:
        made.diverged[seed] = "task 3 (4/5), step 1,200"
        accuracy[seed, 2:] = np.nan
        bins[seed] = np.nan
    made.accuracy[:] = accuracy
    made.nll[:] = 1.5 * (1 - accuracy)
    made.brier[:] = 1.6 * (1 - accuracy)
    made.ece[:] = 0.4 * (1 - accuracy)
    made.entropy[:] = 0.02 + 0 * accuracy
    made.bins[:] = bins
    return made


def folder(path: Path, made: History, *, published=(), log=True, **info) -> Path:
    """Write a run folder around a history."""
    path.mkdir(parents=True)
    made.save(path / "history.json")
    run = {
        "schema": 1, "sequence": made.sequence, "method": made.method, "variant": made.variant,
        "preset": True, "heads": made.heads, "scenario": made.scenario,
        "settings": {
            "network": {"kind": "MLP", "hidden": [256, 256], "activation": "relu"},
            "method": {"prior_variance": 0.001 if made.method == "sfsvi" else 1.0, "coreset": 40},
            "training": {"epochs": 60, "batch_size": 128, "learning_rate": 0.0005},
        },
        "seeds": made.seeds, "data_seed": made.data_seed, "tasks": made.tasks,
        "command": "funcl run split-mnist --method sfsvi --seeds 3", "commit": "0123abc",
        "hardware": "2 cores", "versions": {"funcl": "0.1.0", "jax": "0.10.2"},
        "precision": "float32", "peak_memory": 812_000_000,
        "seconds": {**made.seconds, "total": 55.0},
        "diverged": {str(seed): where for seed, where in made.diverged.items()},
        "published": list(published), "status": "done",
    } | info  # fmt: skip
    (path / "run.json").write_text(json.dumps(run))
    if log:
        lines = [
            {
                "task": task, "phase": "fit", "step": step, "steps": 2000,
                "loss": [0.9 / (1 + step / 200) + 0.02 * task + 0.01 * seed for seed in made.seeds],
                "penalty": [0.1] * 3, "accuracy": [0.98] * 3, "seconds": 0.3,
            }
            for task in range(1, len(made.tasks) + 1)
            for step in range(100, 2001, 100)
        ]  # fmt: skip
        (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
