"""Colours and number formats that the paper's figures, the tables and the page share."""

import math

# Seven hues that stay apart in every common colour blindness and on light and dark grounds
# (after Okabe and Ito, their yellow left out and the sky blue deepened for thin lines).
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c98a00", "#3a9bd6", "#7a6fd0")
# The same hues for thin lines on a dark ground.
PALETTE_ON_DARK = (
    "#4aa8e8", "#f58a3c", "#2fc598", "#e29cc4", "#e6b13a", "#8cc9f2", "#a9a1f2",
)  # fmt: skip
INK, QUIET, FAINT = "#222222", "#6b6b6b", "#d9d9d9"


def colour(number: int) -> str:
    """Return the colour of the `number`-th run; after seven they repeat."""
    return PALETTE[number % len(PALETTE)]


def with_error(mean: float, error: float, decimals: int = 2) -> str:
    """Write a mean with its standard error, if there is one.

    >>> with_error(99.5412, 0.0391), with_error(99.5412, float("nan"))
    ('99.54 ± 0.04', '99.54')
    """
    text = f"{mean:.{decimals}f}"
    return text if math.isnan(error) else f"{text} ± {error:.{decimals}f}"
