"""Prediction at new inputs, from any kind of fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal.rows import RowArguments
from pyro_dgp.internal.tensors import require_tensor
from pyro_dgp.prediction import from_guide  # noqa: F401  # registers guides
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.request import Request, answer


def predict(
    fit: Any,
    x: Tensor,
    num_samples: int = 100,
    *,
    num_hyperparameter_draws: int | None = None,
    batch_size: int = 1000,
    site: str | None = None,
    **arguments: Any,
) -> Prediction:
    """Return the predictive distribution at new inputs.

    The model is called as ``model(x, **arguments)``, with no ``y``. The figures of the prediction are differentiable in x if
    ``x.requires_grad``, see :class:`Prediction`.

    :param fit: a trained guide, :class:`~pyro_dgp.Variational`; the chains of :func:`~pyro_dgp.run_chains`, or draws of any
        sampler as :class:`~pyro_dgp.PosteriorDraws`; the draws of :class:`~pyro_dgp.StochasticGradientHMC`.
    :param x: test inputs ``(N, D)``; of a fit to B data sets ``(B, N, D)``, as many new rows for each. Predictions for groups
        lead with the groups, ``(*groups, N)``.
    :param num_samples: number of mixture components in all. For a guide under Monte Carlo propagation it exceeds that of
        training, since few components bias the NLL upwards; sigma points and moment matching predict by their own components, whatever it says. For posterior
        draws at most this many are used, equally spaced: as many of each chain if it is a multiple of their number. Fewer draws have several components
        each where the prediction draws hidden layers, latent values or observations at the new rows.
    :param num_hyperparameter_draws: for a guide R, the number of draws of the latent sites besides GPs, if the model has such
        sites. Under Monte Carlo each draw gets ``num_samples / R`` components. The same draws of global sites serve every
        batch. If not given, R is 20. Where a site has values for each row, R is ``num_samples``: there each row is a mixture
        of its own draws, whose NLL falls as R grows. It is ``num_samples`` too where the predicted site is latent or computed, or is made from another
        observation, as ``y1`` in ``pyro.sample("y2", Normal(2 * y1, 0.1))``, which the prediction draws unless it is given.
    :param batch_size: number of test rows evaluated at a time. Where a site joins rows, such as ``f - f.mean(-1, keepdim=True)``, all rows are one batch, and
        draws of a sampler, which have each new row by itself, are refused.
    :param site: the site to predict; it can be left out if the model has one observation, or none and one GP. Besides
        observations it may be a GP (the marginals of its posterior at each row; one inside an observation is ``"y/f"``), or a ``pyro.deterministic`` or latent site
        (a mixture of its values, which has no ``log_prob``). A value that all rows share is repeated for each row. In a model with a
        :class:`~pyro_dgp.Standardizer` the target is in its own units, and ``"y/f"`` and hyperparameters are in the standardised ones of the model.
    :param arguments: further arguments of the model, such as ``exposure=e``. A tensor whose first dimension is N, or ``(*groups, N)``, is a
        row argument, which is split into batches as x is; all others go to each batch whole, and so does a tensor that training passed
        whole. A warning names a row argument that training had and the prediction lacks.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, MonteCarlo, Variational, predict
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> guide = Variational(DeepGP(x, width=1), InducingPoints(20), MonteCarlo(10))
    >>> guide.initialize(x, y)
    >>> prediction = predict(guide, torch.linspace(-2, 2, 7)[:, None])  # a trained guide is used in the same way
    >>> prediction, prediction.mean.shape, prediction.quantile([0.1, 0.9]).shape
    (Prediction(rows=7), torch.Size([7]), torch.Size([2, 7]))
    """
    require_tensor(x, "test inputs are")
    if isinstance(num_samples, Tensor):
        raise TypeError("predict takes test inputs and no targets: predict(fit, x).log_prob(y) scores y")
    if num_samples < 1 or (num_hyperparameter_draws is not None and num_hyperparameter_draws < 1):
        raise ValueError(
            f"num_samples and num_hyperparameter_draws are 1 or more, got {num_samples} and {num_hyperparameter_draws}"
        )
    if not bool(torch.isfinite(x).all()):
        raise ValueError("test inputs hold NaN or infinity: drop or fill such rows before prediction")
    if x.dim() < 2 or 0 in x.shape[:-1]:
        raise ValueError(
            f"test inputs have shape (N, D) with N at least 1, got {tuple(x.shape)}: use x[:, None] for one input, and x[None] for one row"
        )
    rows = RowArguments((x.clone(),), {name: _copied(value) for name, value in arguments.items()})
    found = answer(fit, Request(rows, num_samples, num_hyperparameter_draws, site))
    if found.joins_rows and len(rows) > batch_size:
        raise ValueError(
            f"the site that is predicted joins rows (differences, sums, means), and batches of {batch_size} rows would join others: predict all {len(rows)} rows in one batch, "
            f"batch_size={len(rows)}"
        )
    return Prediction(
        found.evaluate,
        len(rows),
        found.event_shape,
        groups=found.groups,
        batch_size=batch_size,
        inputs=found.inputs,
        components_of_draw=found.components_of_draw,
        drawn_by_row=found.drawn_by_row,
        sampled=found.sampled,
    )


def _copied(value: Any) -> Any:
    """Return a copy of a tensor, which the caller may change before the prediction is read."""
    return value.clone() if isinstance(value, Tensor) else value
