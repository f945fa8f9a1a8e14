import numpy as np
import pytest
from made_up import history
from matplotlib.text import Text

from funcl.errors import FunclError
from funcl.report import figures


def runs():
    return {"sfsvi": history(), "vcl": history(method="vcl", loss=0.03, diverged=[1])}


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def make(name):
    if name == "accuracy":
        return figures.accuracy_figure(runs())
    if name == "matrix":
        return figures.matrix_figure(history())
    if name == "task":
        published = [{"mean": 99.54, "standard_error": None, "source": "Table 1"}]
        return figures.task_figure(runs(), published)
    if name == "calibration":
        return figures.calibration_figure(runs())
    if name == "toy":
        axis = np.linspace(-1, 1, 5)
        points = [(np.zeros((4, 2)), np.array([0, 1, 0, 1]))] * 2
        return figures.toy_figure(axis, axis, [np.full((5, 5), 0.4)] * 2, points)
    lines = {"step": ([10, 100, 1000], [1.0, 10.0, 100.0])}
    return figures.growth_figure(lines, across="context points", up="milliseconds")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("accuracy", ["sfsvi", "vcl", "tasks learned"]),
        ("matrix", ["after task", "99.6", "8/9"]),
        ("task", ["mean", "99.54  Table 1", "99.27 ± 0.02"]),
        ("calibration", ["sfsvi: ECE 0.29 %"]),
        ("toy", ["after task 2", "probability of class 1"]),
        ("growth", ["step (slope 1.00)", "context points"]),
    ],
)
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_figures_are_drawn_and_labelled(tmp_path, name, shown, ending):
    figure = make(name)
    path = tmp_path / f"{name}.{ending}"
    figures.save(figure, path)
    assert path.stat().st_size > 3000
    assert set(shown) <= set(texts(figure))


def test_the_same_figure_is_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        figures.save(make("accuracy"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(FunclError, match=r"\.png, \.svg or \.pdf"):
        figures.save(make("accuracy"), tmp_path / "a.bmp")


def test_a_run_whose_seeds_all_diverged_shows_nothing():
    lost = history(seeds=2, diverged=[0, 1])
    assert np.isnan(figures.end_of_run(lost)[0]).all()
    assert np.isnan(figures.curve_of_run(lost)[0]).all()
    assert len(figures.reliability(lost)) == 0
    figures.matrix_figure(lost)


def test_reliability_pools_tasks_and_seeds():
    curve = figures.reliability(history(loss=0))
    assert curve[:, 2].sum() == pytest.approx(1)
    np.testing.assert_allclose(curve[:, 0], (np.arange(7, 15) + 0.5) / 15)
    np.testing.assert_allclose(curve[:, 1], 0.97 * curve[:, 0])


def test_no_global_state(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    make("accuracy")
    assert "matplotlib.pyplot" not in sys.modules
