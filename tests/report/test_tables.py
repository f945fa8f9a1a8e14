import math

import pytest
from made_up import folder, history

from funcl.report import load_run
from funcl.report.tables import (
    Cell,
    Table,
    comparison,
    mark_best,
    to_html,
    to_latex,
    to_markdown,
    to_text,
)

TABLE = Table(
    "split-mnist, task-incremental, multi head",
    "method",
    ("accuracy (%)", "transfer"),
    (
        ("sfsvi", (Cell(99.541, 0.039, best=True), Cell(-0.2, 0.1))),
        ("on_line", (Cell(99.0, note="one seed"), Cell(note="not measured"))),
    ),
)


def test_text():
    assert to_text(TABLE, 80) == (
        "split-mnist, task-incremental, multi head\n"
        "\n"
        " method     accuracy (%)        transfer\n"
        " ───────────────────────────────────────\n"
        " sfsvi     99.54 ± 0.04*    -0.20 ± 0.10\n"
        " on_line           99.00               -\n"
        "\n"
        "accuracy (%) (on_line): one seed.\n"
        "transfer (on_line): not measured.\n"
        "* best by more than the standard errors.\n"
    )


def test_markdown():
    assert to_markdown(TABLE) == (
        "**split-mnist, task-incremental, multi head**\n"
        "\n"
        "| method | accuracy (%) | transfer |\n"
        "| --- | ---: | ---: |\n"
        "| sfsvi | **99.54 ± 0.04** | -0.20 ± 0.10 |\n"
        "| on_line | 99.00 | - |\n"
        "\n"
        "- accuracy (%) (on_line): one seed.\n"
        "- transfer (on_line): not measured.\n"
        "- Bold: best by more than the standard errors.\n"
    )


def test_latex():
    assert to_latex(TABLE) == (
        "% split-mnist, task-incremental, multi head\n"
        "% accuracy (%) (on_line): one seed.\n"
        "% transfer (on_line): not measured.\n"
        "% Bold: best by more than the standard errors.\n"
        "\\begin{tabular}{lrr}\n"
        "\\toprule\n"
        "method & accuracy (\\%) & transfer \\\\\n"
        "\\midrule\n"
        "sfsvi & $\\mathbf{99.54} \\pm 0.04$ & $-0.20 \\pm 0.10$ \\\\\n"
        "on\\_line & $99.00$ & -- \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
    )


def test_html_escapes_names_and_keeps_hyphens_in_texts():
    table = Table("t", "x", ("<b>",), (("--set", (Cell(text="a-b <i>"),)), ("n", (Cell(-1.0),))))
    assert to_html(table) == (
        '<table><thead><tr><th scope="col">x</th><th scope="col">&lt;b&gt;</th></tr></thead>'
        '<tbody><tr><th scope="row">--set</th><td>a-b &lt;i&gt;</td></tr>'
        '<tr><th scope="row">n</th><td>−1.00</td></tr></tbody></table>'
    )


@pytest.mark.parametrize(
    ("cells", "better", "winner"),
    [
        ([Cell(1.0, 0.1), Cell(1.3, 0.1)], 1, 1),
        ([Cell(1.0, 0.1), Cell(1.3, 0.1)], -1, 0),
        ([Cell(1.0, 0.1), Cell(1.3, 0.1)], 0, None),
        ([Cell(1.0, 0.2), Cell(1.3, 0.2)], 1, None),  # within the errors
        ([Cell(1.0, 0.1), Cell(1.3)], 1, None),  # the leader has one seed
        ([Cell(1.0), Cell(1.3, 0.1)], 1, None),
        ([Cell(1.0, 0.1)], 1, None),  # nobody to beat
        ([Cell(1.0, 0.1), Cell(), Cell(1.3, 0.1)], 1, 2),
    ],
)
def test_the_best_is_marked_only_beyond_the_errors(cells, better, winner):
    expected = [place == winner for place in range(len(cells))]
    assert [cell.best for cell in mark_best(cells, better)] == expected


def test_comparison_groups_what_can_be_compared(tmp_path):
    published = [{"mean": 99.54, "standard_error": 0.04, "source": "Table 1"}]
    runs = [
        load_run(folder(tmp_path / "a", history(), published=published)),
        load_run(folder(tmp_path / "b", history(method="vcl", loss=0.03, diverged=[1]))),
        load_run(folder(tmp_path / "c", history(heads="single", scenario="class-incremental"))),
    ]
    first, second = comparison(runs)
    assert first.title == "split-mnist, task-incremental, multi head"
    assert second.title == "split-mnist, class-incremental, single head"
    columns = dict(zip(first.columns, zip(*(cells for _, cells in first.rows), strict=True)))  # noqa: B905
    assert [str(cell) for cell in columns["seeds"]] == ["3", "2 of 3"]
    accuracy = columns["accuracy (%)"]
    assert accuracy[0].mean == pytest.approx(100 * runs[0].history.metrics["accuracy"].mean)
    assert [cell.best for cell in accuracy] == [True, False]
    assert [str(cell) for cell in columns["published (%)"]] == ["99.54 ± 0.04", "-"]
    assert any("seed 1 diverged at task 3 (4/5)" in note for note in first.notes)
    assert any(note.startswith("forward transfer: not measured") for note in first.notes)
    assert "published (%)" not in second.columns


def test_a_wide_table_is_turned_round(tmp_path):
    table = comparison([load_run(folder(tmp_path / "a", history()))])[0]
    narrow = to_text(table, 60)
    assert " accuracy (%)" in narrow
    assert max(map(len, narrow.splitlines())) <= 60
    assert "…" not in narrow
    assert table.transposed().rows[1][1][0] == table.rows[0][1][1]


def test_an_empty_cell_is_a_dash():
    assert str(Cell()) == "-"
    assert math.isnan(Cell().standard_error)
