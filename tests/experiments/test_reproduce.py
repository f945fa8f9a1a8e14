from dataclasses import replace

import numpy as np
import pytest

from funcl import tasks
from funcl.errors import FunclError
from funcl.experiments.reproduce import (
    Case,
    Deadline,
    Measurer,
    measured_tables,
    names,
    plan,
    reproduce,
)
from funcl.experiments.results import read_result
from funcl.experiments.store import Store
from funcl.experiments.toy import draw_toy, grid, shown_points
from funcl.memory.context import Coreset, Noise
from funcl.networks import MLP
from funcl.train.run import Runner
from funcl.train.training import SOURCES, Seeds


def test_table_1_has_every_run_of_the_paper_that_there_is_a_preset_for():
    runs = {(run.sequence, run.method, run.variant) for run in plan("table1")}
    assert runs == {
        *(("split-mnist", "sfsvi", v) for v in (None, "larger", "no-coreset")),
        *(("split-fashion", "sfsvi", v) for v in (None, "larger", "no-coreset")),
        *(("permuted-mnist", "sfsvi", v) for v in (None, "larger", "no-coreset", "minimal")),
        *(
            ("split-mnist-sh", "sfsvi", v)
            for v in (None, "larger", "no-coreset", "minimal", "minimal-one")
        ),
    }
    assert all(run.is_preset for run in plan("table1"))


def test_a_plan_is_narrowed_down():
    assert [run.name for run in plan("table1", only="split-mnist", variant="none")] == [
        "split-mnist sfsvi"
    ]
    assert {run.sequence for run in plan("table1", variant="minimal")} == {
        "permuted-mnist",
        "split-mnist-sh",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table11",), "did you mean 'table1'"),
        (("table1", "split-mnits"), "did you mean 'split-mnist'"),
        (("table1", None, "sfsv"), "did you mean 'sfsvi'"),
        (("table1", "split-mnist", None, "minimal"), "'minimal' is no known variant in table1"),
    ],
)
def test_unknown_names_are_refused(arguments, message):
    with pytest.raises(FunclError, match=message):
        plan(*arguments)


def test_the_published_numbers_stand_in_the_table_before_anything_is_measured(tmp_path):
    tables = measured_tables("table1", tmp_path)
    assert len(tables) == 4
    labels = [label for label, _ in tables[0].rows]
    assert labels == [
        *("EWC", "SI", "VCL", "VCL (no coreset)", "FRCL", "FROMP"),
        *("S-FSVI (ours)", "S-FSVI (larger networks)", "S-FSVI (no coreset)"),
    ]
    assert set(names()) == {"table1", "toy2d", "digits"}


