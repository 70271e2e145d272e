"""Minimisation by L-BFGS-B of a loss without random numbers, all rows in each evaluation, until it stands still."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dgp.internal.finite import require_finite_loss
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.parameters import limits_of_parameters, module_local_parameters
from pyro_dgp.training.checkpoints import Run, facts_of, is_saving
from pyro_dgp.training.loop import check_objective, groups_of_objective, guide_of, require_loss, training_rows
from pyro_dgp.training.optimising import Callback, FitResult, require_trainable
from pyro_dgp.training.remarks import Trained
from pyro_dgp.training.run_facts import attributes_of_modules, facts_of_modules

#: Changes of the loss, nats a row, that count as none, and how many of them in turn end a run.
SMALL, TURNS = 1e-7, 3
#: How far a positive number, such as a lengthscale, goes from its start, as shares of it.
LOWEST, HIGHEST = 1e-8, 1e6
#: Parameters with their lowest and their highest values.
Limits = Iterable[tuple[Tensor, Tensor, Tensor]]
#: What an evaluation at parameters that have no loss raises.
_NO_LOSS = (torch.linalg.LinAlgError, NotPositiveDefiniteError, ArithmeticError, ValueError)


def fit_lbfgs(
    objective: torch.nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int = 100,
    callback: Callback | None = None,
    **arguments: Any,
) -> FitResult:
    """Minimise ``objective(x, y)`` over its parameters by L-BFGS-B (Byrd, Lu, Nocedal and Zhu 1995; SciPy's), in place, until the loss stands still.

    It is made for exact GP regression, :class:`~pyro_dgp.MarginalLikelihood`: a step evaluates the loss of all rows once or twice, and far fewer steps
    are needed than by :func:`~pyro_dgp.fit`. The objective must give the same number each time, so that losses by samples, and likelihoods from some
    terms, are refused. Lengthscales, variances and other positive numbers stay between 1e-8 and 1e6 times where they begin. Where a trial of a
    step has no loss, since a matrix has no factor there, a shorter step is tried; in the first step that is an error.

    :param objective: :class:`~pyro_dgp.MarginalLikelihood`, or ``loss(model, guide)`` without random numbers; nats in total.
    :param x: training inputs ``(N, D)``, or ``(B, N, D)``.
    :param y: targets ``(N,)`` or ``(N, D_out)``; with groups ``(*groups, N)`` or ``(*groups, N, D_out)``.
    :param steps: number of steps at most.
    :param callback: function of step and loss, called after each step.
    :param arguments: further arguments of the model.
    :return: losses after each step, nats per observation.
    :raises ValueError: for an objective that draws random numbers, and where nothing is left to train.

    >>> import torch
    >>> from pyro_dgp import DeepGP, MarginalLikelihood, fit_lbfgs
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> result = fit_lbfgs(MarginalLikelihood(DeepGP(x, layers=1)), x, y)
    >>> result.losses[-1] < result.losses[0]
    True
    """
    require_loss(objective)
    groups = groups_of_objective(objective, (x, y), arguments)
    rows, start = training_rows(x, y, arguments, modules=[objective], groups=groups), time.perf_counter()
    check_objective(objective, len(rows), len(rows))
    require_trainable(objective)
    observations = y.shape[: rows.axis_of(y)].numel() * len(rows)

    def mean_loss() -> Tensor:
        loss: Tensor = objective(x, y, **arguments) / observations
        return loss

    trained = {name: each for name, each in objective.named_parameters() if each.requires_grad}
    with module_local_parameters(objective):
        descent = Descent(
            mean_loss, list(trained.values()), limits=limits_of_parameters(objective, lowest=LOWEST, highest=HIGHEST)
        )
        facts = {"steps": steps, "rows": len(rows), "kind of the optimizer": "L-BFGS-B", "trained": ", ".join(trained)}
        run = Run(
            facts | facts_of(rows.tensors) | (facts_of_modules(objective) if is_saving() else {}),
            (lambda: attributes_of_modules(objective)) if is_saving() else dict,
        )
        state = _State(objective, descent, start)
        first = _value(mean_loss)
        require_finite_loss(first, [objective], dict, at=" at the start")
        _require_no_draws(mean_loss, first)
        run.resume(state, lambda: _value(mean_loss))

        def after(step: int, loss: float) -> None:
            if callback is not None:
                callback(step, loss)
            run.stepped(state, first, is_last=False)

        losses = descent.go(steps, after)
        state.is_over = True
        run.stepped(state, first, is_last=True)
    guide = guide_of(objective)
    known = None if guide is None else Trained(guide, (x, y), arguments)
    return FitResult(losses[1:], state.seconds + time.perf_counter() - start, known)


@torch.no_grad()
def _value(loss: Callable[[], Tensor]) -> float:
    return float(loss())


def _require_no_draws(loss: Callable[[], Tensor], first: float) -> None:
    """Raise if an evaluation draws random numbers, which may not matter yet where it is made, or if a second one differs from the first."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        value = loss()
        has_drawn = not torch.equal(before, torch.get_rng_state())
    tolerance = math.sqrt(torch.finfo(value.dtype).eps)
    if has_drawn or not math.isclose(float(value), first, rel_tol=tolerance, abs_tol=tolerance):
        raise ValueError(
            "the objective draws random numbers, and L-BFGS wants the same loss each time: take fit, or an objective without samples, such as "
            "MarginalLikelihood(model) without terms"
        )


class Descent:
    """Steps of L-BFGS-B down a loss.

    Its evaluations are kept. One that has some already goes through them first, without evaluating anything, and comes to where they were made.

    :ivar losses: that of the start, and after each step.
    :ivar evaluated: loss and gradient of each evaluation in turn; NaN and noughts for one that failed.
    :ivar start: values of all parameters at the start, in one row.
    :ivar done: steps that were made before, after which nobody is called again.

    >>> import torch
    >>> at = torch.tensor([3.0, -2.0], requires_grad=True)
    >>> losses = Descent(lambda: ((at - 1).square() * torch.tensor([1.0, 9.0])).sum(), [at]).go(100)
    >>> torch.allclose(at, torch.ones(2), atol=1e-3), losses[0]
    (True, 85.0)

    :param loss: evaluates the loss at the present values of the parameters, nats a row.
    :param parameters: what it is minimised over.
    :param limits: those of them that have limits, with the lowest and the highest values.
    """

    def __init__(self, loss: Callable[[], Tensor], parameters: Sequence[Tensor], *, limits: Limits = ()) -> None:
        self.loss, self.parameters = loss, parameters
        self.losses: list[float] = []
        self.evaluated: list[tuple[float, NDArray[np.float64]]] = []
        self.done = 0
        self.start = _flat([each.detach() for each in parameters])
        known = {id(parameter): (low, high) for parameter, low, high in limits}
        without = [(torch.full_like(each, -math.inf), torch.full_like(each, math.inf)) for each in parameters]
        ends = [known.get(id(each), free) for each, free in zip(parameters, without, strict=True)]
        self._limits = np.stack([_flat([low for low, _ in ends]), _flat([high for _, high in ends])], -1)
        self._count = 0
        self._last: tuple[NDArray[np.float64], float, NDArray[np.float64]] | None = None

    def go(self, steps: int, after: Callable[[int, float], object] | None = None) -> list[float]:
        """Make so many steps at most, set the parameters to where they end, and return the losses.

        :param after: function of step and loss, called after each step.
        :raises Exception: what an evaluation raises before the first step is made.
        """
        from scipy.optimize import minimize

        def stepped(_: NDArray[np.float64]) -> None:
            assert self._last is not None
            if not self._last[1] < self.losses[-1]:
                raise StopIteration
            base[:] = [self._last]
            self.losses.append(self._last[1])
            if after is not None and len(self.losses) - 1 > self.done:
                self._set(self._last[0])
                after(len(self.losses) - 2, self._last[1])
            if _stands_still(self.losses):
                raise StopIteration

        def evaluate(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            loss, gradient = self._evaluation(values)
            if math.isfinite(loss):
                self._last = (values.copy(), loss, gradient)
                if not base:
                    base.append(self._last)
                    self.losses.append(loss)
                return loss, gradient
            if not base:
                raise ValueError(
                    "the gradient of the loss holds NaN or infinity at the start: look at the parameters, and scale inputs and targets"
                )
            at, loss, slope = base[0]
            return loss + (abs(float(slope @ (values - at))) or 1.0), np.zeros_like(values)  # a rise: go less far

        base: list[tuple[NDArray[np.float64], float, NDArray[np.float64]]] = []
        options = {"maxiter": steps, "maxcor": 20, "ftol": 0.0, "gtol": 1e-6, "maxfun": 30 * steps + 30}
        if not steps:
            return [self._evaluation(self.start)[0]]
        limits = {"bounds": self._limits, "options": options}
        try:
            minimize(evaluate, self.start, jac=True, method="L-BFGS-B", callback=stepped, **limits)
        finally:
            self._set(base[0][0] if base else self.start)
        return self.losses

    def _evaluation(self, values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return loss and gradient at some values, those that are known first; NaN where there is no loss."""
        self._count += 1
        if self._count > len(self.evaluated):
            self._set(values)
            self.evaluated.append(self._new_evaluation())
        return self.evaluated[self._count - 1]

    def _new_evaluation(self) -> tuple[float, NDArray[np.float64]]:
        for each in self.parameters:
            each.grad = None
        try:
            with torch.enable_grad():
                loss = self.loss()
                if loss.requires_grad:
                    loss.backward()  # type: ignore[no-untyped-call]
        except _NO_LOSS:
            if len(self.losses) < 2:
                raise
            return math.nan, np.zeros_like(self.start)
        gradient = _flat([torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters])
        is_sound = bool(torch.isfinite(loss)) and bool(np.isfinite(gradient).all())
        return (float(loss.detach()), gradient) if is_sound else (math.nan, np.zeros_like(gradient))

    @torch.no_grad()
    def _set(self, values: NDArray[np.float64]) -> None:
        parts = torch.as_tensor(values).split([each.numel() for each in self.parameters])
        for each, part in zip(self.parameters, parts, strict=True):
            each.copy_(part.view_as(each))


class _State:
    """What a descent goes on from, its evaluations: see :class:`~pyro_dgp.training.checkpoints.Stateful`."""

    def __init__(self, objective: torch.nn.Module, descent: Descent, start: float) -> None:
        self.objective, self.descent, self.start = objective, descent, start
        self.seconds, self.is_over = 0.0, False

    def state_dict(self) -> dict[str, Any]:
        """See :class:`~pyro_dgp.training.checkpoints.Stateful`."""
        descent = self.descent
        losses, gradients = zip(*descent.evaluated, strict=True) if descent.evaluated else ((), ())
        return {
            "parameters": self.objective.state_dict(),
            "evaluated": torch.tensor(losses, dtype=torch.float64),
            "gradients": torch.from_numpy(
                np.array(gradients, dtype=np.float64).reshape(len(losses), len(descent.start))
            ),
            "done": max(descent.done, len(descent.losses) - 1) + self.is_over,
            "seconds": self.seconds + time.perf_counter() - self.start,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the evaluations; the parameters follow from them."""
        rows = zip(state["evaluated"].tolist(), state["gradients"].numpy(), strict=True)
        self.descent.evaluated = [(loss, gradient) for loss, gradient in rows]
        self.descent.done, self.seconds = state["done"], state["seconds"]


def _flat(tensors: Sequence[Tensor]) -> NDArray[np.float64]:
    return torch.cat([each.reshape(-1).double().cpu() for each in tensors]).numpy()


def _stands_still(losses: list[float]) -> bool:
    return len(losses) > TURNS and losses[-1 - TURNS] - losses[-1] < SMALL
