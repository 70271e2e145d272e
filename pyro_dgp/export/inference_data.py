"""Export to ArviZ: draws, log likelihoods and predictions of a fitted method, from its own predictive mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.export.arviz_groups import from_groups
from pyro_dgp.export.likelihood_draws import likelihood_draws
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.internal.whole_numbers import whole_number
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.rescaled import RescaledPrediction
from pyro_dgp.prediction.thinning import equally_spaced


def to_arviz(
    prediction: Prediction,
    x: Tensor,
    y: Tensor,
    *,
    draws: Mapping[str, Tensor] | None = None,
    sample_stats: Mapping[str, np.ndarray] | None = None,
    new: tuple[Prediction, Tensor, Tensor | None] | None = None,
    rows: Tensor | None = None,
    row_step: int = 1,
    num_samples: int = 200,
) -> Any:
    """Make an ArviZ object of a fitted method, sampled or variational: ``InferenceData`` (0.x) or ``DataTree`` (1.x).

    | group | variable | dimensions | |
    |---|---|---|---|
    | ``posterior`` | each of ``draws`` | chain, draw, ... | MCMC: as sampled |
    | | ``f`` | chain, draw, ``row``, ``function`` | values of the functions under the likelihood |
    | ``log_likelihood`` | ``y`` | chain, draw, ``row`` | log p(y_n \\| f_n) at those values, nats |
    | ``posterior_predictive`` | ``y`` | chain, draw, ``row`` (and ``output``) | replicates of the training targets, given ``f`` |
    | ``observed_data``, ``constant_data`` | ``y``; ``x`` | ``row``; ``row``, ``input`` | the training rows |
    | ``sample_stats`` | each of ``sample_stats`` | chain, draw | MCMC only |
    | ``predictions`` | ``y`` | chain 1, draw ``num_samples``, ``new_row`` (and ``output``) | at new rows |
    | ``predictions_constant_data`` | ``x``; ``y`` | ``new_row``, ... | the new rows, and their targets if given |

    Functions that a method integrates out (those under a collapsed Gaussian likelihood) are drawn here, from their
    distribution in each component of the mixture. Posterior draws at their training rows have the values that were sampled
    there. So ``f`` and ``log_likelihood`` are draws of one posterior, as PSIS-LOO and WAIC need. A model with a plain site of function values (``likelihood.given(f)``) has no ``f`` here; its draws
    have the sampled, whitened values.

    A variational method has one chain with a draw for each component of its mixture, and at least ``num_samples`` draws.
    Components are resampled if their weights differ.

    A prediction may have been made from some of the MCMC draws: ``predict`` takes 100 by default. The object then
    has these draws alone, in every group, with a warning. For all draws use
    ``predict(chains, x, num_samples=chains * draws)``.

    :param prediction: prediction at the training rows ``x``, from a guide or from MCMC draws.
    :param x: training inputs ``(N, D)``.
    :param y: training targets. All of them count: leave rows that the model masks out of ``x`` and ``y``, and of the prediction.
    :param draws: MCMC draws by site, ``(chains, draws, ...)``: :attr:`Chains.draws`, not ``flat``. Draws of one chain get
        an axis in front.
    :param sample_stats: statistics of the sampler by name, ``(chains, draws)``.
    :param new: prediction at new inputs, the inputs, and the targets or ``None``.
    :param rows: numbers of the training rows, as labels; counted from 0 if not given.
    :param row_step: every how many training rows the object has one: 10 for a tenth of many rows.
    :param num_samples: number of draws at new rows, and least number of draws of a variational method.
    :raises TypeError: for a prediction in the units of the data, of a fit of :func:`~pyro_dgp.compare`.
    :raises ValueError: for draws and statistics that differ in chains or draws, a prediction from other draws, for latent values of rows where the fit is a guide, and
        for those, functions beside inducing variables and white noise where draws predict other rows than all training rows.
    """
    if isinstance(prediction, RescaledPrediction):
        raise TypeError(
            "the prediction is in the units of the data, and functions and likelihoods are in those of training: take prediction.standardised with "
            "targets standardised, or the file METHOD.nc of compare(..., output=FOLDER)"
        )
    if prediction.drawn_by_row and prediction.sampled is None:
        raise ValueError(
            f"the site {prediction.drawn_by_row[0]!r} has a part for each row, which the prediction draws anew as for new rows, so that its "
            "log likelihoods are not those of the draws: with posterior draws predict at all training rows, predict(chains, x); otherwise put the draws alone into "
            "ArviZ, as in arviz.from_dict({'posterior': chains.draws})"
        )
    chains, length = _sizes(draws or {}, sample_stats or {})
    row_step = whole_number("row_step", row_step, 1)
    drawn = likelihood_draws(prediction, y, 1 if draws else num_samples)
    functions, log_likelihood, replicates = drawn.thinned(row_step)
    x, y, rows = x[::row_step], y[::row_step], (torch.arange(len(x)) if rows is None else rows)[::row_step]
    if draws and prediction.sampled is None and prediction.components_of_draw > 1:  # the first component of each draw
        first = slice(0, len(log_likelihood) // prediction.components_of_draw)
        functions = None if functions is None else functions[first]
        log_likelihood, replicates = log_likelihood[first], replicates[first]
    kept = _kept(len(log_likelihood), chains, length) if draws else slice(None)
    posterior = {name: _numpy(values)[:, kept] for name, values in (draws or {}).items()}
    if functions is not None and "f" not in posterior:
        posterior["f"] = _numpy(functions.unflatten(0, (chains, -1)))
    groups: dict[str, dict[str, np.ndarray]] = {
        "posterior": posterior,
        "log_likelihood": {"y": _numpy(log_likelihood.unflatten(0, (chains, -1)))},
        "posterior_predictive": {"y": _numpy(replicates.unflatten(0, (chains, -1)))},
        "observed_data": {"y": _numpy(y)},
        "constant_data": {"x": _numpy(x)},
    }
    if sample_stats:
        groups["sample_stats"] = {name: np.asarray(values)[:, kept] for name, values in sample_stats.items()}
    outputs = [] if y.dim() == 1 else ["output"]
    dims = {"y": ["row", *outputs], "x": ["row", "input"], "f": ["row", "function"]}
    coords = {"row": _numpy(rows)}
    if isinstance(kept, list):
        coords["draw"] = np.array(kept)
    if new is None:
        return from_groups(groups, dims, coords)
    predicted, x_new, y_new = new
    groups["predictions"] = {"y": _numpy(predicted.sample((num_samples,)))[None]}
    groups["predictions_constant_data"] = {"x": _numpy(x_new)} | ({} if y_new is None else {"y": _numpy(y_new)})
    new_dims = {"y": ["new_row", *outputs], "x": ["new_row", "input"]}
    new_coords = {"new_row": np.arange(len(x_new)), "draw": np.arange(num_samples)}
    return from_groups(groups, dims, coords, pred_dims=new_dims, pred_coords=new_coords)


def _sizes(draws: Mapping[str, Tensor], sample_stats: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Return the number of chains, and of the draws of each."""
    shapes = {name: tuple(values.shape[:2]) for name, values in draws.items()}
    shapes |= {name: tuple(values.shape[:2]) for name, values in sample_stats.items()}
    first = next(iter(shapes.values()), (1, 1))
    if any(shape != first or len(shape) < 2 for shape in shapes.values()):
        raise ValueError(
            f"draws and sample_stats start with the same (chains, draws), got {shapes}: give chains.draws, not chains.flat"
        )
    return first[0], first[1]


def _kept(predicted: int, chains: int, length: int) -> list[int] | slice:
    """Return the numbers of the draws of each chain from which the prediction was made, or a slice of all."""
    if predicted == chains * length:
        return slice(None)
    flat = equally_spaced(chains * length, predicted)
    own = [[number - chain * length for number in flat if number // length == chain] for chain in range(chains)]
    if predicted > chains * length or any(numbers != own[0] for numbers in own):
        raise ValueError(
            f"the prediction has {predicted} components and there are {chains} chains of {length} draws: make it from these draws, "
            f"with predict(..., num_samples={chains * length})"
        )
    warn_user(
        f"the prediction was made from {predicted} of the {chains * length} draws, and the ArviZ object has these alone: for all "
        f"draws use predict(..., num_samples={chains * length})"
    )
    return own[0]


def _numpy(values: Tensor) -> np.ndarray:
    array: np.ndarray = torch.as_tensor(values).detach().cpu().numpy()
    return array
