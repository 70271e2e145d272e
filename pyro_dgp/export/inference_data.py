"""Export to ArviZ: what a fitted method knows of its training rows and of new ones, filled from its own predictive mixtures."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.export.arviz_groups import from_groups
from pyro_dgp.export.likelihood_draws import likelihood_draws
from pyro_dgp.prediction.prediction import Prediction
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
    num_samples: int = 200,
) -> Any:
    """An ArviZ object of a fitted method, sampled or variational: ``InferenceData`` (0.x) or ``DataTree`` (1.x).

    | group | variable | dimensions | |
    |---|---|---|---|
    | ``posterior`` | each of ``draws`` | chain, draw, ... | MCMC: as sampled |
    | | ``f`` | chain, draw, ``row``, ``function`` | values of the functions that the likelihood stands on |
    | ``log_likelihood`` | ``y`` | chain, draw, ``row`` | log p(y_n \\| f_n) at those values, nats |
    | ``posterior_predictive`` | ``y`` | chain, draw, ``row`` (and ``output``) | replicates of the training targets, given ``f`` |
    | ``observed_data``, ``constant_data`` | ``y``; ``x`` | ``row``; ``row``, ``input`` | the training rows |
    | ``sample_stats`` | each of ``sample_stats`` | chain, draw | MCMC only |
    | ``predictions`` | ``y`` | chain 1, draw ``num_samples``, ``new_row`` (and ``output``) | at new rows |
    | ``predictions_constant_data`` | ``x``; ``y`` | ``new_row``, ... | the new rows, with their targets if there are any |

    Functions that a method integrates out (those under a collapsed Gaussian likelihood) are drawn here, from their distribution in
    each component of the mixture, so that ``f`` and ``log_likelihood`` are draws of one posterior, as PSIS-LOO and WAIC need
    it. A variational method has one chain of as many draws as its mixture has components, but ``num_samples`` at least; components are resampled
    if their weights differ. Where the prediction was made from some of the draws (``predict_mcmc`` takes 100 if not told otherwise), the object
    has those alone, in every group, with a warning: all of them with ``predict_mcmc(..., num_draws=chains * draws)``.
    A model whose likelihood stands on a site of its own (``likelihood.given(f)``) has no ``f`` here; its draws have what was sampled,
    the whitened values.

    :param prediction: at the training rows ``x``, from a guide or from MCMC draws.
    :param x: training inputs ``(N, D)``.
    :param y: training targets.
    :param draws: MCMC draws by site, ``(chains, draws, ...)``: :attr:`Chains.draws`, not ``flat``; those of one chain with an axis in front.
    :param sample_stats: by name, ``(chains, draws)``.
    :param new: prediction at new inputs, the inputs, and the targets or nothing.
    :param rows: numbers of the training rows, as labels; counted if not given.
    :raises ValueError: for draws and figures that do not have the same chains and draws, or a prediction from other draws.
    """
    chains, length = _sizes(draws or {}, sample_stats or {})
    functions, log_likelihood, replicates = likelihood_draws(prediction, y, 1 if draws else num_samples)
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
    coords = {"row": np.arange(len(x)) if rows is None else _numpy(rows)}
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
    """Chains, and draws of each."""
    shapes = {name: tuple(values.shape[:2]) for name, values in draws.items()}
    shapes |= {name: tuple(values.shape[:2]) for name, values in sample_stats.items()}
    first = next(iter(shapes.values()), (1, 1))
    if any(shape != first or len(shape) < 2 for shape in shapes.values()):
        raise ValueError(
            f"draws and figures start with the same (chains, draws), got {shapes}: give chains.draws, not chains.flat"
        )
    return first[0], first[1]


def _kept(predicted: int, chains: int, length: int) -> list[int] | slice:
    """Which draws of each chain the prediction was made from."""
    if predicted == chains * length:
        return slice(None)
    flat = equally_spaced(chains * length, predicted)
    own = [[number - chain * length for number in flat if number // length == chain] for chain in range(chains)]
    if predicted > chains * length or any(numbers != own[0] for numbers in own):
        raise ValueError(
            f"the prediction has {predicted} components and there are {chains} chains of {length} draws: make it from those draws, with "
            f"predict_mcmc(..., num_draws={chains * length})"
        )
    warnings.warn(
        f"the prediction was made from {predicted} of the {chains * length} draws, and the ArviZ object has those alone: for all, "
        f"predict_mcmc(..., num_draws={chains * length})",
        stacklevel=3,
    )
    return own[0]


def _numpy(values: Tensor) -> np.ndarray:
    array: np.ndarray = torch.as_tensor(values).detach().cpu().numpy()
    return array
