"""Finished runs, read back from their folders."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from funcl.errors import FunclError
from funcl.evaluate.history import History, read_json

SCHEMA = 1


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder: run.json, history.json, the lines of log.jsonl, and the folder's name."""

    info: dict[str, Any]
    history: History
    log: list[dict[str, Any]]
    name: str = ""

    @property
    def label(self) -> str:
        """The method with its variant."""
        return " ".join(filter(None, [self.history.method, self.history.variant]))

    @property
    def setting(self) -> str:
        """What runs must share to be compared: sequence, scenario, heads, and the split scored."""
        history = self.history
        parts = [history.sequence, history.scenario, f"{history.heads} head"]
        return ", ".join(parts + (["validation split"] if history.split == "validation" else []))


def load_run(folder: str | Path) -> Run:
    """Read a run folder; every failure is one sentence."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FunclError(f"There is no run folder {folder}: check the path.")
    if not (folder / "run.json").is_file():
        raise FunclError(
            f"{folder} is not a run folder (it has no run.json): name the folder that a run wrote."
        )
    info = read_json(folder / "run.json", "run", SCHEMA)
    if not (folder / "history.json").is_file():
        raise FunclError(
            f"The run in {folder} has no history.json yet: let it finish its first task, "
            "or go on with --resume."
        )
    history = History.load(folder / "history.json")
    return Run(info, history, _read_log(folder / "log.jsonl"), folder.resolve().name)


def load_runs(folders: Sequence[str | Path]) -> list[Run]:
    """Read run folders; where one holds a method on every task alone, its runs get to know that."""
    runs = [load_run(folder) for folder in folders]
    return [_with_independent(run, runs) for run in runs]


def _with_independent(run: Run, runs: Sequence[Run]) -> Run:
    for alone in runs:
        settings = {"type": "Separate", "method": run.history.settings.get("method")}
        same = alone.setting == run.setting and alone.history.settings.get("method") == settings
        if same and set(run.history.seeds) <= set(alone.history.seeds):
            return replace(run, history=run.history.with_independent(alone.history))
    return run


def labels(runs: Sequence[Run]) -> list[str]:
    """Return one short name per run: the method, and where that is not enough the folder too.

    Folders of one name are numbered.
    """
    plain = [run.label for run in runs]
    named = [
        f"{label} ({run.name})" if plain.count(label) > 1 and run.name else label
        for label, run in zip(plain, runs, strict=True)
    ]
    return [
        f"{label} #{named[:place].count(label) + 1}" if named.count(label) > 1 else label
        for place, label in enumerate(named)
    ]


def by_setting(runs: Sequence[Run]) -> dict[str, dict[str, Run]]:
    """Group labelled runs by what they must share to be compared, in the order given."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    return {
        setting: dict(zip(labels(group), group, strict=True)) for setting, group in groups.items()
    }


def _read_log(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    log = []
    for number, line in enumerate(lines, start=1):
        try:
            log.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):  # a run that was killed leaves half a line
                break
            raise FunclError(
                f"The log {path} is damaged at line {number} ({error}): restore it or remove it."
            ) from error
    return log
