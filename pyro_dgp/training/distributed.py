"""Training by several processes that share the rows of each step, on the process group of ``torch.distributed``."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.guides.other_rows import sees_other_rows
from pyro_dgp.internal.parameters import modules_of
from pyro_dgp.internal.row_noise import Part, part_of_rows
from pyro_dgp.internal.rows import Batch, Call
from pyro_dgp.training.checkpoints import CheckpointError, Run, Stateful
from pyro_dgp.training.shareable import described, require_shareable

if torch.distributed.is_available():
    # Imported before there is a process group: else its default arguments keep the group when the first optimiser imports it, the threads
    # of gloo outlive ``destroy_process_group``, and now and then one of them aborts the process at its very end.
    import torch.distributed.nn

#: Function from the arguments of a call to the loss, nats a row.
LossOf = Callable[[Call], Tensor]

_NOISE = (
    "a part of the model, such as dropout, draws random numbers for each of its rows, which a single process would draw for all rows of a step: "
    "let it draw none, or train it in a single process"
)

#: Rows of the first step whose gradient is compared with those of its parts.
_ROWS_COMPARED = 64

_SCOPE: ContextVar[Distributed | None] = ContextVar("distributed", default=None)


class SingleProcess:
    """Training by this process alone."""

    #: Whether this process calls callbacks and writes checkpoints.
    is_first = True

    def begin(
        self,
        run: Run,
        state: Stateful,
        first: Callable[[], float],
        *,
        objective: nn.Module,
        loss_of: LossOf,
        batch: Callable[[], Batch],
    ) -> None:
        """Set the state that was saved, if any was.

        :param first: evaluates the loss of the first step at the start.
        :param batch: gives the rows of that step.
        """
        run.resume(state, first)

    def backward(self, objective: nn.Module, loss_of: LossOf, batch: Batch) -> float:
        """Return the loss of a step, and add its gradient to those of the parameters where it is finite."""
        loss = loss_of(batch[slice(None)])
        value = float(loss.detach())
        if math.isfinite(value):
            loss.backward()  # type: ignore[no-untyped-call]
        return value

    def watched(self, watch: Callable[[], bool], *, decides: bool) -> bool:
        """Return whether training stops.

        :param watch: calls what watches the training.
        :param decides: whether it can say that training stops.
        """
        return watch()

    @contextmanager
    def sharing(self, watchers: Sequence[Any], *, decides: bool) -> Iterator[None]:
        """A scope at whose end what watched the training has the same state everywhere.

        :param decides: whether one of the watchers can say that training stops; then they share their states where an error ends it, too.
        """
        yield


class Distributed(SingleProcess):
    """Scope in which the processes that ``torchrun`` started train one model together: ``fit``, ``fit_stream``, ``fit_validated``.

    Every process runs the same program on all rows. In the scope each step takes the rows that it takes in a single process, and
    every process computes loss and gradient of its part of them. With B_r of the B rows, L_r the loss of these rows and
    ``num_data``, the loss of all is ::

        L = sum_r (B_r / B) L_r

    for every loss of this library: sums over rows are weighted by ``num_data / B_r``, terms that all rows share are counted once, since
    the shares add up to 1, and regularisers that are means over rows (:class:`~pyro_dgp.AmortizedInducingPoints`) stay means. Gradients
    are summed over the processes in the same way, so that parameters stay equal. Noise follows the rows: each process draws
    that of all rows, and takes its own. So the numbers are those of a single process up to rounding.

    Parameters and random numbers begin at those of the first process. It alone calls callbacks, scores held-out rows and reads and writes
    :class:`~pyro_dgp.Checkpoints`; the others wait for it.

    :param group: the processes; all that ``torch.distributed.init_process_group`` joined if not given.
    :ivar rank: number of this process.
    :ivar size: number of processes.
    :raises ValueError: without a process group; and at the start of a run, where processes have other models, settings or rows than
        the first, where a step has fewer rows than there are processes, and for a model or a loss in which rows depend on one another.

    >>> import tempfile, torch
    >>> from pyro_dgp import ELBO, DeepGP, Distributed, InducingPoints, MonteCarlo, Variational, fit
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> guide = Variational(DeepGP(x, layers=1), InducingPoints(10), MonteCarlo(1))
    >>> guide.initialize(x, y)
    >>> with tempfile.TemporaryDirectory() as folder:  # torchrun tells the processes of each other, and no file is needed
    ...     torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
    ...     with Distributed() as processes:
    ...         result = fit(ELBO(20)(guide.model, guide), x, y, steps=3)
    ...     torch.distributed.destroy_process_group()
    >>> len(result.losses), processes.is_first
    (3, True)
    """

    def __init__(self, group: Any = None) -> None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise ValueError(
                "there is no process group: start the program by torchrun --nproc-per-node 2 FILE.py, and let it call "
                'torch.distributed.init_process_group("gloo") first, or "nccl" on GPUs'
            )
        self.group = group
        self.rank, self.size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
        self._token: Token[Distributed | None] | None = None

    @property
    def is_first(self) -> bool:  # type: ignore[override]
        """Whether this is the process that reports and saves."""
        return self.rank == 0

    def __enter__(self) -> Distributed:
        self._token = _SCOPE.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _SCOPE.reset(self._token)

    def begin(
        self,
        run: Run,
        state: Stateful,
        first: Callable[[], float],
        *,
        objective: nn.Module,
        loss_of: LossOf,
        batch: Callable[[], Batch],
    ) -> None:
        """Require the same run of all processes, and set the state and the random numbers of the first one, which may be saved ones."""
        rows = batch()
        self._require_same(described(objective, run.facts, rows))  # first, so that all processes refuse the same run
        require_shareable(objective, rows=len(rows), processes=self.size)
        device = next(objective.parameters()).device
        failure: Exception | None = None
        if self.is_first:
            try:
                _require_no_noise_by_row(loss_of, rows, device)
                _require_sum_of_parts(objective, loss_of, rows, device)
                super().begin(run, state, first, objective=objective, loss_of=loss_of, batch=batch)
            except Exception as error:  # the others wait for it
                failure = error
        told, values, random = self._of_first(
            lambda: (None, state.state_dict(), _random_state(device)) if failure is None else (_said(failure), {}, [])
        )
        if failure is not None:
            raise failure
        if told is not None:
            raise told
        if not self.is_first:
            state.load_state_dict(values)
            _set_random_state(random, device)

    def backward(self, objective: nn.Module, loss_of: LossOf, batch: Batch) -> float:
        """Return the loss of all rows of a step, and set the gradients to its own: an error in one process is raised in all."""
        part, failure, value = Part.of(len(batch), self.rank, self.size), None, math.nan
        try:
            with part_of_rows(part):
                loss = part.weight * loss_of(batch[part.rows])
            value = float(loss.detach())
            loss.backward()
        except Exception as error:
            failure = error
        total, failed = self._summed(objective, value, failed=failure is not None)
        if failure is not None:
            raise failure
        if failed:
            raise ValueError("another process failed in this step: see the message of that process")
        return total

    def watched(self, watch: Callable[[], bool], *, decides: bool) -> bool:
        """Let the first process watch, with random numbers apart from those of training, and return what it says: an error is raised in all,
        where it decides."""
        is_over, failure = False, None
        if self.is_first:
            try:
                with torch.random.fork_rng(
                    devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
                ):
                    is_over = watch()
            except Exception as error:
                failure = error
        message = None
        if decides:
            is_over, message = self._of_first(lambda: (is_over, None if failure is None else str(failure)))
        if failure is not None:
            raise failure
        if message is not None:
            raise ValueError(message)
        return decides and is_over

    @contextmanager
    def sharing(self, watchers: Sequence[Any], *, decides: bool) -> Iterator[None]:
        """A scope at whose end the states of the watchers are those of the first process, also where an error ends it that all processes raise."""
        try:
            yield
        except Exception:
            if decides:
                self._share(watchers)
            raise
        self._share(watchers)

    def _share(self, watchers: Sequence[Any]) -> None:
        """Set the states of the watchers to those of the first process."""
        own = [each for each in watchers if isinstance(each, Stateful)]
        if not own:
            return
        for each, values in zip(own, self._of_first(lambda: [one.state_dict() for one in own]), strict=True):
            if not self.is_first:
                each.load_state_dict(values)

    def _of_first(self, make: Callable[[], Any]) -> Any:
        """Return what the first process makes."""
        held = [make() if self.is_first else None]
        torch.distributed.broadcast_object_list(held, group=self.group, group_src=0)
        return held[0]

    def _require_same(self, facts: Mapping[str, Any]) -> None:
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, dict(facts), group=self.group)
        for rank, other in enumerate(found):
            for name, value in found[0].items():
                if other.get(name) != value:
                    raise ValueError(
                        f"{name} of process {rank} differs from that of process 0: run the same program on all rows in every process, with one "
                        "seed, pyro.set_rng_seed(0); the scope of Distributed splits the rows of each step itself"
                    )

    def _summed(self, objective: nn.Module, value: float, *, failed: bool) -> tuple[float, bool]:
        """Sum loss and gradients over the processes; return the loss, and whether a process failed.

        :raises ValueError: where the processes drew different random numbers.
        """
        parameters = [each for each in objective.parameters() if each.requires_grad]
        device = parameters[0].device
        number = 0 if failed else _fingerprint(device)
        facts = [value, number, number**2, failed, *(each.grad is not None for each in parameters)]
        told = torch.tensor([float(fact) for fact in facts], dtype=torch.float64, device=device)
        torch.distributed.all_reduce(told, group=self.group)
        total, numbers, squares, failures, *used = told.tolist()
        if not failures and self.size * squares != numbers**2:  # equal where all numbers are, by Cauchy and Schwarz
            raise ValueError(f"the processes drew different random numbers in this step: {_NOISE}")
        if not failures and math.isfinite(total):
            self._sum_gradients([each for each, count in zip(parameters, used, strict=True) if count])
        return total, bool(failures)

    def _sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Sum the gradients of parameters over the processes, those of one dtype and device at a time."""
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for each in parameters:
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
            kinds.setdefault((each.dtype, each.device), []).append(each.grad)
        for gradients in kinds.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            torch.distributed.all_reduce(flat, group=self.group)
            for gradient, part in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))


