"""What methods that run another method have in common: they declare what the inner one does."""

from __future__ import annotations

from dataclasses import dataclass

import optax

from funcl.methods.finetune import FineTune
from funcl.protocol import Method, Phase


@dataclass(frozen=True)
class Wrapper(Method):
    """A method that runs another one in its own way."""

    method: Method = FineTune()

    @property
    def scenarios(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The kinds of heads that the inner method can learn."""
        return self.method.scenarios

    @property
    def needs_network(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner method trains a network."""
        return self.method.needs_network

    @property
    def keeps_optimiser(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner method's optimiser outlives a phase."""
        return self.method.keeps_optimiser

    @property
    def adaptation(self) -> Phase | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner method's adaptation."""
        return self.method.adaptation

    def optimiser(self) -> optax.GradientTransformation | None:
        """The inner method's own optimiser."""
        return self.method.optimiser()

    def phases(self) -> tuple[Phase, ...]:
        """The inner method's phases."""
        return self.method.phases()
