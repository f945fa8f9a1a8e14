"""What went wrong, in one sentence that a person can act on."""

import difflib
from collections.abc import Iterable


class FunclError(ValueError):
    """A mistake that the user can mend: its text says what, where, and what to do."""


def unknown(kind: str, name: object, known: Iterable[str]) -> FunclError:
    """Say that `name` is no known `kind`, and name the nearest one.

    >>> str(unknown("sequence", "split-mnits", ["split-mnist", "toy2d"]))
    "'split-mnits' is no known sequence; did you mean 'split-mnist'? Known: split-mnist, toy2d."
    """
    options = sorted(known)
    near = difflib.get_close_matches(str(name), options, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return FunclError(f"{name!r} is no known {kind}{hint} Known: {', '.join(options)}.")
