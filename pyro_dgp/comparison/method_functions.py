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

    Values are those that the noise of the target is put around: of a coregionalised target the mixed functions, under noise with a function of its own the
    mean. Targets that are no real numbers, such as classes and counts, have no units, and values are those of the latent functions.

    :ivar standardised: draws of the functions from inputs as the model takes them.
    :ivar inputs: map from inputs in their own units to those of the model, and ``target`` the same for the targets.
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

        :param x: a tensor, with its columns in the order of training.
        :raises ValueError: for inputs of another shape or that are not finite, for a model whose function is a site before a plain observation, whose units are
            not known, and after the parameters of the fit have changed.
        """
        columns = len(self.inputs.mean)
        if x.dim() not in (2, 3) or x.shape[-1] != columns or not len(x):
            raise ValueError(
                f"these functions take inputs (N, {columns}), or ({self.num_draws}, N, {columns}) with rows of its own for each, got {tuple(x.shape)}"
            )
        if not bool(torch.isfinite(x).all()):
            raise ValueError("the inputs hold NaN or infinity: drop or fill such rows")
        scaled = standardised(x.to(self.like.device).double(), *self._units(self.inputs)).to(self.like.dtype)
        with default_dtype(self.like.dtype):
            values = self.standardised.location(scaled)
            if values is None:
                self._require_no_units()
                values = self.standardised(scaled)
        own: Tensor = restored(values.double(), *self._units(self.target))
        return own

    def _require_no_units(self) -> None:
        """Raise where values of a latent function would be taken for those of the target."""
        if bool((self.target.mean != 0).any() or (self.target.scale != 1).any()):
            raise ValueError(
                f"the model does not say how its target follows from the function at {self.standardised.site!r}: write it as a likelihood around a Gaussian process, such "
                "as Gaussian()(gp(x)), or draw in the units of the model, draw_functions(fit.guide, ...)"
            )

    def _units(self, scaler: Scaler) -> tuple[Tensor, Tensor]:
        mean, scale = (
            torch.as_tensor(each, dtype=torch.float64, device=self.like.device) for each in (scaler.mean, scaler.scale)
        )
        return mean, scale
