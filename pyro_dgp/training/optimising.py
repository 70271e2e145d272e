"""One run of an optimiser: Adam, a learning rate that falls at the end, and what can be gone on with."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from pyro.infer.elbo import ELBOModule
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_dgp.internal.finite import require_finite_gradients, require_finite_loss
from pyro_dgp.internal.global_store import require_none_loaded
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.internal.rows import Batch, Call
from pyro_dgp.internal.series import Series
from pyro_dgp.internal.subnormals import subnormals_as_zero
from pyro_dgp.internal.training_step import note_arguments, step_with
from pyro_dgp.internal.whole_numbers import whole_number
from pyro_dgp.training.checkpoints import (
    Run,
    Stateful,
    attributes_to_save,
    is_saving,
    optimizer_state,
    set_optimizer_state,
)
from pyro_dgp.training.distributed import processes
from pyro_dgp.training.remarks import Trained
from pyro_dgp.training.run_facts import attributes_of_modules, facts_of_run
from pyro_dgp.training.trained_model import KnownFindings, TrainedModel

#: Function ``callback(step, loss)`` that is called after each step; the loss is in nats per observation.
Callback = Callable[[int, float], object]


#: Function ``optimizer(objective, learning_rate)`` that builds an optimiser of the parameters of the objective.
OptimizerRecipe = Callable[[torch.nn.Module, float], torch.optim.Optimizer]


def adam(objective: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Build Adam with one learning rate for all parameters.

    >>> import torch
    >>> from pyro_dgp import adam
    >>> adam(torch.nn.Linear(2, 1), 0.02).param_groups[0]["lr"]
    0.02
    """
    return torch.optim.Adam(objective.parameters(), lr=learning_rate, fused=True)


