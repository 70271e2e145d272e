"""A fit by sums over the data: one pass over the rows, then steps that do not depend on their number."""

from __future__ import annotations

import time
from collections.abc import Iterable

from torch import Tensor

from pyro_dgp.data.streams import Stream
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.parameters import limits_of_parameters, module_local_parameters
from pyro_dgp.losses import CollapsedELBO, SufficientStatistics
from pyro_dgp.losses.collapsed import require_rows
from pyro_dgp.training.lbfgs import HIGHEST, LOWEST, Descent
from pyro_dgp.training.optimising import Callback, FitResult
from pyro_dgp.training.remarks import Trained

#: Rows whose features are in memory at a time.
ROWS = 10_000


def fit_collapsed(
    guide: Variational,
    data: Stream | tuple[Tensor, Tensor],
    *,
    steps: int = 300,
    callback: Callback | None = None,
) -> FitResult:
    """Fit one GP under Gaussian noise with features that hyperparameters do not change, in one pass over the data.

    The sums of :class:`~pyro_dgp.SufficientStatistics` are made first. Then :class:`~pyro_dgp.CollapsedELBO` is minimised over hyperparameters by
    L-BFGS, in O(M^3) a step, and q(v) of the guide is set to the best one. Losses of the result are nats a row.

    Rows must be independent of one another: a model that standardises its inputs by those of a call sees other ones in each.

    :param guide: an initialised guide with ``FourierFeatures(F)`` on an interval that holds all rows.
    :param data: a stream, or inputs ``(N, D)`` and targets ``(N,)``.
    :param steps: number of steps at most; the run ends where the loss stands still.
    :param callback: function of step and loss, called after each step.
    :raises ValueError: for a model or a guide that it has no closed form for, and for rows outside of the interval.

    >>> import torch
    >>> from pyro_dgp import DeepGP, FourierFeatures, Variational, fit_collapsed, predict
    >>> x = torch.linspace(0, 1, 500)[:, None]
    >>> y = torch.sin(9 * x[:, 0]) + 0.1 * torch.randn(500)
    >>> guide = Variational(DeepGP(x, layers=1, kernel="matern52-additive"), FourierFeatures(15))
    >>> guide.initialize(x, y)
    >>> result = fit_collapsed(guide, (x, y))
    >>> float((predict(guide, x).mean - torch.sin(9 * x[:, 0])).abs().mean()) < 0.03
    True
    """
    start = time.perf_counter()
    objective = CollapsedELBO(guide, SufficientStatistics.of(guide, _batches(data)))
    rows = objective.statistics.rows
    with module_local_parameters(objective):
        parameters = [each for model in guide.model_modules for each in model.parameters() if each.requires_grad]
        losses: list[float] = []
        if parameters:
            limits = limits_of_parameters(*guide.model_modules, lowest=LOWEST, highest=HIGHEST)
            losses = Descent(lambda: objective() / rows, parameters, limits=limits).go(steps, callback)[1:]
    objective.settle()
    result = FitResult(losses=losses, seconds=time.perf_counter() - start)
    if not isinstance(data, Stream):
        result.trained = Trained(guide, data, {})
    return result


def _batches(data: Stream | tuple[Tensor, Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
    if isinstance(data, Stream):
        blocks: Iterable[tuple[Tensor, ...]] = data.in_order()
    elif isinstance(data, tuple) and len(data) == 2:
        blocks = [data]
    else:
        raise TypeError("the data are a Stream, or a pair of inputs (N, D) and targets (N,): pass (x, y)")
    for block in blocks:
        if len(block) != 2:
            raise ValueError(f"blocks of the stream have {len(block)} parts: inputs (N, D) and targets (N,) are wanted")
        require_rows(*block)
        yield from zip(block[0].split(ROWS), block[1].split(ROWS), strict=True)
