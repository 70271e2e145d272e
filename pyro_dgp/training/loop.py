"""The training loop: the rows of each step, from memory or from a stream, and the checks before the first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Size, Tensor

from pyro_dgp.data.streams import Stream
from pyro_dgp.diagnosis.loss_checks import still_falling
from pyro_dgp.diagnosis.symptoms import Finding
from pyro_dgp.guides.row_dependence import groups_of
from pyro_dgp.guides.sites import takes_missing
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.parameters import evaluating, module_local_parameters
from pyro_dgp.internal.rows import Call, RowArguments, TakenRows, num_rows
from pyro_dgp.internal.tensors import require_tensor
from pyro_dgp.internal.training_step import all_rows_message, num_data_message
from pyro_dgp.internal.whole_numbers import whole_number
from pyro_dgp.losses.marginal import MarginalLikelihood
from pyro_dgp.training.any_order import require_any_order
from pyro_dgp.training.checkpoints import facts_of
from pyro_dgp.training.left_out import read_rows, require_no_rows, warn_of_left_out
from pyro_dgp.training.optimising import Callback, FitResult, OptimizerRecipe, adam, bare, losses_in, minimise
from pyro_dgp.training.remarks import Trained
from pyro_dgp.training.trained_model import TrainedModel

#: Rows in a step where nothing else is said, from memory and from a stream.
DEFAULT_ROWS, STREAMED_ROWS = 256, 1024


def steps_for(epochs: int, rows: int, batch_size: int) -> int:
    """Return the number of steps in ``epochs`` passes over ``rows`` observations."""
    return epochs * math.ceil(rows / min(batch_size, rows))


def batches(rows: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Iterate over batches of row indices without end.

    The rows are shuffled before each pass. If they fit into one batch, each batch is all rows in order.
    """
    if batch_size >= rows:
        while True:
            yield torch.arange(rows)
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(rows, generator=generator).split(batch_size)


def fit(
    objective: torch.nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch_size: int | None = None,
    learning_rate: float = 0.02,
    seed: int = 0,
    callback: Callback | None = None,
    optimizer: OptimizerRecipe = adam,
    stop: Callable[[int], bool] | None = None,
    **arguments: Any,
) -> FitResult:
    """Minimise ``objective(x_batch, y_batch)`` over its parameters, in place.

    The learning rate is constant for the first 60 % of the steps and then falls along a half cosine to a hundredth.
    With groups, a plate around the GPs or a batch of data sets, a step has the same rows of all of them. The gradient of
    each is that of its own loss, so that parameters of single groups train as they would alone.

    :param objective: ``loss(model, guide)``, or a :class:`~pyro_dgp.losses.MarginalLikelihood`; nats in total.
    :param x: training inputs ``(N, D)``, or ``(B, N, D)`` for B data sets with functions of their own.
    :param y: targets ``(N,)`` or ``(N, D_out)``; with groups ``(*groups, N)`` or ``(*groups, N, D_out)``.
    :param steps: number of steps of the optimiser.
    :param batch_size: number of rows in a step, of each group if there are any. If not given, it is 256, and all rows for an objective that
        needs them, such as the marginal likelihood, or a model that joins rows of function values, as ``f.cumsum(-1)`` does.
    :param learning_rate: learning rate of the first steps.
    :param seed: seed of the order of the batches.
    :param callback: function of step and loss, called after each step.
    :param optimizer: builds the optimiser from the objective and the learning rate; Adam by default.
    :param stop: function of the number of steps done, called after each step; true ends the run.
    :param arguments: further arguments of the model, such as ``exposure=e``. A tensor whose first dimension is N, or
        ``(*groups, N)``, is a row argument, of which a step gets the rows of its batch; all others go to each step whole.

    >>> import torch
    >>> from pyro_dgp import DeepGP, MarginalLikelihood, fit
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> result = fit(MarginalLikelihood(DeepGP(x, layers=1)), x, y, steps=20, learning_rate=0.05)
    >>> len(result.losses), result.losses[-1] < result.losses[0]
    (20, True)
    """
    require_loss(objective)
    rows = training_rows(x, y, arguments, modules=[objective], groups=groups_of_objective(objective, (x, y), arguments))
    batch_size = _rows_of_step(objective, len(rows), batch_size)
    check_objective(objective, len(rows), batch_size)
    guide = guide_of(objective)
    warn_of_left_out(guide, rows, call="fit(objective, x, y, {name}=...)")
    trained = trained_by(objective, rows)
    with _says_one_row(len(rows), batch_size):
        result = minimise(
            objective,
            lambda start: (
                TakenRows(rows, index) for index in itertools.islice(batches(len(rows), batch_size, seed), start, None)
            ),
            len(rows),
            order={"batch_size": min(batch_size, len(rows)), "seed": seed, **facts_of(rows.tensors)},
            data_sets=y.shape[: rows.axis_of(y)].numel(),
            steps=steps,
            learning_rate=learning_rate,
            callback=callback,
            optimizer=optimizer,
            stop=stop,
        )
    settle(objective, x, y, arguments)
    result.trained = trained
    return result