def adam_for_networks(objective: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Build Adam with a tenth of the learning rate for the weights of networks.

    At a rate that suits kernels, rectifiers of a network can become zero for all inputs and stay so. Weights are
    recognised as plain parameters (``torch.nn.Parameter``); those of an adapted GPyTorch kernel are plain too.

    >>> import torch
    >>> from pyro_dgp import DeepGP, DeepKernel, FeatureExtractor, adam_for_networks
    >>> x = torch.randn(20, 3)
    >>> model = DeepKernel(FeatureExtractor(x, features=2), DeepGP(x[:, :2], layers=1))
    >>> [round(group["lr"], 4) for group in adam_for_networks(model, 0.02).param_groups]
    [0.02, 0.002]
    """
    named = dict(objective.named_parameters())
    own = [parameter for name, parameter in named.items() if name.endswith("_unconstrained")]
    weights = [parameter for name, parameter in named.items() if not name.endswith("_unconstrained")]
    groups = [{"params": own, "lr": learning_rate}, {"params": weights, "lr": learning_rate / 10}]
    return torch.optim.Adam(groups, fused=True)


@dataclass
class FitResult:
    """Record of a training run.

    :ivar losses: minus the objective at each step, nats per observation.
    :ivar seconds: wall-clock time of the run.
    :ivar trained: what was trained, a guide or a model by its marginal likelihood, and the data; nothing for other objectives, and for streams.

    >>> from pyro_dgp import FitResult
    >>> FitResult(losses=[1.5, 1.2], seconds=0.1).losses[-1]
    1.2
    """

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    trained: Trained | TrainedModel | KnownFindings | None = field(default=None, repr=False, compare=False)

    @property
    def remarks(self) -> list[str]:
        """Sentences on how the fit went, with the parameters that there are now.

        Of a guide they are those of :func:`~pyro_dgp.remarks`. Of a :class:`~pyro_dgp.MarginalLikelihood` they say whether it is above that of a normal that
        looks at no input, by more than its hyperparameters gain by chance, and whether the loss was still falling.
        """
        return [] if self.trained is None else self.trained.remarks(self.losses)

    def __repr__(self) -> str:
        last = f", last loss {self.losses[-1]:.4g}" if self.losses else ""
        return f"{type(self).__name__}({len(self.losses)} steps{last}, {self.seconds:.1f} s)"


def minimise(
    objective: torch.nn.Module,
    batches: Callable[[int], Iterator[Batch]],
    rows: int,
    *,
    order: Mapping[str, int],
    data_sets: int = 1,
    steps: int,
    learning_rate: float,
    callback: Callback | None,
    optimizer: OptimizerRecipe,
    stop: Callable[[int], bool] | None,
) -> FitResult:
    """Minimise over the rows of each step, in one process or in several.

    :param batches: the rows of each step, from a step on.
    :param order: what the order of the rows depends on.
    :param data_sets: number of data sets of so many rows that each step has.
    """
    steps = whole_number("steps", steps, 0)
    losses, start, together = Series(steps), time.perf_counter(), processes()

    def mean_loss(call: Call) -> Tensor:
        note_arguments(call)
        args, kwargs = call
        loss: Tensor = objective(*args, **kwargs) / rows
        return loss

    require_none_loaded(objective)
    with module_local_parameters(objective), subnormals_as_zero(objective):
        stepper = built_optimizer(optimizer, objective, learning_rate)
        settings = {"steps": steps, "rows": rows, "learning_rate": learning_rate, **order}
        run = Run(
            settings | facts_of_run(objective, stepper, is_saved=is_saving()),
            partial(attributes_of_modules, objective) if is_saving() else dict,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: decay(step / max(steps, 1)))
        state = _State(objective, stepper, schedule, losses, callback, stop, start=start)
        together.begin(
            run,
            state,
            lambda: float(mean_loss(next(batches(0))[slice(None)]).detach()) / data_sets,
            objective=objective,
            loss_of=mean_loss,
            batch=lambda: next(batches(0)),
        )
        done = len(losses)
        remaining = range(done, 0 if state.is_over else steps)
        with together.sharing(state.watchers, decides=stop is not None):
            for step, batch in zip(remaining, batches(done), strict=False):
                stepper.zero_grad()
                with step_with(len(batch), of=rows):
                    value = together.backward(objective, mean_loss, batch) / data_sets
                if step == done:
                    run.look()  # before a watcher evaluates the model at other rows
                require_finite_loss(value, [objective], partial(_terms, objective, batch), at=f" at step {step}")
                require_finite_gradients([objective], at=f" at step {step}")
                stepper.step()
                schedule.step()
                losses.append(value)
                is_stopped = together.watched(partial(state.watch, step, value), decides=stop is not None)
                state.is_over = is_stopped or step + 1 == steps
                if together.is_first:
                    run.stepped(state, float(losses.values[0]), is_last=state.is_over)
                if state.is_over:
                    break
    return FitResult(losses.values.tolist(), state.seconds + time.perf_counter() - start)


#: Kinds of parameters of a function that stand for one value.
_SINGLE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def built_optimizer(recipe: Any, objective: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Return the optimiser that a function of objective and learning rate builds.

    :raises TypeError: for anything but such a function, and for one that returns no optimiser of PyTorch.
    :raises ValueError: for an optimiser whose step needs a closure, and where no parameter is left to train.
    """
    require_trainable(objective)
    built = recipe(objective, learning_rate) if _takes_objective(recipe) else recipe
    if not isinstance(built, torch.optim.Optimizer) or built is recipe:
        got = f"the class {recipe.__name__}" if isinstance(recipe, type) else repr(recipe).split("\n")[0]
        got += "" if built is recipe else f", which returned {built!r}"
        raise TypeError(
            f"optimizer is a function of the objective and the learning rate that returns an optimiser of PyTorch, and got {got}: write it as in "
            "optimizer=lambda objective, lr: torch.optim.Adam(objective.parameters(), lr)"
        )
    own_step = list(inspect.signature(type(built).step).parameters.values())  # a schedule wraps that of the object
    if any(each.default is each.empty and each.kind in _SINGLE for each in own_step[1:]):
        raise ValueError(
            f"the step of {type(built).__name__} needs a function (closure) that computes the loss several times, and fit computes it once a step: "
            "take one whose step goes without, such as Adam or SGD"
        )
    return built


def require_trainable(objective: torch.nn.Module) -> None:
    """Raise where no parameter is left to train."""
    if not any(parameter.requires_grad for parameter in objective.parameters()):
        raise ValueError(
            "nothing is left to train: no parameter of the objective requires a gradient, so let some do, as in objective.requires_grad_(True)"
        )


def _takes_objective(recipe: Any) -> bool:
    """Tell whether a recipe can be called with an objective and a learning rate: no optimiser of Pyro, and no class that takes parameters."""
    if (
        not callable(recipe)
        or isinstance(recipe, PyroOptim)
        or str(getattr(recipe, "__module__", "")).startswith("pyro.optim")
    ):
        return False
    try:
        names = list(inspect.signature(recipe).parameters)
        inspect.signature(recipe).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a function in C has no signature
        return True
    kind = getattr(recipe, "func", recipe)  # of functools.partial
    return not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and names[0] == "params")


