"""Minimisation by L-BFGS of a loss without random numbers, all rows in each evaluation, until it stands still."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal.finite import require_finite_loss
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.training.checkpoints import Run, facts_of, is_saving, optimizer_state, set_optimizer_state
from pyro_dgp.training.loop import check_objective, groups_of_objective, guide_of, require_loss, training_rows
from pyro_dgp.training.optimising import Callback, FitResult, require_trainable
from pyro_dgp.training.remarks import Trained
from pyro_dgp.training.run_facts import attributes_of_modules, facts_of_run

#: Changes of the loss, nats a row, that count as none, and how many of them in turn end a run.
SMALL, TURNS = 1e-7, 3
#: What a step into parameters that have no loss raises.
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
    """Minimise ``objective(x, y)`` over its parameters by L-BFGS (Liu and Nocedal 1989), in place, until the loss stands still.

    It is made for exact GP regression, :class:`~pyro_dgp.MarginalLikelihood`: a step evaluates the loss of all rows once or twice, and far fewer steps
    are needed than by :func:`~pyro_dgp.fit`. The objective must give the same number each time, so that losses by samples, and likelihoods from some
    terms, are refused. A step that fails or leads up is undone, and tried once more without the memory of the steps before.

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

    with module_local_parameters(objective):
        descent = Descent(mean_loss, [each for each in objective.parameters() if each.requires_grad])
        require_finite_loss(descent.losses[0], [objective], dict, at=" at the start")
        _require_no_draws(mean_loss, descent.losses[0])
        facts = {"steps": steps, "rows": len(rows), **facts_of(rows.tensors)}
        run = Run(
            facts | facts_of_run(objective, descent.stepper, is_saved=is_saving()),
            partial(attributes_of_modules, objective) if is_saving() else dict,
        )
        state = _State(objective, descent, start)
        run.resume(state, lambda: float(mean_loss().detach()))
        while not descent.is_over and len(descent.losses) <= steps:
            if descent.step() and callback is not None:
                callback(len(descent.losses) - 2, descent.losses[-1])
            run.stepped(state, descent.losses[0], is_last=descent.is_over or len(descent.losses) > steps)
    guide = guide_of(objective)
    trained = None if guide is None else Trained(guide, (x, y), arguments)
    return FitResult(descent.losses[1:], state.seconds_so_far, trained)


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
    """Steps of L-BFGS down a loss. One that fails or leads up is undone, and tried once more without the memory of the steps before.

    :ivar losses: that of the start, and after each step.
    :ivar is_over: whether the loss stands still.

    >>> import torch
    >>> at = torch.tensor([3.0, -2.0], requires_grad=True)
    >>> descent = Descent(lambda: ((at - 1).square() * torch.tensor([1.0, 9.0])).sum(), [at])
    >>> while not descent.is_over:
    ...     fell = descent.step()
    >>> torch.allclose(at, torch.ones(2), atol=1e-3)
    True

    :param loss: evaluates the loss at the present values of the parameters, nats a row.
    :param parameters: what it is minimised over.
    """

    def __init__(self, loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
        self._evaluate = _Evaluations(loss, parameters)
        self.parameters, self.losses = parameters, [float(self._evaluate())]
        self.stepper, self.is_fresh, self.is_over = _stepper(parameters), True, False

    def step(self) -> bool:
        """Make one step, and return whether the loss fell. Raises what the first one raises, if no step can be made."""
        before, failure = [each.detach().clone() for each in self.parameters], None
        self._evaluate.forget_others()
        try:
            self.stepper.step(self._evaluate)
            value = float(self._evaluate())
        except _NO_LOSS as error:
            value, failure = math.inf, error
        has_fallen = value < self.losses[-1]
        if has_fallen:
            self.losses.append(value)
        else:
            with torch.no_grad():
                for each, old in zip(self.parameters, before, strict=True):
                    each.copy_(old)
        if has_fallen and not _stands_still(self.losses):
            self.is_fresh = False
        elif self.is_fresh:
            self.is_over = True
            if failure is not None and len(self.losses) == 1:
                raise failure
        else:
            self.stepper, self.is_fresh = _stepper(self.parameters), True
        return has_fallen


class _Evaluations:
    """Evaluates a loss and its gradient. L-BFGS comes back to points of the step before, whose numbers are kept.

    :param loss: evaluates the loss at the present values of the parameters.
    """

    def __init__(self, loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
        self.loss, self.parameters = loss, parameters
        self._known: list[tuple[list[Tensor], Tensor, list[Tensor | None]]] = []

    def __call__(self) -> Tensor:
        """Return the loss, and set the gradients of the parameters."""
        found = self._here()
        if found is None:
            for each in self.parameters:
                each.grad = None
            with torch.enable_grad():
                loss = self.loss()
                if loss.requires_grad:
                    loss.backward()  # type: ignore[no-untyped-call]
            point = [each.detach().clone() for each in self.parameters]
            found = point, loss.detach(), [each.grad for each in self.parameters]
            self._known.append(found)
        _, loss, gradients = found
        for each, gradient in zip(self.parameters, gradients, strict=True):
            each.grad = None if gradient is None else gradient.clone()
        return loss

    def forget_others(self) -> None:
        """Keep the numbers of the present point alone."""
        here = self._here()
        self._known = [] if here is None else [here]

    def _here(self) -> tuple[list[Tensor], Tensor, list[Tensor | None]] | None:
        return next((known for known in self._known if all(map(torch.equal, known[0], self.parameters))), None)


class _State:
    """State of a descent, from which it can go on: see :class:`~pyro_dgp.training.checkpoints.Stateful`."""

    def __init__(self, objective: torch.nn.Module, descent: Descent, start: float) -> None:
        self.objective, self.descent, self.start, self.seconds = objective, descent, start, 0.0

    @property
    def seconds_so_far(self) -> float:
        """Time of this part of the run and of those before."""
        return self.seconds + time.perf_counter() - self.start

    def state_dict(self) -> dict[str, Any]:
        """See :class:`~pyro_dgp.training.checkpoints.Stateful`."""
        descent = self.descent
        return {
            "parameters": self.objective.state_dict(),
            "optimizer": {} if descent.is_over or descent.is_fresh else optimizer_state(descent.stepper),
            "losses": torch.tensor(descent.losses, dtype=torch.float64),
            "seconds": self.seconds_so_far,
            "is_fresh": descent.is_fresh,
            "is_over": descent.is_over,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the state."""
        descent = self.descent
        self.objective.load_state_dict(state["parameters"])
        if state["optimizer"]:
            set_optimizer_state(descent.stepper, state["optimizer"])
        descent.losses = state["losses"].tolist()
        descent.is_fresh, descent.is_over, self.seconds = state["is_fresh"], state["is_over"], state["seconds"]


def _stepper(parameters: Sequence[Tensor]) -> torch.optim.LBFGS:
    """Return L-BFGS without memory, of one step a call; a line search evaluates 25 points at most."""
    return torch.optim.LBFGS(parameters, max_iter=1, max_eval=25, history_size=20, line_search_fn="strong_wolfe")


def _stands_still(losses: list[float]) -> bool:
    return len(losses) > TURNS and losses[-1 - TURNS] - losses[-1] < SMALL