def test_a_deadline_leaves_room_for_the_next_chunk(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    deadline = Deadline(10.0)
    answers = []
    for moment in (4.0, 5.0, 7.0, 7.5, 7.7):  # compiling takes 4, the longest chunk 2
        now[0] = moment
        answers.append(deadline())
    assert answers == [False, False, False, False, True]
    assert not deadline.leaves_time()
    now[0] = 5.9
    assert deadline.leaves_time()
    assert not Deadline(None)()


@pytest.fixture(scope="module")
def tiny():
    runs = [Case.preset("split-digits", method) for method in ("finetune", "joint")]
    return [
        replace(run, network=MLP([8]), training=replace(run.training, epochs=epochs, chunk=5))
        for run, epochs in zip(runs, (2, 1), strict=True)
    ]


def bench(folder, seeds=2, **options):
    return Measurer(seeds, Store(folder / "store"), folder / "results", **options)


def test_cells_are_measured_kept_and_extended(tiny, tmp_path):
    events = []
    first = bench(tmp_path, on_event=events.append, together=1)
    status = first.measure(tiny)
    assert [s.done for s in status] == [(0, 1), (0, 1)]
    assert all(s.left == () and s.seconds_left == 0.0 for s in status)
    # Every run's first seed before any second one, the cheaper run before the other.
    done = [(e.case.method, e.seeds) for e in events if e.kind == "done"]
    assert done == [("joint", (0,)), ("finetune", (0,)), ("joint", (1,)), ("finetune", (1,))]
    value = read_result(tmp_path / "results" / "split-digits" / "finetune.json")
    assert (value["seeds"], value["preset"], value["seeds_together"]) == ([0, 1], False, 1)
    assert value["settings"]["network"]["hidden"] == [8]
    assert np.isfinite(np.array(value["matrix"], float)[np.tril_indices(5)]).all()

    again = bench(tmp_path, seeds=3, on_event=events.append, together=1)
    before = len(events)
    status = again.measure(tiny[:1])
    assert {e.seeds for e in events[before:]} == {(2,)}
    value = read_result(tmp_path / "results" / "split-digits" / "finetune.json")
    assert value["seeds"] == [0, 1, 2]
    # Asking for fewer seeds keeps what is known.
    bench(tmp_path, seeds=1).measure(tiny[:1])
    assert read_result(tmp_path / "results/split-digits/finetune.json")["seeds"] == [0, 1, 2]


def test_a_budget_ends_between_chunks_and_says_what_is_left(tiny, tmp_path, monkeypatch):
    events = []
    # The third question is answered with "stop".
    asked = iter([False, False, True])
    monkeypatch.setattr(Deadline, "__call__", lambda self: next(asked))
    (status,) = bench(tmp_path, seeds=1, on_event=events.append).measure(tiny[:1])
    assert [event.kind for event in events].count("progress") >= 2
    assert events[-1].kind == "paused"
    assert (status.done, status.left) == ((), (0,))
    assert status.seconds_left > 0
    monkeypatch.undo()
    before = len(events)
    (status,) = bench(tmp_path, seeds=1, on_event=events.append).measure(tiny[:1])
    assert (status.done, status.left) == ((0,), ())
    assert events[before + 1].snapshot.stage == 1


def test_impossible_numbers_are_refused(tmp_path):
    with pytest.raises(FunclError, match="budget must be a positive time"):
        Deadline(0)
    with pytest.raises(FunclError, match="At least one seed goes"):
        bench(tmp_path, together=0)


def test_reproduce_writes_results_page_and_table(tmp_path, monkeypatch, tiny):
    from funcl.experiments import reproduce as module

    monkeypatch.setattr(module, "plan", lambda *arguments: tiny[:1])
    report = reproduce(
        "digits", only="split-digits", seeds=1, store=tmp_path / "store",
        results=tmp_path / "results", docs=tmp_path / "docs",
    )  # fmt: skip
    assert report.complete
    assert [path.name for path in report.files] == ["finetune.json", "results.md"]
    (table,) = report.tables
    assert [label for label, _ in table.rows] == ["fine-tuning"]
    assert "settings differ" in (tmp_path / "docs" / "results.md").read_text()


def test_the_toy_grid_reaches_as_far_as_published():
    points = shown_points(tasks.load("toy2d"))
    assert [len(positions) for positions, _ in points] == [100] * 5
    positions = points[0][0]
    x, y = grid(positions)
    assert x[0] == pytest.approx(positions[:, 0].min() - 1)
    assert x[-1] < positions[:, 0].max() + 3 <= x[-1] + 0.25
    assert y[-1] < positions[:, 1].max() + 1.5 <= y[-1] + 0.25


def test_the_toy_figure_is_drawn_over_kept_states(tmp_path):
    run = Case.preset("toy2d", "sfsvi")
    method = replace(
        run.method_value, draws=1, context=Coreset(2), own_context=None, first_context=Noise(2)
    )
    training = replace(run.training, epochs=1)
    runner = Runner(
        tasks.load("toy2d").first(2), MLP([4]), method, training, Seeds.of(1, SOURCES, 0)
    )
    path = tmp_path / "figures" / "toy2d.png"
    assert not draw_toy(runner, Store(tmp_path), path, 0, stop=lambda: True)
    assert not path.exists()
    assert draw_toy(runner, Store(tmp_path), path, 0)
    assert path.read_bytes().startswith(b"\x89PNG")