def settle(objective: torch.nn.Module, x: Tensor, y: Tensor, arguments: Mapping[str, Any]) -> None:
    """Let each loss that has the best q(v) put in, such as :class:`~pyro_dgp.CollapsedELBO`, set q(v) of its guide to it, by what the objective gives it."""
    settling = [loss for loss in losses_in(objective) if hasattr(loss, "settle")]
    given: dict[torch.nn.Module, Call] = {}

    def note(loss: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before = given.get(loss)
        if before is None or _first_rows(args) > _first_rows(before[0]):  # all rows, where it is given some too
            given[loss] = args, kwargs

    if settling == [objective]:
        given[objective] = (x, y), dict(arguments)
    elif settling:
        hooks = [loss.register_forward_pre_hook(note, with_kwargs=True) for loss in settling]
        try:
            with module_local_parameters(objective), evaluating(objective), torch.no_grad(), torch.random.fork_rng():
                objective(x, y, **arguments)
        except RuntimeError:  # an objective that takes gradients by itself
            pass
        finally:
            for hook in hooks:
                hook.remove()
    for loss in settling:
        args, kwargs = given.get(loss, ((x, y), dict(arguments)))  # which it is given where it is called by its forward
        cast(Any, loss).settle(*args, **kwargs)


def _first_rows(args: tuple[Any, ...]) -> int:
    return num_rows(args[0]) if args and isinstance(args[0], Tensor) else 0


def fit_stream(
    objective: torch.nn.Module,
    stream: Stream,
    *,
    steps: int,
    batch_size: int | None = None,
    learning_rate: float = 0.02,
    seed: int = 0,
    callback: Callback | None = None,
    optimizer: OptimizerRecipe = adam,
    stop: Callable[[int], bool] | None = None,
    **arguments: Any,
) -> FitResult:
    """Minimise an objective as :func:`fit` does, on rows that stay on disk.

    Initialise the guide on a part of the rows first, such as ``guide.initialize(*stream.sample(10_000))``.

    :param objective: ``loss(model, guide)`` of a loss with ``num_data=len(stream)``.
    :param stream: source of the rows, a :class:`~pyro_dgp.data.streams.Stream`, and of row arguments that its batches hold
        after x and y. The other parameters are those of :func:`fit`.
    :param batch_size: number of rows in a step. If not given, it is 1024, and all rows for an objective that needs them, such as the marginal
        likelihood.
    :param arguments: arguments of the model that have no rows, passed whole to each step.

    >>> import numpy as np, tempfile
    >>> from pathlib import Path
    >>> from pyro_dgp import ELBO, DeepGP, InducingPoints, MonteCarlo, NumpyStream, Variational, fit_stream
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(Path(folder, "x.npy"), np.random.randn(60, 2))
    ...     np.save(Path(folder, "y.npy"), np.random.randn(60))
    ...     stream = NumpyStream(Path(folder, "x.npy"), Path(folder, "y.npy"))
    ...     x, y = stream.sample(20)
    ...     guide = Variational(DeepGP(x, layers=1), InducingPoints(20), MonteCarlo(1))
    ...     guide.initialize(x, y)
    ...     result = fit_stream(ELBO(num_data=60)(guide.model, guide), stream, steps=3, batch_size=30)
    >>> len(result.losses)
    3
    """
    require_loss(objective)
    settling = next((loss for loss in losses_in(objective) if hasattr(loss, "settle")), None)
    if settling is not None:
        raise ValueError(
            f"{type(settling).__name__} sets q(v) by all rows at the end, and a stream gives them in parts: read the rows into memory and use fit, or take ELBO"
        )
    guide = guide_of(objective)
    require_no_rows(guide, arguments, len(stream))
    batch_size = _rows_of_step(objective, len(stream), batch_size, default=STREAMED_ROWS)
    if guide is not None:
        require_any_order(guide, len(stream))
    check_objective(objective, len(stream), batch_size)
    if guide is not None and guide.groups:
        raise ValueError(
            f"a stream has rows (N, D) and (N,), and the guide holds functions for groups of shape {tuple(guide.groups)}: "
            "read the rows into memory, y (*groups, N), and use fit"
        )
    with _says_one_row(len(stream), batch_size):
        return minimise(
            objective,
            lambda start: read_rows(guide, stream.batches(batch_size, seed, start), arguments),
            len(stream),
            order={"batch_size": batch_size, "seed": seed},
            steps=steps,
            learning_rate=learning_rate,
            callback=callback,
            optimizer=optimizer,
            stop=stop,
        )


def check_data(x: Tensor, y: Tensor, modules: Sequence[Any]) -> None:
    """Raise for NaN or infinity; NaN may stand in y where a likelihood takes missing outputs.

    :param modules: what is trained.
    """
    require_tensor(x, "training inputs are")
    require_tensor(y, "targets are", "y")
    if not bool(torch.isfinite(x).all()):
        raise ValueError("x holds NaN or infinity: drop or fill such rows before training")
    bad = ~torch.isfinite(y)
    if bool(bad.any()) and bool((bad & ~y.isnan()).any() if takes_missing(*modules) else True):
        raise ValueError(
            "y holds NaN or infinity: drop or fill such rows before training, or, where NaN is an output that was not observed, wrap the "
            "likelihood, MissingOutputs(likelihood)"
        )


def training_rows(
    x: Tensor, y: Tensor, arguments: Mapping[str, Any], *, modules: Sequence[Any], groups: Size | None = None
) -> RowArguments:
    """Return the arguments of a training step, row by row; raise for NaN or infinity, or unequal numbers of rows.

    :param modules: what is trained.
    :param groups: the groups of the model; the batch axes of x if not given.
    """
    check_data(x, y, modules)
    if x.dim() < 2:
        raise ValueError(f"training inputs have shape (..., N, D), got {tuple(x.shape)}: use x[:, None] for one input")
    rows = RowArguments((x, y), arguments, groups=groups)
    if rows.axis_of(y) is None:
        wanted = ", ".join(map(str, (*rows.groups, len(rows))))
        if rows.groups:
            raise ValueError(
                f"x has shape {tuple(x.shape)} and y has shape {tuple(y.shape)}, and the model's functions have groups of shape "
                f"{tuple(rows.groups)}: pass y ({wanted}), a target for each row of each group"
            )
        held = len(y) if y.dim() else 0
        raise ValueError(
            f"x has {len(rows)} rows and y has {held}: pass a target for each row, or train by SVI or a loop of your own"
        )
    rows.require_finite("training")
    return rows


def guide_of(objective: Any) -> Variational | None:
    """Return the guide of an objective, which may be compiled; ``None`` where it has none that is initialised."""
    guide = getattr(bare(objective), "guide", None)
    return guide if isinstance(guide, Variational) and guide.is_initialized else None


def trained_by(
    objective: Any, rows: RowArguments, on_losses: Callable[[Sequence[float]], Iterable[Finding]] = still_falling
) -> Trained | TrainedModel | None:
    """Return what an objective is about to train, of which remarks can be made; ``None`` where it has no guide that is initialised and is no likelihood.

    :param rows: x, y and further arguments.
    :param on_losses: what is found of the losses.
    """
    if (guide := guide_of(objective)) is not None:
        x, y = rows.args
        return Trained(guide, (x, y), rows.kwargs, on_losses=on_losses, may_explode=trains_density(objective))
    own = bare(objective)
    return TrainedModel(own, rows, on_losses=on_losses) if isinstance(own, MarginalLikelihood) else None


def trains_density(objective: Any) -> bool:
    """Whether an objective is that of a loss that trains the density of the targets."""
    return bool(getattr(getattr(bare(objective), "elbo", None), "trains_density", False))


def groups_of_guide(guide: Variational, args: tuple[Tensor, ...], arguments: Mapping[str, Any]) -> Size:
    """Return the groups of a guide; of one that is not yet initialised, by a run of its model."""
    if guide.is_initialized:
        return guide.groups
    with module_local_parameters(*guide.model_modules):
        return groups_of(guide.model, args, arguments)


def groups_of_objective(objective: Any, args: tuple[Tensor, ...], arguments: Mapping[str, Any]) -> Size | None:
    """Return the groups of the model of an objective; ``None`` for an objective that is not of this library."""
    inner = bare(objective)
    if isinstance(inner, MarginalLikelihood):
        with module_local_parameters(inner):
            return groups_of(inner.model, args, arguments)
    guide = guide_of(objective)
    return None if guide is None else guide.groups


def _rows_of_step(objective: Any, rows: int, batch_size: int | None, *, default: int = DEFAULT_ROWS) -> int:
    """Return the number of rows in a step; raise for fewer than all where the objective, or its model, needs all."""
    batch_size = None if batch_size is None else whole_number("batch_size", batch_size, 1)
    losses = losses_in(objective)
    joins = any(guide is not None and guide.structure.joins_data_rows for guide in map(guide_of, losses))
    needing = [loss for loss in losses if getattr(loss, "needs_all_rows", False)]
    if not (joins or needing):
        return default if batch_size is None else batch_size
    if batch_size is not None and batch_size < rows and len(losses) == 1:
        if joins:
            raise ValueError(
                f"a part of the model joins rows of function values, which a batch of {batch_size} of {rows} rows changes: leave batch_size out, or give {rows}, so that each step has all rows"
            )
        raise ValueError(all_rows_message(type(needing[0]).__name__, batch_size, of=rows))
    return rows if batch_size is None else batch_size


def require_loss(objective: torch.nn.Module) -> None:
    """Raise for a guide in the place of an objective."""
    if isinstance(objective, Variational):
        raise TypeError(
            "training minimises a loss of model and guide, not the guide alone: give ELBO(num_data=N)(guide.model, guide), or another loss, with N the number of rows"
        )


def check_objective(objective: torch.nn.Module, rows: int, batch_size: int) -> None:
    """Raise for an objective that is no module, and for a loss whose ``num_data`` is not the number of rows."""
    if not isinstance(objective, torch.nn.Module):
        raise TypeError(
            f"the objective is loss(model, guide), a torch.nn.Module, not {type(objective).__name__}: call the loss on both"
        )
    if not torch.is_grad_enabled():
        raise ValueError(
            "training needs gradients, which are off here: call fit outside torch.no_grad() and torch.inference_mode()"
        )
    inner: Any = bare(objective)
    loss: Any = getattr(inner, "elbo", inner)
    if not hasattr(loss, "num_data"):
        return
    if loss.num_data is None and batch_size >= rows:
        return
    if loss.num_data != rows:
        raise ValueError(num_data_message(type(loss).__name__, loss.num_data, min(batch_size, rows), of=rows))


@contextmanager
def _says_one_row(rows: int, batch_size: int) -> Iterator[None]:
    """Say which step has one row, where a network standardises by the rows of a step, of which it needs two."""
    try:
        yield
    except ValueError as error:
        if "Expected more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            f"batch_size={batch_size} leaves one row of {rows} for a step, and a module with batch statistics, such as BatchNorm1d, needs two or "
            "more: choose another batch_size, or take LayerNorm"
        ) from error
