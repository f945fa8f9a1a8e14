"""Finished runs for people: tables, figures, and one page that holds everything."""

from funcl.report.page import write_report
from funcl.report.runs import Run, load_run, load_runs

__all__ = ["Run", "load_run", "load_runs", "write_report"]
