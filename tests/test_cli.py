"""The command line: what it prints, what it writes, and how it refuses."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from funcl import __version__
from funcl.cli import app
from funcl.commands import demo, run
from funcl.report import load_run

COMMANDS = ("run", "demo", "compare", "report", "reproduce", "bench", "data")
TINY = ["split-digits", "--method", "finetune", "--set", "hidden=8", "--set", "epochs=2"]


def funcl(*arguments, **environment):
    return CliRunner().invoke(
        app, [str(a) for a in arguments], env={"COLUMNS": "100"} | environment
    )


def refused(*arguments, **environment) -> str:
    """The one sentence of a command that is refused."""
    result = funcl(*arguments, **environment)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("funcl: ")
    assert "Traceback" not in result.output
    return line


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    result = funcl("run", *TINY, "--seeds", "2", "--out", folder)
    assert result.exit_code == 0, result.output
    return folder, result


def test_help_needs_neither_jax_nor_matplotlib_and_little_time():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from funcl.cli import app\n"
        f"for command in [[], *([c] for c in {COMMANDS}), ['data', 'fetch']]:\n"
        "    result = CliRunner().invoke(app, [*command, '--help'])\n"
        "    assert result.exit_code == 0 and 'Usage' in result.output\n"
        "for slow in ('jax', 'matplotlib', 'pandas', 'altair', 'numpy'):\n"
        "    assert slow not in sys.modules, slow\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, "-m", "funcl.cli", "--help"], check=True, capture_output=True)
    # Processor time, because the time on the wall depends on what else the machine does.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 0.5


def test_version():
    assert funcl("--version").output == f"funcl {__version__}\n"


def test_a_run_shows_its_way_and_its_result(finished):
    folder, result = finished
    assert "task 5 of 5 (8/9) learned; mean accuracy so far" in result.output
    assert re.search(r"accuracy \(%\) +\d\d\.\d\d ± \d", result.output)
    assert "accuracy (%) on each task, mean over seeds" in result.output
    made = load_run(folder)
    assert made.info["status"] == "done"
    assert made.info["command"].startswith("funcl run split-digits --method finetune")
    assert made.info["preset"] is False
    assert made.info["settings"]["network"]["hidden"] == [8]


def test_resume_of_a_finished_run_shows_it_again(finished):
    folder, _ = finished
    assert "already holds a run" in refused("run", *TINY, "--seeds", 2, "--out", folder)
    again = funcl("run", *TINY, "--seeds", 2, "--out", folder, "--resume")
    assert again.exit_code == 0, again.output
    assert "accuracy (%)" in again.output
    line = refused("run", *TINY, "--seeds", 3, "--out", folder, "--resume")
    assert "seeds ([0, 1] there, [0, 1, 2] here)" in line


def test_compare_and_report(finished, tmp_path):
    folder, _ = finished
    other = tmp_path / "b"
    shutil.copytree(folder, other)
    result = funcl("compare", folder, other)
    assert result.exit_code == 0, result.output
    assert "finetune (a)" in result.output
    assert "finetune (b)" in result.output
    assert "\\begin{tabular}" in funcl("compare", folder, "--format", "latex").output
    page = tmp_path / "report.html"
    assert str(page) in funcl("report", folder, other, "-o", page).output.replace("\n", "")
    assert "<html" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "split-digitz"], "did you mean 'split-digits'?"),
        (["run", "split-digits", "--method", "sfvi"], "did you mean 'sfsvi'?"),
        (["run", "split-digits", "--variant", "huge"], "sfsvi on split-digits has no variants"),
        (["run", "split-digits", "--set", "prior_varience=1"], "did you mean 'prior_variance'?"),
        (["run", "split-digits", "--set", "epochs"], "write --set name=value"),
        (["run", "split-digits", "--set", "epochs=many"], "epochs"),
        (["run", "split-digits", "--set", "prior_variance=-1"], "must be a positive number"),
        (["run", "split-digits", "--set", "coreset_size=10000"], "choose at most"),
        (["run", "split-digits", "--seeds", "0"], "must be a whole number of at least 1"),
        (["run", "split-digits", "--seeds", "3,3"], "must differ"),
        (["run", "split-digits", "--seeds", "few"], "--seeds few cannot be used"),
        (
            ["run", "split-digits", "--vary", "weather"],
            "no known source of randomness",
        ),
        (["run", "split-digits", "--heads", "three"], "three"),
        (["run", "split-digits", "--evaluate", "some"], "did you mean"),
        (["run", "split-mnist", "--data-dir", "/nowhere"], "/nowhere"),
        (["compare", "/nowhere"], "There is no run folder /nowhere"),
        (["compare", "/nowhere", "--format", "latax"], "did you mean 'latex'?"),
        (["report", "/nowhere"], "There is no run folder /nowhere"),
        (["reproduce", "table9"], "did you mean 'table1'?"),
        (["reproduce", "table1", "--budget", "soon"], "--budget soon cannot be used"),
        (["data", "fetch", "mnits"], "did you mean 'mnist'?"),
        (["bench", "split-minst"], "did you mean 'split-mnist'?"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(*arguments)
    assert not list(tmp_path.iterdir())


def test_an_unknown_option_is_exit_code_2():
    result = funcl("run", "split-digits", "--sedes", "3")
    assert result.exit_code == 2
    assert "--sedes" in result.stderr


def test_an_out_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    assert "could not be written" in refused("run", *TINY, "--out", tmp_path / "file" / "run")
    assert "funcl: " in refused("bench", "toy2d", "--out", tmp_path / "file" / "bench")


def test_a_stopped_run_says_how_to_go_on(tmp_path):
    folder = tmp_path / "run"
    long = [*TINY[:-1], "epochs=1000000", "--set", "chunk=50", "--seeds", "1", "--out", folder]
    command = [sys.executable, "-m", "funcl.cli", "run", *map(str, long)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    log = folder / "log.jsonl"
    until = time.monotonic() + 200
    while not (log.is_file() and log.stat().st_size) and time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command with --resume goes on" in out
    assert "Traceback" not in err
    manifest = json.loads((folder / "state" / "manifest.json").read_text())
    assert manifest["payload"]["position"][1] >= 50


def test_double_precision_is_a_setting_like_others(tmp_path):
    # In a process of its own: jax is set up for the whole of it.
    command = [sys.executable, "-m", "funcl.cli", "run", "split-digits", "--method", "finetune"]
    command += ["--set", "precision=float64", "--set", "epochs=1", "--set", "hidden=4"]
    command += ["--seeds", "1", "--out", str(tmp_path / "run")]
    # Integers of both widths then meet, which strict types forbid.
    environment = os.environ | {"JAX_NUMPY_DTYPE_PROMOTION": "standard"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    manifest = (tmp_path / "run" / "state" / "manifest.json").read_text()
    (arrays,) = json.loads(manifest)["files"]
    assert b'"F64"' in (tmp_path / "run" / "state" / arrays).read_bytes()


def test_the_demo_in_small(tmp_path, monkeypatch):
    def small(sequence, method, variant, **options):
        return run.make_runner(
            sequence, method, variant, **options, changes={"hidden": "8", "epochs": "1"}
        )

    monkeypatch.setattr(demo, "make_runner", small)
    monkeypatch.setattr(demo, "METHODS", ("finetune", "finetune", "joint"))
    out = tmp_path / "demo"
    result = funcl("demo", "--seeds", "2", "--out", out)
    assert result.exit_code == 0, result.output
    assert "fine-tuning gets" in result.output
    assert (out / "report.html").is_file()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").touch()
    assert "not a folder of an earlier demo" in refused("demo", "--out", theirs)
    assert list(theirs.iterdir()) == [theirs / "thesis.tex"]


def test_data_list_and_verify(tmp_path):
    environment = {"FUNCL_DATA": "", "FUNCL_CACHE": str(tmp_path), "HOME": str(tmp_path)}
    listed = funcl("data", "list", **environment)
    assert listed.exit_code == 0, listed.output
    assert "funcl data fetch mnist" in listed.output
    checked = funcl("data", "verify", "mnist", **environment)
    assert checked.exit_code == 1
    assert "not on this machine" in checked.output
    assert "FUNCL_OFFLINE" in refused("data", "fetch", "mnist", FUNCL_OFFLINE="1", **environment)