def _require_no_noise_by_row(loss_of: LossOf, batch: Batch, device: torch.device) -> None:
    """Raise for a model that draws random numbers for its rows by itself, such as a network with dropout: one row and two draw other ones."""
    if len(batch) < 2:
        return
    found = set()
    for count in (1, 2):
        part = Part(0, count, len(batch), 1.0)
        with torch.no_grad(), _apart(device), part_of_rows(part):
            loss_of(batch[part.rows])
            found.add(_fingerprint(device))
    if len(found) > 1:
        raise ValueError(_NOISE)


_NO_SUM = (
    "the gradient of a step is not the sum of those of its parts, since a part of the model looks at other rows, as attention over rows or the "
    "mean of a batch does: let it look at each row alone, or train it in a single process"
)


def _require_sum_of_parts(objective: nn.Module, loss_of: LossOf, batch: Batch, device: torch.device) -> None:
    """Raise for a model that looks at other rows, such as attention over the rows of a step.

    Its gradient is no sum of those of parts. The loss tells less: before training it may not depend on the inputs. Nor may the gradient, but for its
    rounding in single precision, so that the inputs of Gaussian processes are compared as well.
    """
    rows = min(len(batch), _ROWS_COMPARED)
    model = getattr(objective, "model", None)
    if callable(model) and sees_other_rows(model, batch[slice(0, rows)], modules_of(model)) is not None:
        raise ValueError(_NO_SUM)
    parameters = [each for each in objective.parameters() if each.requires_grad]

    def gradient(count: int) -> Tensor:
        total = torch.zeros(sum(each.numel() for each in parameters), dtype=torch.float64, device=device)
        for part in (Part.of(rows, number, count) for number in range(count)):
            with _apart(device), part_of_rows(part):
                loss = part.weight * loss_of(batch[part.rows])
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            total += torch.cat(
                [
                    (torch.zeros_like(p) if own is None else own).reshape(-1)
                    for p, own in zip(parameters, found, strict=True)
                ]
            )
        return total

    whole, joined = gradient(1), gradient(2)
    is_double = all(each.dtype == torch.float64 for each in parameters)
    tolerance = 1e-4 if is_double else 0.05  # rounding, and quadrature that looks at its rows
    if float((whole - joined).abs().max()) > tolerance * float(whole.abs().max()):
        raise ValueError(_NO_SUM)


def _said(failure: Exception) -> ValueError:
    """Return the error of a process as the others raise it."""
    return (CheckpointError if isinstance(failure, CheckpointError) else ValueError)(str(failure))


def _apart(device: torch.device) -> Any:
    """A scope whose random numbers change none outside of it."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def processes() -> SingleProcess:
    """Return the processes that train: those of the scope, or this one alone."""
    scope = _SCOPE.get()
    return SingleProcess() if scope is None else scope


def require_single_process(what: str) -> None:
    """Raise in the scope of :class:`Distributed` for what a single process does.

    :param what: beginning of the message.
    """
    scope = _SCOPE.get()
    if scope is not None and scope.size > 1:
        raise ValueError(
            f"{what} in a single process, and here are {scope.size}: call it outside of the scope of Distributed"
        )


def _random_state(device: torch.device) -> list[Tensor]:
    """Return the states of the random numbers that training draws."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_state(state: Sequence[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    for own in state[1:]:
        torch.cuda.set_rng_state(own, device)


def _fingerprint(device: torch.device) -> int:
    """Return a number of 20 bits that differs where random numbers do."""
    return zlib.crc32(b"".join(each.numpy().tobytes() for each in _random_state(device))) & 0xFFFFF
