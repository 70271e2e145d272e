"""A fit by sums over the data: one pass over the rows, then steps that do not depend on their number."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from pyro_dgp.data.streams import Stream
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.losses import CollapsedELBO, SufficientStatistics
from pyro_dgp.training.loop import Callback, FitResult, check_data

#: Rows whose features are in memory at a time.
ROWS = 10_000
#: Changes of the loss, nats a row, that count as none, and how many of them in turn end a run.
SMALL, TURNS = 1e-7, 3


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
    >>> float((predict(guide, x).mean - torch.sin(9 * x[:, 0])).abs().mean()) < 0.1
    True
    """
    start = time.perf_counter()
    objective = CollapsedELBO(guide, SufficientStatistics.of(guide, _batches(data)))
    rows, losses = objective.statistics.rows, [math.inf]
    with module_local_parameters(objective):
        parameters = [each for model in guide.model_modules for each in model.parameters() if each.requires_grad]
        stepper = torch.optim.LBFGS(parameters, max_iter=1, history_size=20, line_search_fn="strong_wolfe")

        def evaluate() -> Tensor:
            stepper.zero_grad()
            loss = objective() / rows
            loss.backward()
            return loss.detach()

        best = [each.detach().clone() for each in parameters]
        while len(losses) <= steps and not _stands_still(losses):
            try:
                stepper.step(evaluate)
                with torch.no_grad():
                    losses.append(float(objective()) / rows)
            except (torch.linalg.LinAlgError, NotPositiveDefiniteError):
                break  # a line search that went too far: the parameters before it stand
            if not math.isfinite(losses[-1]) or losses[-1] > min(losses[:-1]):
                losses.pop()
                break
            best = [each.detach().clone() for each in parameters]
            if callback is not None:
                callback(len(losses) - 2, losses[-1])
        with torch.no_grad():
            for each, value in zip(parameters, best, strict=True):
                each.copy_(value)
    objective.settle()
    return FitResult(losses=losses[1:], seconds=time.perf_counter() - start)


def _stands_still(losses: list[float]) -> bool:
    return len(losses) > TURNS and losses[-1 - TURNS] - losses[-1] < SMALL


def _batches(data: Stream | tuple[Tensor, Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
    if isinstance(data, Stream):
        blocks: Iterable[tuple[Tensor, ...]] = data.in_order()
    else:
        check_data(*data)
        blocks = [data]
    for block in blocks:
        if len(block) != 2 or block[0].dim() != 2 or block[1].shape != block[0].shape[:1]:
            shapes = " and ".join(str(tuple(part.shape)) for part in block)
            raise ValueError(f"the data are inputs (N, D) and targets (N,), not {shapes}: train by ELBO for any others")
        yield from zip(block[0].split(ROWS), block[1].split(ROWS), strict=True)
