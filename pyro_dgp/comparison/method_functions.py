"""Draws of whole functions from a method's fit, in the units of the data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.data.splitting import Scaler
from pyro_dgp.functions.draws import FunctionDraws
from pyro_dgp.internal.affine import restored, standardised
from pyro_dgp.prediction.rescaled import default_dtype


@dataclass(frozen=True)
class MethodFunctions:
    """Draws of the function of a method's fit: ``functions(x)`` takes inputs in their own units, and gives values in those of the target.

    :ivar standardised: the same draws from inputs as the model takes them, to values as the model has them.
    :ivar inputs: map from inputs in their own units to those of the model, and ``target`` the same for the targets. Targets that are no
        real numbers, such as classes, have no units, and values are those of the latent function.
    :ivar like: a tensor of the dtype and on the device of the fit.
    """

    standardised: FunctionDraws
    inputs: Scaler
    target: Scaler
    like: Tensor

    @property
    def num_draws(self) -> int:
        """Number of draws, S."""
        return self.standardised.num_draws

    def __call__(self, x: Tensor) -> Float[Tensor, "s n o"]:
        """Return the values of each draw at inputs ``(N, D)``, or at inputs of its own, ``(S, N, D)``: ``(S, N, D_out)``, in float64, without noise.

        They are differentiable in ``x`` if that requires gradients.

        :raises ValueError: for inputs of another shape, or after the parameters of the fit have changed.
        """
        columns = len(self.inputs.mean)
        if not isinstance(x, Tensor) or x.dim() not in (2, 3) or x.shape[-1] != columns:
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"these functions take a tensor of inputs (N, {columns}), or ({self.num_draws}, N, {columns}) with rows of its own for each, got {given}"
            )
        scaled = standardised(x.to(self.like.device).double(), *self._units(self.inputs)).to(self.like.dtype)
        with default_dtype(self.like.dtype):
            values = self.standardised(scaled)
        own: Tensor = restored(values.double(), *self._units(self.target))
        return own

    def _units(self, scaler: Scaler) -> tuple[Tensor, Tensor]:
        mean, scale = (
            torch.as_tensor(each, dtype=torch.float64, device=self.like.device) for each in (scaler.mean, scaler.scale)
        )
        return mean, scale
