"""`funcl reproduce`: the paper's tables and figures, measured beside the published numbers."""


def reproduce() -> None:
    """Waiting."""