def _terms(objective: Any, batch: Batch) -> Mapping[str, Tensor]:
    """Return the terms of ``loss(model, guide)`` at the rows of a step, by name; nothing for other objectives."""
    args, kwargs = batch[slice(None)]
    inner = bare(objective)
    terms = getattr(getattr(inner, "elbo", None), "terms", None)
    return {} if terms is None else dict(terms(inner.model, inner.guide, *args, **kwargs))


def bare(objective: Any) -> Any:
    """Return an objective without what compiles it, adds a prior to it, joins it to other processes, such as ``DistributedDataParallel``, or adds a term of the user's.

    A module of the user's with several objectives inside, which may be of different rows, is returned as it is: see :func:`losses_in`.
    """
    inside = losses_in(objective)
    if inside:
        return inside[0] if len(inside) == 1 else objective
    while True:
        inner = getattr(objective, "module", getattr(objective, "objective", objective))
        if inner is objective or not isinstance(inner, torch.nn.Module):
            return objective
        objective = inner


def losses_in(objective: Any) -> list[torch.nn.Module]:
    """Return the losses of a model and a guide, and other objectives of a model, that an objective is made of: itself, if it is one."""
    if not isinstance(objective, torch.nn.Module):
        return []
    if _is_of_a_loss(objective):
        return [objective]
    found = [loss for child in objective.children() for loss in losses_in(child)]
    return list(dict.fromkeys(found))


def _is_of_a_loss(module: torch.nn.Module) -> bool:
    """Tell whether a module is a loss of a model and a guide, or another objective of a model."""
    return isinstance(module, ELBOModule) or hasattr(module, "needs_all_rows")


def rows_of_loss(objective: Any) -> int | None:
    """Return the ``num_data`` of the loss of an objective; ``None`` where it has none."""
    inner = bare(objective)
    rows: int | None = getattr(getattr(inner, "elbo", inner), "num_data", None)
    return rows


@dataclass
class _State:
    """State of a run of the optimiser, from which it can go on.

    :ivar losses: minus the objective at each step.
    :ivar callback: and ``stop``, whose states belong to it if they have any.
    :ivar start: when this part of the run began.
    :ivar seconds: time of the parts before.
    :ivar is_over: whether the run has ended.
    """

    objective: torch.nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    losses: Series
    callback: Any
    stop: Any
    start: float
    seconds: float = 0.0
    is_over: bool = False

    def __post_init__(self) -> None:
        """Note how attributes begin."""
        self.attributes = attributes_to_save(self.objective, self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """See :class:`~pyro_dgp.training.checkpoints.Stateful`."""
        return {
            "parameters": self.objective.state_dict(),
            "attributes": self.attributes.changed(),
            "optimizer": {} if self.is_over else optimizer_state(self.optimizer),
            "losses": torch.from_numpy(self.losses.values),
            "seconds": self.seconds + time.perf_counter() - self.start,
            "watchers": [each.state_dict() if isinstance(each, Stateful) else None for each in self.watchers],
            "is_over": self.is_over,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the state."""
        self.objective.load_state_dict(state["parameters"])
        self.attributes.set(state.get("attributes", {}))
        self.is_over = state["is_over"]
        if not self.is_over:
            set_optimizer_state(self.optimizer, state["optimizer"])
        self.losses.set(state["losses"].tolist())
        self.seconds, self.schedule.last_epoch = state["seconds"], len(self.losses)
        for each, own in zip(self.watchers, state["watchers"], strict=True):
            if isinstance(each, Stateful):
                each.load_state_dict(own)

    def watch(self, step: int, value: float) -> bool:
        """Call the watchers after a step, and return whether the run is to stop."""
        if self.callback is not None:
            self.callback(step, value)
        return self.stop is not None and bool(self.stop(step + 1))  # which looks at the last step, too

    @property
    def watchers(self) -> tuple[Any, Any]:
        """Functions that are called after each step."""
        return self.callback, self.stop


def decay(progress: float) -> float:
    """Return the factor of the learning rate after a share ``progress`` of the steps."""
    if progress <= 0.6:
        return 1.0
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (progress - 0.6) / 0.4))
