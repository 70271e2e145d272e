"""Likelihoods as modules: parameters that train, and the distribution of y that a model samples from."""

from __future__ import annotations

from typing import Any

import torch
from pyro.nn import pyro_method
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.assignment import CheckedModule
from pyro_dgp.internal.plates import refuse_data_plate
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.observation import Observation
from pyro_dgp.likelihoods.standardized import StandardizedConditional
from pyro_dgp.likelihoods.units import Units


class Likelihood(CheckedModule):
    """Base of all observation models. ``likelihood(gp(x))`` is the distribution of y to put into ``pyro.sample``.

    :ivar units: mean and scale of the targets, which :meth:`~pyro_dgp.Standardizer.likelihood` sets: parameters are then in units of
        the standardised targets, and y in its own. Without, y is taken as it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.units: Units | None = None

    def conditional(self) -> Conditional:
        """The likelihood with its parameters read now, of standardised targets if there are units."""
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
        if self.units is None:
            conditional = self.conditional()
        else:
            conditional = self._with_units(prior.x.new_zeros((*prior.batch_shape, 1, prior.num_outputs)))
        return Observation(conditional, {"f": prior}, self.target_outputs(prior.num_outputs))

    def _with_units(self, f: Tensor) -> Conditional:
        """The likelihood with its parameters read now, of targets in their own units.

        :param f: function values of a row or more, by which a likelihood of classes or counts is recognised.
        """
        conditional, units = self.conditional(), self.units
        if units is None:
            return conditional
        outputs = self.target_outputs(f.shape[-1])
        if units.scale.dim() and units.scale.shape != (outputs,):
            raise ValueError(
                f"the standardiser was fitted to {len(units.scale)} outputs, and {type(self).__name__} has {outputs}: make them equal"
            )
        standardized = StandardizedConditional(conditional, outputs, units)
        if conditional.noise_variance() is None:
            # One row, to raise where targets are not all real numbers, and where predictions could not have units.
            row = f[..., :1, :]
            standardized.given(row)
            standardized.components(Moments(row, torch.ones_like(row)))
        return standardized

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
        return self._with_units(f).given(f)
