"""Standardisation of inputs and targets as a part of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pyro_dgp.data.splitting import Scaler, is_constant, require_apart
from pyro_dgp.internal.tensors import require_floats, require_tensor
from pyro_dgp.likelihoods import Likelihood
from pyro_dgp.likelihoods.units import Units, in_units


class Standardizer(nn.Module):
    """The units of inputs and targets, by which a model takes both as they were measured and computes with standardised ones.

    A model keeps it as an attribute, and its state dict holds the statistics:

    | in the model | what it gives |
    |---|---|
    | ``x = units.inputs(x)`` | ``(x - mean) / scale`` for each column of the inputs |
    | ``units.likelihood(Gaussian())`` | a likelihood of standardised targets, as one of targets in their own units |
    | ``units.distribution(dist.StudentT(4.0, f, scale))`` | the same for the distribution of a plain Pyro site |

    Losses and log densities are those of the targets in their own units, ``log p(y) = log p(z) - sum log scale`` for ``y = mean + scale z``,
    and predictions are in these units. Functions and hyperparameters, the noise variance among them, stay those of z: training is
    that of a model of standardised data. The gamma divergence scores z, so that it does not depend on the units.

    :param inputs: number of columns D of the inputs.
    :param outputs: D_out; 1 for targets ``(N,)``, and ``None`` to leave targets as they are, as classes and counts need. Made by
        numbers alone, the standardiser changes nothing until a state dict is loaded; :meth:`fit` takes the statistics of data.
    :ivar input_units: mean and standard deviation of each input, ``(D,)``, float64.
    :ivar target_units: mean and standard deviation of the targets, ``()`` or ``(D_out,)``, float64; ``None`` without.

    >>> import torch
    >>> from pyro_dgp import DeepGP, Standardizer
    >>> x = torch.tensor([[2019.5], [2020.5], [2021.5]])  # years
    >>> y = torch.tensor([1.0e6, 1.2e6, 1.1e6])
    >>> units = Standardizer.fit(x, y)
    >>> units.inputs(x)[:, 0]
    tensor([-1.2247,  0.0000,  1.2247])
    >>> units.to_target(units.targets(y)).tolist()
    [1000000.0, 1200000.0, 1100000.0]
    >>> DeepGP(x, standardizer=units)(x).shape  # draws of the prior, in units of y
    torch.Size([3])
    """

    def __init__(self, inputs: int, outputs: int | None = None) -> None:
        super().__init__()
        self.input_units = Units(torch.zeros(inputs), torch.ones(inputs))
        self.target_units: Units | None = None
        if outputs is not None:
            shape = () if outputs == 1 else (outputs,)
            self.target_units = Units(torch.zeros(shape), torch.ones(shape))

    @classmethod
    def fit(cls, x: Tensor, y: Tensor | None = None) -> Standardizer:
        """Take the mean and standard deviation of each column, computed in float64.

        :param x: training inputs ``(N, D)``.
        :param y: targets ``(N,)`` or ``(N, D_out)``; if not given, targets are left as they are. NaN, an output that was not observed, is left
            out of the mean and scale of its column.
        :raises ValueError: for a column that is constant or holds infinity, for NaN in x, and for other shapes.
        :raises TypeError: for what is no tensor, and for tensors of whole numbers.
        """
        _require_real(x, "inputs of Standardizer.fit are", "x")
        if x.dim() != 2:
            raise ValueError(
                f"Standardizer.fit takes inputs (N, D), got {tuple(x.shape)}: use x[:, None] for one input"
            )
        made = cls(x.shape[-1])
        made.input_units = _fitted(x, "input column {}", observed=np.ones(x.shape, dtype=bool))
        if y is None:
            return made
        _require_real(y, "targets of Standardizer.fit are", "y")
        if y.dim() not in (1, 2) or (y.dim() == 2 and y.shape[-1] == 1) or len(y) != len(x):
            raise ValueError(
                f"Standardizer.fit takes targets (N,) or (N, D_out) for inputs {tuple(x.shape)}, got {tuple(y.shape)}: one target for each row, "
                "y.squeeze(-1) for a single column"
            )
        made.target_units = _fitted(
            y, "target column {}" if y.dim() == 2 else "the target", observed=~np.isnan(y.detach().cpu().numpy())
        )
        return made

    def inputs(self, x: Tensor) -> Tensor:
        """Return standardised inputs ``(..., N, D)``, in the dtype of x."""
        require_tensor(x, "inputs of the standardiser are")
        columns = len(self.input_units.mean)
        if not x.is_floating_point() or x.shape[-1] != columns:
            raise ValueError(
                f"the standardiser was made for inputs (N, {columns}) of real numbers, got {tuple(x.shape)} of {x.dtype}: pass the same columns, as floats"
            )
        return self.input_units(x)  # type: ignore[no-any-return]

    def targets(self, y: Tensor) -> Tensor:
        """Return standardised targets ``(..., N)`` or ``(..., N, D_out)``, as a likelihood that starts from data wants them."""
        return y if self.target_units is None else self.target_units(y)

    def to_target(self, values: Tensor) -> Tensor:
        """Return standardised targets or function values in units of the targets: the inverse of :meth:`targets`.

        Values have the shape of targets: of functions ``(S, N, 1)`` of one output pass ``values[..., 0]``, or all as they are.
        """
        return values if self.target_units is None else self.target_units.restored(values)

    def likelihood(self, likelihood: Likelihood) -> Likelihood:
        """Put a likelihood of standardised targets into the units of the targets, in place, and return it.

        Where targets are left as they are, so is the likelihood. Classes and counts are refused when the model runs.
        """
        if not isinstance(likelihood, Likelihood):
            raise TypeError(
                f"units.likelihood takes a Likelihood such as Gaussian(), not {type(likelihood).__name__}: for a distribution of Pyro use "
                "units.distribution"
            )
        if likelihood.units is not None:
            raise ValueError(
                "this likelihood is already in units of the targets: give units.likelihood one of standardised targets"
            )
        if type(likelihood).forward is not Likelihood.forward or type(likelihood).given is not Likelihood.given:
            raise ValueError(
                f"{type(likelihood).__name__} makes its observations by a forward or given of its own, which know no units: standardise the targets "
                "before training"
            )
        if self.target_units is not None:
            likelihood.units = self.target_units
        return likelihood

    def distribution(self, distribution: Any) -> Any:
        """Return the distribution of targets in their own units, given that of the standardised ones, for a plain Pyro site.

        :param distribution: normal (also over the outputs of a row), Student's t, Laplace, Cauchy or Gumbel, or one of these
            ``.to_event(1)``. Predictions of the site keep the family, and with it quantiles and distribution function.
        """
        return distribution if self.target_units is None else in_units(distribution, self.target_units)


def _require_real(values: Any, what: str, name: str) -> None:
    """Raise for data of :meth:`Standardizer.fit` that are no tensor of real numbers."""
    require_tensor(values, what, name)
    require_floats(values, name)


def _fitted(values: Tensor, label: str, *, observed: NDArray[np.bool_]) -> Units:
    """Return the units of columns ``(N, D)``, or of one column ``(N,)``; raise for columns that have none.

    :param observed: the entries that count, of the shape of the values.
    """
    array = values.detach().double().cpu().numpy()
    columns, counted = array.reshape(len(array), -1), observed.reshape(len(array), -1)
    fitted = []
    for number, (column, present) in enumerate(zip(columns.T, counted.T, strict=True)):
        column = column[present, None]
        if not np.isfinite(column).all():
            raise ValueError(f"{label.format(number)} holds NaN or infinity: drop or fill such rows")
        if not len(column) or is_constant(column).any():
            raise ValueError(f"{label.format(number)} is constant, so that it cannot be standardised: drop it")
        fitted.append(Scaler.fit(column))
        scaled = torch.as_tensor(fitted[-1](column[:, 0]), dtype=values.dtype)
        require_apart(column[:, 0], scaled, label.format(number))
    shape = array.shape[1:]
    mean, scale = (
        np.array([getattr(each, name).item() for each in fitted]).reshape(shape) for name in ("mean", "scale")
    )
    return Units(torch.as_tensor(mean), torch.as_tensor(scale)).to(values.device)
