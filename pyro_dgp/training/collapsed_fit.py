"""A fit of a GP or a deep GP under Gaussian noise with the best q(v) of the observed function in each step: by sums over the data, or by rows."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.data.streams import Stream
from pyro_dgp.diagnosis.loss_checks import falling_at_the_end
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.global_store import require_none_loaded
from pyro_dgp.internal.parameters import limits_of_parameters, module_local_parameters
from pyro_dgp.internal.whole_numbers import whole_number
from pyro_dgp.losses import (
    CollapsedELBO,
    CollapsedELBOFromSums,
    HyperparameterPrior,
    SufficientStatistics,
    WithPrior,
)
from pyro_dgp.losses.collapsed import ROWS
from pyro_dgp.losses.collapsed_sums import require_rows
from pyro_dgp.processes import FixedFeatures
from pyro_dgp.training.lbfgs import HIGHEST, LOWEST, Descent, fit_lbfgs
from pyro_dgp.training.loop import fit
from pyro_dgp.training.optimising import Callback, FitResult
from pyro_dgp.training.remarks import Trained

#: Steps of Adam that come first where features depend on hyperparameters, and their learning rate: they leave poor optima behind.
FIRST_STEPS, FIRST_RATE = 50, 0.1
#: Rows of a step of a deep GP, and the learning rate of its first steps.
ROWS_OF_STEP, DEEP_RATE = 5000, 0.05


def fit_collapsed(
    guide: Variational,
    data: Stream | tuple[Tensor, Tensor],
    *,
    steps: int = 300,
    prior: HyperparameterPrior | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    callback: Callback | None = None,
    **arguments: Any,
) -> FitResult:
    """Fit a GP, or a deep GP, under Gaussian noise by the bound that has the best q(v) of the observed function put in, and set that q(v) (Titsias 2009).

    One layer with :class:`~pyro_dgp.InducingPoints`, or features that depend on hyperparameters: :class:`~pyro_dgp.CollapsedELBO` is minimised over
    hyperparameters and inducing inputs, all rows in each step, O(N M^2): 50 steps of Adam, or half of them where there are fewer than 100, and then
    those of :func:`~pyro_dgp.fit_lbfgs`. Other libraries call that SGPR.

    A deep GP: the same bound, in which hidden functions are drawn, by steps of Adam at a rate of 0.05 that falls at the end, 5,000 rows in each. A few hundred of them do what
    thousands of steps of :class:`~pyro_dgp.ELBO` do, since q(v) of the top layer, which all else waits for, is always the best one.

    One layer with :class:`~pyro_dgp.FourierFeatures`: the sums of :class:`~pyro_dgp.SufficientStatistics` are made first, in one pass over the rows. Then
    :class:`~pyro_dgp.CollapsedELBOFromSums` is minimised over hyperparameters by L-BFGS, in O(M^3) a step. The data may be a stream.

    A guide of one layer that is at its end already stays as it is, and the result has no losses. Losses of the result are nats per observation. Rows must be independent of one another: a model that standardises its inputs by those of a call
    sees other ones in each.

    :param guide: an initialised guide whose q(v) of the observed function has a full covariance; with ``FourierFeatures(F)`` on an interval that holds all rows.
    :param data: inputs ``(N, D)`` and targets ``(N,)``, and for Fourier features also a stream of them. Targets of several outputs are ``(N, D_out)``, and
        with groups they are ``(*groups, N)``, for inducing points.
    :param steps: number of steps at most; a run of one layer ends where the loss stands still.
    :param prior: prior of the hyperparameters, such as ``HyperparameterPrior(guide.model)``; none if not given, and for sums over the data.
    :param batch_size: rows of a step of a deep GP at most; 5,000 if not given. All steps have nearly as many.
    :param seed: seed of the order of the rows of a deep GP.
    :param callback: function of step and loss, called after each step.
    :param arguments: further arguments of the model, for all but sums over the data.
    :raises ValueError: for a model or a guide that it has no closed form for, and for rows outside of the interval.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, Variational, fit_collapsed, predict
    >>> x = torch.linspace(0, 1, 500)[:, None]
    >>> y = torch.sin(9 * x[:, 0]) + 0.1 * torch.randn(500)
    >>> guide = Variational(DeepGP(x, layers=1), InducingPoints(15))
    >>> guide.initialize(x, y)
    >>> result = fit_collapsed(guide, (x, y))
    >>> float((predict(guide, x).mean - torch.sin(9 * x[:, 0])).abs().mean()) < 0.03
    True
    """
    guide.require_initialized()
    steps = whole_number("steps", steps, 0)
    bases = [getattr(process, "basis", None) for process in guide.processes.children()]
    if len(bases) == 1 and isinstance(bases[0], FixedFeatures):
        if arguments or prior is not None:
            beside = ", ".join(arguments) or "a prior of hyperparameters"
            raise ValueError(
                f"sums over the data are those of a model of x and y, and {beside} comes beside: take fit with CollapsedELBO(guide)"
            )
        return _fit_by_sums(guide, data, steps=steps, callback=callback)
    if isinstance(data, Stream):
        raise ValueError(
            "the features of this guide depend on hyperparameters, or on hidden layers, so that each step needs all rows, and a stream gives them in parts: read the "
            "rows into memory and pass (x, y), or take fit_stream with ELBO"
        )
    x, y = _pair(data)
    if guide.hidden:
        rows = rows_of_step(x.shape[-2], batch_size)
        is_whole = rows == x.shape[-2] or guide.structure.joins_data_rows
        objective = _with_prior(CollapsedELBO(guide, None if is_whole else x.shape[-2]), prior)
        return fit(
            objective,
            x,
            y,
            steps=steps,
            batch_size=None if is_whole else rows,
            learning_rate=DEEP_RATE,
            seed=seed,
            callback=callback,
            **arguments,
        )
    return _fit_by_rows(guide, x, y, steps=steps, prior=prior, callback=callback, arguments=arguments)


def rows_of_step(rows: int, batch_size: int | None) -> int:
    """Return the rows of a step of a deep GP: a short last batch would have a q(v) of its own, so that all have nearly as many.

    :param rows: of the data.
    :param batch_size: rows of a step at most; 5,000 if ``None``.
    """
    most = ROWS_OF_STEP if batch_size is None else whole_number("batch_size", batch_size, 1)
    return -(-rows // -(-rows // most))


def _with_prior(objective: CollapsedELBO, prior: HyperparameterPrior | None) -> nn.Module:
    return objective if prior is None else WithPrior(objective, prior)


def _fit_by_rows(
    guide: Variational,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    prior: HyperparameterPrior | None,
    callback: Callback | None,
    arguments: dict[str, Any],
) -> FitResult:
    """Minimise the bound of one layer with all rows in each step, and set q(v)."""
    start, bound = time.perf_counter(), CollapsedELBO(guide)
    trained = Trained(guide, (x, y), arguments, on_losses=falling_at_the_end, may_explode=False)
    by_adam = min(FIRST_STEPS, steps // 2)
    losses: list[float] = []
    if _free(guide):
        objective = _with_prior(bound, prior)
        start_of, before = copy.deepcopy(bound.state_dict()), _value(objective, x, y, arguments)
        first = fit(objective, x, y, steps=by_adam, learning_rate=FIRST_RATE, callback=callback, **arguments)

        def after(step: int, loss: float) -> None:
            if callback is not None:
                callback(by_adam + step, loss)

        then = fit_lbfgs(objective, x, y, steps=steps - by_adam, callback=after, **arguments)
        losses = first.losses + then.losses
        if losses and not _value(objective, x, y, arguments) < before:  # it was at its end, which steps of Adam leave
            bound.load_state_dict(start_of)
            losses = []
    bound.settle(x, y, **arguments)
    return FitResult(losses, time.perf_counter() - start, trained)


@torch.no_grad()
def _value(objective: nn.Module, x: Tensor, y: Tensor, arguments: dict[str, Any]) -> float:
    """Return the loss, nats in total."""
    with module_local_parameters(objective):
        return float(objective(x, y, **arguments))


def _free(guide: Variational) -> bool:
    """Whether a parameter of the model or of a basis is left to train."""
    modules = [*guide.model_modules, *(getattr(process, "basis", None) for process in guide.processes.children())]
    return any(each.requires_grad for module in modules if module is not None for each in module.parameters())


def _fit_by_sums(
    guide: Variational, data: Stream | tuple[Tensor, Tensor], *, steps: int, callback: Callback | None
) -> FitResult:
    """Make the sums, minimise the bound, and set q(v)."""
    start = time.perf_counter()
    objective = CollapsedELBOFromSums(guide, SufficientStatistics.of(guide, _batches(data)))
    rows, trained = objective.statistics.rows, None
    if not isinstance(data, Stream):
        trained = Trained(guide, data, {}, on_losses=falling_at_the_end, may_explode=False)
    require_none_loaded(objective)
    with module_local_parameters(objective):
        parameters = [each for model in guide.model_modules for each in model.parameters() if each.requires_grad]
        losses: list[float] = []
        if parameters:
            limits = limits_of_parameters(*guide.model_modules, lowest=LOWEST, highest=HIGHEST)
            losses = Descent(lambda: objective() / rows, parameters, limits=limits).go(steps, callback)[1:]
    objective.settle()
    return FitResult(losses, time.perf_counter() - start, trained)


def _pair(data: Any) -> tuple[Tensor, Tensor]:
    if isinstance(data, tuple) and len(data) == 2:
        return data
    raise TypeError("the data are a Stream, or a pair of inputs (N, D) and targets (N,): pass (x, y)")


def _batches(data: Stream | tuple[Tensor, Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
    blocks: Iterable[tuple[Tensor, ...]] = data.in_order() if isinstance(data, Stream) else [_pair(data)]
    for block in blocks:
        if len(block) != 2:
            raise ValueError(f"blocks of the stream have {len(block)} parts: inputs (N, D) and targets (N,) are wanted")
        require_rows(*block)
        yield from zip(block[0].split(ROWS), block[1].split(ROWS), strict=True)
