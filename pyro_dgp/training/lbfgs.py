"""Minimisation by L-BFGS-B of a loss without random numbers, all rows in each evaluation, until it stands still."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dgp.diagnosis.loss_checks import falling_at_the_end
from pyro_dgp.internal.finite import require_finite_loss
from pyro_dgp.internal.global_store import require_none_loaded
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.parameters import limits_of_parameters, module_local_parameters
from pyro_dgp.internal.training_step import note_arguments, step_with
from pyro_dgp.internal.whole_numbers import whole_number
from pyro_dgp.training.checkpoints import (
    CheckpointError,
    Run,
    attributes_to_save,
    facts_of,
    is_saving,
    random_state,
    set_random_state,
)
from pyro_dgp.training.left_out import warn_of_left_out
from pyro_dgp.training.loop import (
    check_objective,
    groups_of_objective,
    guide_of,
    require_loss,
    settle,
    trained_by,
    training_rows,
)
from pyro_dgp.training.optimising import Callback, FitResult, require_trainable
from pyro_dgp.training.run_facts import attributes_of_modules, facts_of_modules

#: Changes of the loss, nats a row, that count as none, and how many of them in turn end a run.
SMALL, TURNS = 1e-7, 3
#: Steps that the next one is made from.
MEMORY = 20
#: How far a positive number, such as a lengthscale, goes from its start, as shares of it.
LOWEST, HIGHEST = 1e-8, 1e6
#: Parameters with their lowest and their highest values.
Limits = Iterable[tuple[Tensor, Tensor, Tensor]]


class Evaluation(NamedTuple):
    """Values of all parameters, with the loss and its gradient there; NaN for a loss that there is not."""

    point: NDArray[np.float64]
    loss: float
    gradient: NDArray[np.float64]


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
    terms, are refused. Lengthscales, variances of kernels and other positive numbers stay between 1e-8 and 1e6 times where they begin. Where a trial of a
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
    steps = whole_number("steps", steps, 0)
    groups = groups_of_objective(objective, (x, y), arguments)
    rows, start = training_rows(x, y, arguments, modules=[objective], groups=groups), time.perf_counter()
    check_objective(objective, len(rows), len(rows))
    warn_of_left_out(guide_of(objective), rows, call="fit_lbfgs(objective, x, y, {name}=...)")
    require_trainable(objective)
    observations = y.shape[: rows.axis_of(y)].numel() * len(rows)

    def mean_loss() -> Tensor:
        with step_with(len(rows), of=len(rows)):
            note_arguments(((x, y), arguments))
            loss: Tensor = objective(x, y, **arguments) / observations
        return loss

    trained = {name: each for name, each in objective.named_parameters() if each.requires_grad}
    require_none_loaded(objective)
    with module_local_parameters(objective):
        limits = limits_of_parameters(objective, lowest=LOWEST, highest=HIGHEST)
        descent = Descent(mean_loss, list(trained.values()), limits=limits, keeps=is_saving())
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
    settle(objective, x, y, arguments)
    known = trained_by(objective, rows, falling_at_the_end)
    return FitResult(losses[1:], state.seconds + time.perf_counter() - start, known)


@torch.no_grad()
def _value(loss: Callable[[], Tensor]) -> float:
    return float(loss())


def _require_no_draws(loss: Callable[[], Tensor], first: float) -> None:
    """Raise if an evaluation draws random numbers, which may not matter yet where it is made, or if a second one differs from the first."""
    before = random_state()
    with torch.no_grad():
        value = loss()
    after = random_state()
    set_random_state(before)
    has_drawn = any(
        not torch.equal(one, other) for one, other in zip(_generators(before), _generators(after), strict=True)
    )
    tolerance = math.sqrt(torch.finfo(value.dtype).eps)
    if has_drawn or not math.isclose(float(value), first, rel_tol=tolerance, abs_tol=tolerance):
        raise ValueError(
            "the objective draws random numbers, and L-BFGS wants the same loss each time: take fit, or an objective without samples, such as "
            "MarginalLikelihood(model) without terms"
        )


def _generators(state: dict[str, Any]) -> list[Tensor]:
    """Return the states of the generators of torch, and the words and the place in these of NumPy's."""
    numpy = state["numpy"]
    return [state["torch"], numpy["keys"], torch.tensor(numpy["rest"][1]), *state.get("cuda", [])]


