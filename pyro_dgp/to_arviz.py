"""Export to ArviZ: InferenceData (0.x) or DataTree (1.x), filled by this library from its own predictive mixtures."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from pyro_dgp.prediction import Prediction

Groups = Mapping[str, Mapping[str, np.ndarray]]

#: Groups whose arrays start with (chain, draw); the others hold data.
_SAMPLED = ("posterior", "posterior_predictive", "log_likelihood", "sample_stats")


def import_arviz() -> Any:
    """ArviZ, without the announcement that 0.23 makes once a day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def to_arviz(
    prediction: Prediction,
    x: Tensor,
    y: Tensor,
    draws: Mapping[str, Tensor] | None = None,
    sample_stats: Mapping[str, np.ndarray] | None = None,
    num_samples: int = 200,
) -> Any:
    """An ArviZ object of a prediction and the data it is judged by.

    | group | variable | dimensions |
    |---|---|---|
    | ``posterior_predictive`` | ``y`` | chain 1, draw ``num_samples``, ``row`` (and ``output``) |
    | ``log_likelihood`` | ``y`` | chain 1, draw = mixture components, resampled if their weights differ, ``row``; nats per row |
    | ``observed_data`` | ``y`` | ``row`` (and ``output``) |
    | ``constant_data`` | ``x`` | ``row``, ``input`` |
    | ``posterior``, ``sample_stats`` | MCMC only | chain, draw, ... |

    :param prediction: at inputs ``x``.
    :param draws: MCMC draws by site, ``(chains, draws, ...)``.
    :param sample_stats: by name, ``(chains, draws)``.
    """
    groups: dict[str, dict[str, np.ndarray]] = {
        "posterior_predictive": {"y": _numpy(prediction.sample((num_samples,)))[None]},
        "log_likelihood": {"y": _numpy(prediction.log_prob_draws(y))[None]},
        "observed_data": {"y": _numpy(y)},
        "constant_data": {"x": _numpy(x)},
    }
    if draws:
        groups["posterior"] = {name: _numpy(values) for name, values in draws.items()}
    if sample_stats:
        groups["sample_stats"] = dict(sample_stats)
    row = ["row"] if y.dim() == 1 else ["row", "output"]
    return from_groups(groups, {"y": row, "x": ["row", "input"]})


def from_groups(groups: Groups, dims: Mapping[str, list[str]] | None = None) -> Any:
    """The ArviZ object of the installed major version; arrays of sampled groups start with (chain, draw)."""
    az = import_arviz()
    dims = dict(dims or {})
    if int(az.__version__.split(".")[0]) < 1:
        sampled = {name: dict(group) for name, group in groups.items() if name in _SAMPLED}
        data = {name: dict(group) for name, group in groups.items() if name not in _SAMPLED}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "More chains", UserWarning)
            return az.from_dict(**sampled, **data, dims=_present(dims, groups))
    return az.from_dict({name: dict(group) for name, group in groups.items()}, dims=_present(dims, groups))


def _present(dims: dict[str, list[str]], groups: Groups) -> dict[str, list[str]]:
    """Only dims of variables that exist; a joint log likelihood over outputs has rows alone."""
    present = {name for group in groups.values() for name in group}
    return {name: axes for name, axes in dims.items() if name in present}


def _numpy(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.detach().cpu().numpy()
    return array
