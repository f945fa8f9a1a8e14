"""The methods, one file each. `METHODS` knows them by the names that the command line takes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from funcl.errors import unknown

if TYPE_CHECKING:
    from funcl.methods.finetune import FineTune as FineTune
    from funcl.methods.joint import Joint as Joint
    from funcl.methods.separate import Separate as Separate
    from funcl.methods.sfsvi import SFSVI as SFSVI
    from funcl.protocol import Method

METHODS = {
    "sfsvi": ("funcl.methods.sfsvi", "SFSVI"),
    "finetune": ("funcl.methods.finetune", "FineTune"),
    "joint": ("funcl.methods.joint", "Joint"),
    "separate": ("funcl.methods.separate", "Separate"),
}

__all__ = ["METHODS", *(name for _, name in METHODS.values()), "by_name"]  # pyright: ignore[reportUnsupportedDunderAll]


def by_name(name: str) -> "type[Method]":
    """The class of a method."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    module, attribute = METHODS[name]
    return getattr(import_module(module), attribute)


def __getattr__(name: str) -> Any:
    for module, attribute in METHODS.values():
        if attribute == name:
            return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'funcl.methods' has no attribute {name!r}")
