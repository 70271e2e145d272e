"""Likelihoods as modules: parameters that train, and the distribution of y that a model samples from."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

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
from pyro_dgp.likelihoods.units import NO_UNITS, Units


class Likelihood(CheckedModule):
    """Base of all observation models. ``likelihood(gp(x))`` is the distribution of y to put into ``pyro.sample``.

    :ivar units: mean and scale of the targets, which :meth:`~pyro_dgp.Standardizer.likelihood` sets: parameters are then in units of
        the standardised targets, and y in its own. Without, y is taken as it is.
    """

    spelling_is_checked = True

    #: Names of the Gaussian processes that it is called on; guides key their processes by them, as in ``y/f``.
    functions: ClassVar[tuple[str, ...]] = ("f",)

    #: Whether NaN among the targets is an output that was not observed; see :class:`~pyro_dgp.MissingOutputs`.
    takes_missing: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise for a subclass that overrides ``given`` here, where no integral would see it."""
        super().__init_subclass__(**kwargs)
        if "given" in vars(cls):
            raise TypeError(
                f"{cls.__name__} overrides given, which the integrals of a likelihood do not ask: write given in a subclass of Conditional, and return that from conditional"
            )

    def __init__(self) -> None:
        super().__init__()
        self.units: Units | None = None

    def conditional(self, *args: Any, **kwargs: Any) -> Conditional:
        """The likelihood with its parameters read now, of standardised targets if there are units.

        A subclass names the values of rows that it takes, such as ``exposure``.
        """
        raise NotImplementedError

    def forward(self, *priors: Any, **values: Any) -> Observation:
        """The distribution of y over the priors ``gp(x)`` of the top layer, with every parameter read now.

        :param priors: one prior, or one for each of :attr:`functions`, of as many outputs each.
        :param values: values of the rows that the likelihood takes, by name.
        """
        if not all(isinstance(prior, FunctionPrior) for prior in priors):
            raise TypeError(
                "a likelihood is called on gp(x), the distribution over function values; "
                "for function values themselves use likelihood.given(f)"
            )
        rows, outputs = self._require_priors(priors), sum(prior.num_outputs for prior in priors)
        refuse_data_plate(rows, f"an observation of {rows} rows")
        self.require_outputs(outputs)
        first = priors[0]
        conditional = self._with_units(first.x.new_zeros((*first.batch_shape, 1, outputs)), values)
        named = dict(zip(self.functions, priors, strict=False))
        return Observation(conditional, named, self.target_outputs(outputs))

    def _require_priors(self, priors: Sequence[FunctionPrior]) -> int:
        """Return the number of rows; raise for another number of priors than functions, and for priors that do not fit each other."""
        if len(priors) not in (1, len(self.functions)):
            raise TypeError(
                f"{type(self).__name__} is called on {' and '.join(dict.fromkeys(('1', str(len(self.functions)))))} Gaussian processes, not "
                f"{len(priors)}: the functions are {', '.join(self.functions)}"
            )
        shapes = {tuple(prior.event_shape) for prior in priors}
        if len(shapes) > 1:
            raise ValueError(
                f"{type(self).__name__} is called on Gaussian processes whose values have shapes {' and '.join(map(str, sorted(shapes)))}: give "
                "them the same rows and as many outputs"
            )
        return priors[0].event_shape[0]

    def _read(self, values: Mapping[str, Any]) -> Conditional:
        """The likelihood with its parameters, and values of rows, read now."""
        if not values:
            return self.conditional()
        known = inspect.signature(self.conditional).parameters
        unknown = [name for name in values if name not in known]
        if unknown:
            takes = f"takes {', '.join(known)}" if known else "takes no values of rows"
            raise TypeError(f"{type(self).__name__} {takes}, and got {unknown[0]}: leave it out")
        return self.conditional(**values)

    def _with_units(self, f: Tensor, values: Mapping[str, Any]) -> Conditional:
        """The likelihood with its parameters read now, of targets in their own units.

        :param f: function values of a row or more, by which a likelihood of classes or counts is recognised.
        """
        return self._standardized(self._read(values), f)

    def _standardized(self, conditional: Conditional, f: Tensor) -> Conditional:
        """A likelihood put into the units of the targets, if there are units."""
        units = self.units
        if units is None:
            return conditional
        if conditional.units is not NO_UNITS:
            raise ValueError(
                f"{type(self).__name__} and the likelihood in it both have units of the targets: call units.likelihood once, on the outer one"
            )
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
    def given(self, f: Tensor, **values: Any) -> RowObservation:
        """p(y | f) for a model that writes ``f`` and ``y`` as two sites; no data plate around it."""
        refuse_data_plate(f.shape[-2], f"an observation of {f.shape[-2]} rows")
        self.require_outputs(f.shape[-1])
        conditional = self._with_units(f, values)
        return conditional.given(f).of(conditional)
