"""The base of kernels of Pyro's MCMC that evaluate the density of a whitened model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.initial_points import Start, require_start
from pyro_dgp.mcmc.rounding import ROUGH, rounding
from pyro_dgp.mcmc.whitening import WhitenedModel, whitened


class DensityKernel(MCMCKernel):  # type: ignore[misc]
    """A kernel with a model, the density of it at the data of a run, and a first point.

    :param model: the model, or ``whitened(model)``.
    :param density: the class that evaluates the posterior density.
    :param start: the first point unless ``initial_params`` is set.
    """

    def __init__(self, model: Callable[..., Any], density: type[WhitenedDensity], start: Start) -> None:
        require_start(start)
        self.model = model if isinstance(model, WhitenedModel) else whitened(model)
        self.density, self.start = density, start
        self.transforms: dict[str, Any] = {}
        self._given: dict[str, Tensor] | None = None
        self.forget()

    def forget(self) -> None:
        """Let go of the data and of the point where the chain is."""
        self._density: WhitenedDensity | None = None
        self._started: dict[str, Tensor] | None = None
        self._params: dict[str, Tensor] = {}

    def require_density(self) -> WhitenedDensity:
        """The density that ``setup`` has built; raises before it."""
        if self._density is None:
            raise ValueError("the kernel has no data yet: run it by run_chains or pyro.infer.MCMC")
        return self._density

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """The first point in unconstrained space: what was given, or where ``start`` leads."""
        if self._given is not None:
            return self._given
        if self._started is None:
            self._started = self.start(self.require_density())
        return self._started

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor]) -> None:
        self._given = params

    def is_at(self, params: dict[str, Tensor]) -> bool:
        """Tell whether a point is where the last draw ended."""
        here = self._params
        return params is here or (
            params.keys() == here.keys() and all(torch.equal(value, here[name]) for name, value in params.items())
        )

    def end_warmup(self) -> None:
        """Warn where rounding changes the density at the point of the chain by more than :data:`~pyro_dgp.mcmc.rounding.ROUGH` nats."""
        if not self._params:
            return
        density = self.require_density()
        vector = density.vector(self._params)
        rough = rounding(density, vector)
        if rough > ROUGH:
            remedy = (
                "give the model and the data in float64, as by torch.set_default_dtype(torch.float64)"
                if vector.dtype == torch.float32
                else "give the priors of noise and of lengthscales less room near zero and infinity"
            )
            warn_user(
                f"rounding changes the log posterior density by {rough:.2g} nats where the chain is, and chains take that for the posterior: {remedy}"
            )

    def cleanup(self) -> None:
        """Let go of the data."""
        self.forget()