class Descent:
    """Steps of L-BFGS-B down a loss.

    Its evaluations can be kept. One that has some already goes through them first, without evaluating anything, and comes to where they were made.

    :ivar losses: that of the start, and after each step.
    :ivar start: values of all parameters at the start, in one row.
    :ivar evaluated: point, loss and gradient of each evaluation in turn, where they are kept; NaN for the loss of one that failed.
    :ivar done: steps that were made before, after which nobody is called again.
    :ivar restore: called once the evaluations that there were have been gone through.

    >>> import torch
    >>> at = torch.tensor([3.0, -2.0], requires_grad=True)
    >>> losses = Descent(lambda: ((at - 1).square() * torch.tensor([1.0, 9.0])).sum(), [at]).go(100)
    >>> torch.allclose(at, torch.ones(2), atol=1e-3), losses[0]
    (True, 85.0)

    :param loss: evaluates the loss at the present values of the parameters, nats a row.
    :param parameters: what it is minimised over.
    :param limits: those of them that have limits, with the lowest and the highest values.
    :param keeps: whether evaluations are kept.
    """

    def __init__(
        self, loss: Callable[[], Tensor], parameters: Sequence[Tensor], *, limits: Limits = (), keeps: bool = False
    ) -> None:
        self.loss, self.parameters, self.keeps = loss, parameters, keeps
        self.losses: list[float] = []
        self.evaluated: list[Evaluation] = []
        self.done, self.restore = 0, _nothing
        self.start = _flat([each.detach() for each in parameters])
        known = {id(parameter): (low, high) for parameter, low, high in limits}
        without = [(torch.full_like(each, -math.inf), torch.full_like(each, math.inf)) for each in parameters]
        ends = [known.get(id(each), free) for each, free in zip(parameters, without, strict=True)]
        self._limits = np.stack([_flat([low for low, _ in ends]), _flat([high for _, high in ends])], -1)
        self._count = 0
        self._last: Evaluation | None = None

    def go(self, steps: int, after: Callable[[int, float], object] | None = None) -> list[float]:
        """Make so many steps at most, set the parameters to where they end, and return the losses.

        :param after: function of step and loss, called after each step.
        :raises Exception: what an evaluation raises before the first step is made.
        """
        from scipy.optimize import minimize

        at = self._evaluation(self.start)
        if not math.isfinite(at.loss):
            raise ValueError(
                "the gradient of the loss holds NaN or infinity at the start: look at the parameters, and scale inputs and targets"
            )
        self.losses.append(at.loss)
        base = [at]
        unit = max(1.0, float(np.linalg.norm(at.gradient)))  # SciPy's first trial is as far as the gradient is long

        def stepped(_: NDArray[np.float64]) -> None:
            if self._last is None or not self._last.loss < self.losses[-1]:
                raise StopIteration
            base[0] = self._last
            self.losses.append(base[0].loss)
            if after is not None and len(self.losses) - 1 > self.done:
                self._set(base[0].point)
                after(len(self.losses) - 2, base[0].loss)
            if _stands_still(self.losses):
                raise StopIteration

        def evaluate(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            found = at if np.array_equal(values, at.point) else self._evaluation(values)
            if math.isfinite(found.loss):
                self._last = found
                return found.loss / unit, found.gradient / unit
            rise = abs(float(base[0].gradient @ (values - base[0].point))) or 1.0  # which leads to a shorter step
            return (base[0].loss + rise) / unit, np.zeros_like(values)

        options = {"maxiter": steps, "maxcor": MEMORY, "ftol": 0.0, "gtol": 1e-6 / unit, "maxfun": 30 * steps + 30}
        limits = {"bounds": self._limits, "options": options}
        try:
            if steps > 0:
                minimize(evaluate, self.start, jac=True, method="L-BFGS-B", callback=stepped, **limits)
        finally:
            self._set(base[0].point)
        if self._count <= len(self.evaluated):
            self._end_of_record()
        return self.losses

    def _evaluation(self, values: NDArray[np.float64]) -> Evaluation:
        """Return loss and gradient at some values, those that are known first; NaN where there is no loss."""
        self._count += 1
        if self._count <= len(self.evaluated):
            known = self.evaluated[self._count - 1]
            if not np.array_equal(known.point, values):
                raise CheckpointError(
                    "the run that is saved goes through other parameters than this one, as those of another release of SciPy may: delete its checkpoint"
                )
            return known
        self._end_of_record()
        self._set(values)
        found = self._new_evaluation(values.copy())
        if self.keeps:
            self.evaluated.append(found)
        return found

    def _end_of_record(self) -> None:
        restore, self.restore = self.restore, _nothing
        restore()

    def _new_evaluation(self, values: NDArray[np.float64]) -> Evaluation:
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
            return Evaluation(values, math.nan, np.zeros_like(values))
        gradient = _flat([torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters])
        is_sound = bool(torch.isfinite(loss)) and bool(np.isfinite(gradient).all())
        return Evaluation(values, float(loss.detach()) if is_sound else math.nan, gradient)

    @torch.no_grad()
    def _set(self, values: NDArray[np.float64]) -> None:
        parts = torch.as_tensor(values).split([each.numel() for each in self.parameters])
        for each, part in zip(self.parameters, parts, strict=True):
            each.copy_(part.view_as(each))


class _State:
    """Evaluations that a descent goes on from: see :class:`~pyro_dgp.training.checkpoints.Stateful`."""

    def __init__(self, objective: torch.nn.Module, descent: Descent, start: float) -> None:
        self.objective, self.descent, self.start = objective, descent, start
        self.seconds, self.is_over = 0.0, False
        self.attributes = attributes_to_save(objective)

    def state_dict(self) -> dict[str, Any]:
        """See :class:`~pyro_dgp.training.checkpoints.Stateful`."""
        descent, width = self.descent, len(self.descent.start)
        known = descent.evaluated
        return {
            "parameters": self.objective.state_dict(),
            "attributes": self.attributes.changed(),
            "points": torch.from_numpy(np.array([each.point for each in known]).reshape(len(known), width)),
            "losses": torch.tensor([each.loss for each in known], dtype=torch.float64),
            "gradients": torch.from_numpy(np.array([each.gradient for each in known]).reshape(len(known), width)),
            "done": max(descent.done, len(descent.losses) - 1) + self.is_over,
            "seconds": self.seconds + time.perf_counter() - self.start,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the evaluations, from which the parameters follow, and what else the modules had when these have been gone through."""
        columns = state["points"].numpy(), state["losses"].tolist(), state["gradients"].numpy()
        self.descent.evaluated = [Evaluation(*each) for each in zip(*columns, strict=True)]
        self.descent.done, self.seconds = state["done"], state["seconds"]
        saved, attributes = state["parameters"], state.get("attributes", {})

        @torch.no_grad()
        def restore() -> None:
            for name, buffer in self.objective.named_buffers():
                if name in saved:
                    buffer.copy_(saved[name])
            self.attributes.set(attributes)

        self.descent.restore = restore


def _nothing() -> None:
    """Do nothing."""


def _flat(tensors: Sequence[Tensor]) -> NDArray[np.float64]:
    return torch.cat([each.reshape(-1).double().cpu() for each in tensors]).numpy()


def _stands_still(losses: list[float]) -> bool:
    return len(losses) > TURNS and losses[-1 - TURNS] - losses[-1] < SMALL
