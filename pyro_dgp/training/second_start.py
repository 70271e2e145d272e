"""A second start for a fit that explains nothing: hyperparameters and inducing points from a predictive loss, all else anew."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.losses import PredictiveLogLikelihood
from pyro_dgp.training.checkpoints import CheckpointError
from pyro_dgp.training.loop import fit
from pyro_dgp.training.optimising import FitResult
from pyro_dgp.training.remarks import explains_nothing

#: Share of the steps that the predictive loss gets, and the weight of its KL.
SHARE, BETA = 0.25, 0.05
#: Steps of a run whose failure tells anything.
FEWEST = 500
#: Remark on a fit that is the second.
SECOND = "its first fit explained nothing of the targets, so that a second one was started from a predictive loss: its loss is lower, and it is kept"

State = dict[str, Any]


def fit_with_second_start(
    guide: Variational,
    objective: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    second: bool = True,
    site: str | None = None,
    callback: Callable[[int, float], object] | None = None,
    **options: Any,
) -> tuple[FitResult, bool]:
    """Fit; where the fit explains nothing, fit once more from another start, and keep the better of both.

    An ELBO can stop at "all is noise" where no input acts by itself: the noise variance grows before the lengthscales have
    moved. A predictive loss has the variance of f in the place of noise, and moves them. So the second start is: the predictive log-likelihood
    for a quarter of the steps; kernels, mean functions and inducing points from there; q and all other parameters as they
    were before training; then the objective for all of the steps. The fit of lower loss is kept.

    :param objective: ``loss(guide.model, guide)`` of any loss.
    :param steps: a run of fewer than 500 tells nothing, and gets no second start.
    :param second: whether there may be a second start.
    :param site: the observation that ``y`` belongs to, if the model has several.
    :param options: those of :func:`~pyro_dgp.fit`.
    :returns: the record of the fit that is kept, and whether it is the second.
    """

    def train() -> FitResult:
        return fit(objective, x, y, steps=steps, callback=callback, **options)

    if not second or steps < FEWEST:
        return train(), False
    return train_with_second_start(guide, train, x, y, predictive_steps=int(SHARE * steps), site=site, **options)


def train_with_second_start(
    guide: Variational,
    train: Callable[[], FitResult],
    x: Tensor,
    y: Tensor,
    *,
    predictive_steps: int,
    site: str | None = None,
    **options: Any,
) -> tuple[FitResult, bool]:
    """Train, and once more from a second start where the fit explains nothing, as :func:`fit_with_second_start` does.

    :param train: trains the guide and its model, in place.
    :param predictive_steps: steps of the predictive loss.
    :param options: those of :func:`~pyro_dgp.fit` for the predictive loss.
    :returns: the record of the fit that is kept, and whether it is the second.
    """
    state = nn.ModuleList([guide, *guide.model_modules])
    start = _values(state)
    first = train()
    if not first.losses or not explains_nothing(guide, x, y, site=site):
        return first, False
    found = _values(state)
    try:
        _restore(state, start)
        predictive = PredictiveLogLikelihood(x.shape[-2], BETA)(guide.model, guide)
        fit(predictive, x, y, steps=max(1, predictive_steps), **options)
        learned = {name: value for name, value in _values(state).items() if _is_kept(name)}
        _restore(state, start | learned)
        again = train()
    except CheckpointError:
        raise
    except (ValueError, NotImplementedError, NotPositiveDefiniteError):
        _restore(state, found)
        return first, False
    if _end(again) < _end(first):
        return again, True
    _restore(state, found)
    return first, False


def _is_kept(name: str) -> bool:
    """Tell whether a parameter is one of a kernel, of a mean function, or an inducing point."""
    parts = name.split(".")
    return "kernel" in parts or "mean" in parts or "basis" in parts


def _end(result: FitResult) -> float:
    last = result.losses[-max(1, len(result.losses) // 10) :]
    return sum(last) / len(last)


def _values(module: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in module.named_parameters()} | {
        name: copy.deepcopy(value) for name, value in module.named_buffers()
    }


@torch.no_grad()
def _restore(module: nn.Module, values: State) -> None:
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, value in values.items():
        own[name].copy_(value)
