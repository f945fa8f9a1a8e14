"""How lines and durations are written for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """Write a duration for people.

    >>> clock(4.21), clock(75), clock(7384)
    ('4.2 s', '1:15 min', '2:03 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
