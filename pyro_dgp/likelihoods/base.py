"""Likelihoods as modules: parameters that train, and the distribution of y that a model samples from."""

from __future__ import annotations

from typing import Any

from pyro.nn import pyro_method
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.assignment import CheckedModule
from pyro_dgp.internal.plates import refuse_data_plate
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation
from pyro_dgp.likelihoods.observation import Observation


class Likelihood(CheckedModule):
    """Base of all observation models. ``likelihood(gp(x))`` is the distribution of y to put into ``pyro.sample``."""

    def conditional(self) -> Conditional:
        """The likelihood with its parameters read now."""
        raise NotImplementedError

    def forward(self, prior: Any) -> Observation:
        """The distribution of y over the top GP's prior ``gp(x)``, with every parameter read now."""
        if not isinstance(prior, FunctionPrior):
            raise TypeError(
                "a likelihood is called on gp(x), the distribution over function values; "
                "for function values themselves use likelihood.given(f)"
            )
        refuse_data_plate(prior.event_shape[0], f"an observation of {prior.event_shape[0]} rows")
        self.require_outputs(prior.num_outputs)
        return Observation(self.conditional(), {"f": prior}, self.target_outputs(prior.num_outputs))

    def require_outputs(self, outputs: int) -> None:
        """Raise unless the likelihood takes ``outputs`` functions."""

    def target_outputs(self, outputs: int) -> int:
        """Number of outputs of y for ``outputs`` functions; 1 makes y ``(N,)``."""
        return outputs

    @pyro_method
    def given(self, f: Tensor) -> RowObservation:
        """p(y | f) for a model that writes ``f`` and ``y`` as two sites; no data plate around it."""
        refuse_data_plate(f.shape[-2], f"an observation of {f.shape[-2]} rows")
        self.require_outputs(f.shape[-1])
        return self.conditional().given(f)
