import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from made_up import TASKS, folder, history

from funcl.errors import FunclError
from funcl.report import charts, write_report

PUBLISHED = [{"mean": 99.54, "standard_error": 0.04, "source": "Rudner et al. 2022, Table 1"}]


class Outline(HTMLParser):
    """Collects every attribute that names a resource, the text, and the elements left open."""

    def __init__(self):
        super().__init__()
        self.resources, self.text, self.inside, self.open = [], [], None, []

    def handle_starttag(self, tag, attrs):
        self.resources += [value for name, value in attrs if name in ("src", "href", "data")]
        self.inside = tag
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.inside = None

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.text.append(data)


def outline(path):
    parsed = Outline()
    parsed.feed(path.read_text())
    assert parsed.open == []
    return parsed.resources, " ".join(" ".join(parsed.text).split())


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    lost = history(method="vcl", variant="k-center", loss=0.03, diverged=[1])
    runs = [folder(root / "a", history(), published=PUBLISHED), folder(root / "b", lost)]
    write_report(runs, root / "report.html")
    return root / "report.html"


def specs(path):
    found = re.search(r"^const specs = (.*);$", path.read_text(), re.MULTILINE)
    assert found
    return json.loads(found.group(1))


def test_the_page_loads_nothing(page):
    resources, _ = outline(page)
    assert resources == []
    text = page.read_text()
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(http" not in text
    assert text.count("window.vegaEmbed=") == 1
    assert len(text) < 1_500_000


def test_the_page_holds_the_numbers(page):
    _, text = outline(page)
    for expected in (
        "split-mnist, task-incremental, multi head, 5 tasks",
        "99.27 ± 0.02", "published 99.54 ± 0.04 % (Rudner et al. 2022, Table 1)", "2 of 3 seeds",
        "vcl k-center: seed 1 diverged at task 3 (4/5), step 1,200 and is left out.",
        "method.prior_variance", "training.epochs", "0123abc", "float32", "774 MiB", "41.2 s",
        "0.10.2", "Calibration", "Training", *TASKS,
    ):  # fmt: skip
        assert expected in text


def test_every_chart_has_data_and_a_table(page):
    charts_there = specs(page)
    text = page.read_text()
    assert len(charts_there) == 6  # accuracy, two matrices, tasks, calibration, training
    assert text.count('class="chart"') == text.count("<details") == 6
    for spec in charts_there:
        parts = [spec, *spec["layer"]]
        assert any(len(part["data"]["values"]) > 1 for part in parts if "data" in part)
        assert "$schema" not in spec


def test_names_are_escaped(tmp_path):
    evil = history(tasks=["</script><b>", "<img src=x>", "a & b"], method="<i>m</i>")
    write_report([folder(tmp_path / "a", evil, log=False)], tmp_path / "page.html")
    resources, text = outline(tmp_path / "page.html")
    assert resources == []
    assert "</script><b>" in text
    assert specs(tmp_path / "page.html")[0]


def test_pages_of_odd_runs(tmp_path):
    early = history(method="ewc")
    for name in ("accuracy", "nll", "brier", "ece", "entropy"):
        getattr(early, name)[:, 1:] = float("nan")
    runs = [
        folder(tmp_path / "early", early, status="running", peak_memory=None),
        folder(tmp_path / "lost", history(method="si", seeds=2, diverged=[0, 1]), log=False),
        folder(
            tmp_path / "other", history(sequence="omniglot", tasks=[f"a{i}" for i in range(30)])
        ),
        folder(tmp_path / "one", history(seeds=1, heads="single", scenario="class-incremental")),
    ]
    write_report(runs, tmp_path / "page.html")
    _, text = outline(tmp_path / "page.html")
    assert "ewc: the run is not finished" in text
    assert "after 1 of 5 tasks" in text
    assert "every seed diverged" in text
    assert "one seed, so no standard error" in text
    assert "omniglot, task-incremental, multi head, 30 tasks" in text


def test_training_curves_join_tasks_and_skip_lost_seeds():
    log = [
        {"task": 1, "phase": "fit", "step": 5, "steps": 10, "loss": [1.0, float("nan")]},
        {"task": 1, "phase": "fit", "step": 10, "steps": 10, "loss": [1.0, 3.0]},
        {"task": 2, "phase": "fit", "step": 5, "steps": 20, "loss": [None, None]},
        {"task": 2, "phase": "fit", "step": 20, "steps": 20, "loss": [0.5, 0.5]},
    ]
    points = [(point["step"], point["loss"]) for point in charts.training_curve(log)]
    assert points == [(5, 1.0), (10, 2.0), (30, 0.5)]


def test_mistakes_get_one_sentence(tmp_path):
    with pytest.raises(FunclError, match="at least one run folder"):
        write_report([], tmp_path / "page.html")
    run = folder(tmp_path / "a", history())
    with pytest.raises(FunclError, match="could not be written"):
        write_report([run], tmp_path / "no folder" / "page.html")


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no chromium: the charts are not drawn here")
def test_a_browser_draws_every_chart(page, tmp_path):
    assert BROWSER
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update",
        f"--user-data-dir={tmp_path}", "--virtual-time-budget=8000", "--dump-dom",
    ]  # fmt: skip
    drawn = subprocess.run(
        [BROWSER, *options, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert drawn.count('class="marks"') == 6
    assert ">This chart failed" not in drawn
