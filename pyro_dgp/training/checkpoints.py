"""Checkpoints: training is saved as it goes, and the same program, started again, goes on from there."""

from __future__ import annotations

import math
import random
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.internal.attributes import Attributes
from pyro_dgp.internal.checkpoint import StateError, read_state, write_state
from pyro_dgp.internal.errors import first_line
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.internal.whole_file import remove_parts

#: What a run is told apart by, in the words of a message: the number of steps, of rows, and so on. Values are those that JSON has.
Facts = Mapping[str, Any]

#: What to do about a checkpoint that is of no use.
_REMEDY = "give another folder, or delete this one"

_SCOPE: ContextVar[Checkpoints | None] = ContextVar("checkpoints", default=None)
_SHARED: ContextVar[Facts] = ContextVar("facts of all runs", default=MappingProxyType({}))


class CheckpointError(ValueError):
    """A checkpoint of another run, or one that cannot be read: an error of the program, not of the training, which a search does not pass over."""


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be taken and set, as that of a module or an optimiser."""

    def state_dict(self) -> dict[str, Any]:
        """Return dictionaries and lists of tensors, numbers, words and nothing."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Set what ``state_dict`` returned."""


class Checkpoints:
    """Folder in which training is saved as it goes. The same program, started again, goes on from there, to the same bits on a CPU.

    In its scope every run of :func:`~pyro_dgp.fit`, :func:`~pyro_dgp.fit_stream` and :class:`~pyro_dgp.StochasticGradientHMC` is saved,
    those that :func:`~pyro_dgp.fit_validated` and the named methods make among them. The runs are numbered in the order in which
    the program makes them. A run that has ended is not made again: its parameters are set. One that was cut off goes on
    after the last step that was saved, with its optimiser, schedule, order of the rows, random numbers and held-out scores, and with the numbers, words, tensors, lists and
    dictionaries that modules, losses and optimisers hold and have changed, such as the counter of an annealing. What other objects hold is not saved.

    A run is known by its settings, those of the optimiser and of a validation among them, by its data, to the last bit, by the kinds and the plain
    attributes of the loss, the model and the guide, numbers and words, by which parameters are trained and where those of the model begin, by its first
    loss, which is evaluated once more, and by the random numbers at its start. So the program must set the seed before it draws anything or builds
    the model, ``pyro.set_rng_seed(0)``, and a run that differs is refused. The data of a stream, and the code of functions and classes, are known by
    the first loss alone. Files are written whole or not at all, hold
    tensors and numbers alone, and run no code when they are read. They stay until you delete the folder.

    :param folder: the folder; it is made when something is saved.
    :param seconds: time between two saves, which is what a kill loses at most.
    :raises ValueError: at a run that is not the one which was saved, and at a file that cannot be read.

    >>> import tempfile, torch
    >>> from pyro_dgp import ELBO, Checkpoints, DeepGP, InducingPoints, MonteCarlo, Variational, fit
    >>> def train(folder):
    ...     torch.manual_seed(0)
    ...     x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    ...     guide = Variational(DeepGP(x, layers=1), InducingPoints(10), MonteCarlo(1))
    ...     guide.initialize(x, y)
    ...     with Checkpoints(folder, seconds=30.0):
    ...         return fit(ELBO(20)(guide.model, guide), x, y, steps=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, again = train(folder), train(folder)  # the second one trains no more
    >>> first.losses == again.losses
    True
    """

    def __init__(self, folder: str | Path, *, seconds: float = 60.0) -> None:
        if not seconds >= 0:
            raise ValueError(f"seconds between two saves are 0 or more, got {seconds}")
        self.folder, self.seconds = Path(folder), seconds
        self._made = 0
        self._token: Token[Checkpoints | None] | None = None

    def __enter__(self) -> Checkpoints:
        remove_parts(self.folder)
        self._made, self._token = 0, _SCOPE.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _SCOPE.reset(self._token)

    def next_file(self) -> Path:
        """Return the file of the next run of the program."""
        self._made += 1
        return self.folder / f"run-{self._made}.safetensors"


class Run:
    """One run of an optimiser or a sampler that is saved as it goes, if it is made in the scope of :class:`Checkpoints`.

    :param facts: what it is told apart by.
    :param attributes: gives further facts, but for those that change while it runs, such as a number that a model keeps for a look at it.
    """

    def __init__(self, facts: Facts, attributes: Callable[[], Facts] = dict) -> None:
        self._attributes, self._at_start = attributes, dict(attributes())
        self.facts = {**_SHARED.get(), **facts, **self._at_start}
        scope = _SCOPE.get()
        self.path = None if scope is None else scope.next_file()
        self.seconds = math.inf if scope is None else scope.seconds
        self._saved, self._began = time.monotonic(), 0
        self._start: dict[str, float] = {}
        self._changing: set[str] = set()

    def resume(self, state: Stateful, first: Callable[[], float]) -> None:
        """Set the state that was saved, if any was.

        :param first: evaluates the loss of the first step at the start.
        """
        self._began = _fingerprint()
        if self.path is None:
            return
        self._start = _digests(state)
        if not self.path.exists():
            return
        try:
            saved = read_state(self.path)
            facts, loss, numbers = dict(saved["facts"]), float(saved["first"]), int(saved["began"])
            start = {name: float(value) for name, value in dict(saved.get("start", {})).items()}
            self._changing = set(saved.get("changing", []))
        except (ValueError, KeyError, TypeError) as error:
            reason = str(error) if isinstance(error, StateError) else first_line(error)
            raise CheckpointError(f"the checkpoint {str(self.path)!r} cannot be read ({reason}): {_REMEDY}") from error
        self._require_same(facts, loss, first, _tolerance(state))
        if numbers != self._began:
            raise CheckpointError(
                f"the run that {str(self.path)!r} holds began with other random numbers: set the seed that it had before the model is built, or "
                f"{_REMEDY}"
            )
        self._require_same_start(start, _tolerance(state))
        try:
            state.load_state_dict(saved["state"])
            set_random_state(saved["random"])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint {str(self.path)!r} is of another program ({first_line(error)}): {_REMEDY}"
            ) from error
        self._saved = time.monotonic()

    def look(self) -> None:
        """Note which attributes have changed since the run began."""
        now = self._attributes()
        self._changing |= {name for name in {**self._at_start, **now} if self._at_start.get(name) != now.get(name)}

    def stepped(self, state: Stateful, first: float, *, is_last: bool) -> None:
        """Save the state after a step, if it is time to; not where a parameter is NaN or infinite: the checkpoint before stays then.

        :param first: the loss of the first step.
        :param is_last: whether it was the last step.
        """
        if self.path is None or not (is_last or time.monotonic() - self._saved >= self.seconds):
            return
        values = state.state_dict()
        if _is_finite(values["parameters"].values()):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.look()
                begin = {"facts": self.facts, "first": first, "began": self._began, "start": self._start}
                now = {"changing": sorted(self._changing), "random": random_state(), "state": values}
                write_state(self.path, begin | now)
            except OSError as error:
                warn_user(
                    f"the checkpoint {str(self.path)!r} cannot be written ({error.strerror or error}): training goes on, and the one before stays"
                )
        self._saved = time.monotonic()

    def _require_same(self, facts: Facts, value: float, first: Callable[[], float], tolerance: float) -> None:
        """Raise for a run of other settings, or of another first loss."""
        for name in (name for name in {**self.facts, **facts} if name not in self._changing):
            was, now = facts.get(name), self.facts.get(name)
            if was != now:
                raise CheckpointError(
                    f"the run that {str(self.path)!r} holds has {name} {was}, and this one {now}: {_REMEDY}"
                )
        with torch.random.fork_rng():
            now = first()
        if not math.isclose(now, value, rel_tol=tolerance, abs_tol=tolerance):
            raise CheckpointError(
                f"the run that {str(self.path)!r} holds began with a loss of {value:.8g}, and this one with {now:.8g}: data, model, loss or "
                f"random numbers differ. Set the seed before the model is built, or {_REMEDY}"
            )

    def _require_same_start(self, start: Mapping[str, float], tolerance: float) -> None:
        """Raise for a run whose parameters or buffers began with other values, which the first loss need not show."""
        for name, now in self._start.items():
            if name in start and not math.isclose(now, start[name], rel_tol=tolerance, abs_tol=tolerance):
                raise CheckpointError(
                    f"the run that {str(self.path)!r} holds began with other values of {name}: start from those that it had, or {_REMEDY}"
                )


def is_saving() -> bool:
    """Tell whether runs are saved."""
    return _SCOPE.get() is not None


def attributes_to_save(*owners: torch.nn.Module | torch.optim.Optimizer) -> Attributes:
    """Return what a run saves of objects beside their ``state_dict``; nothing where no run is saved."""
    return Attributes(*(owners if is_saving() else ()))


@contextmanager
def told_apart_by(facts: Facts) -> Iterator[None]:
    """A scope in which all runs are told apart by further facts, such as the settings of the search that makes them."""
    token = _SHARED.set({**_SHARED.get(), **facts})
    try:
        yield
    finally:
        _SHARED.reset(token)


def facts_of(data: Iterable[Tensor]) -> dict[str, int]:
    """Return what the rows of a run are told apart by, all of them: a first loss sees those of the first step alone. Nothing where no run is saved."""
    return {} if not is_saving() else {"fingerprint of the data": checksum(data)}


def checksum(tensors: Iterable[Tensor]) -> int:
    """Return a number of 32 bits that differs where a bit of the tensors does."""
    number = 0
    for each in tensors:
        number = zlib.crc32(each.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes(), number)
    return number


def recorded(compute: Callable[[], float]) -> float:
    """Return a number that may differ from one start of a program to the next, such as one from timing: in the scope of :class:`Checkpoints` that of the first.

    Runs that are made to compute it are not saved.
    """
    scope = _SCOPE.get()
    if scope is None:
        return float(compute())
    path = scope.next_file()
    if path.exists():
        try:
            return float(read_state(path)["value"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint {str(path)!r} cannot be read ({first_line(error)}): {_REMEDY}"
            ) from error
    token = _SCOPE.set(None)
    try:
        value = float(compute())
    finally:
        _SCOPE.reset(token)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_state(path, {"value": value})
    return value


def random_state() -> dict[str, Any]:
    """Return the states of the random numbers of torch, NumPy and Python."""
    name, keys, position, has_normal, normal = np.random.get_state(legacy=True)
    version, words, second = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": {
            "keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            "rest": [name, position, has_normal, normal],
        },
        "python": {"words": torch.tensor(words), "rest": [version, second]},
    }
    return state | ({"cuda": torch.cuda.get_rng_state_all()} if torch.cuda.is_initialized() else {})


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set the states of all random numbers."""
    torch.set_rng_state(state["torch"])
    name, position, has_normal, normal = state["numpy"]["rest"]
    np.random.set_state((name, state["numpy"]["keys"].numpy().astype(np.uint32), position, has_normal, normal))
    version, second = state["python"]["rest"]
    random.setstate((version, tuple(state["python"]["words"].tolist()), second))
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state of an optimiser with words as keys."""
    state = optimizer.state_dict()
    return {"groups": state["param_groups"], "state": {str(number): own for number, own in state["state"].items()}}


def set_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Set the state that :func:`optimizer_state` returned."""
    own = optimizer.state_dict()["param_groups"]
    groups = [
        {name: tuple(value) if isinstance(one.get(name), tuple) else value for name, value in group.items()}
        for one, group in zip(own, state["groups"], strict=True)
    ]
    optimizer.load_state_dict(
        {"param_groups": groups, "state": {int(number): values for number, values in state["state"].items()}}
    )


def _fingerprint() -> int:
    """Return a number of 32 bits that differs where the random numbers of torch do."""
    return checksum([torch.get_rng_state()])


def _digests(state: Stateful) -> dict[str, float]:
    """Return a number for each parameter and buffer, a weighted mean of its values, that differs where they do by more than rounding.

    Those of processes are left out: inducing points come from k-means, which rounding can lead to other ones.
    """
    digests = {}
    for name, each in state.state_dict().get("parameters", {}).items():
        if isinstance(each, Tensor) and each.numel() and not each.is_complex() and "processes" not in name.split("."):
            values = each.detach().cpu().double().flatten()
            digests[name] = float(values @ (1 + torch.arange(len(values)).double().cos() / 2)) / len(values)
    return {name: value for name, value in digests.items() if math.isfinite(value)}


def _tolerance(state: Stateful) -> float:
    """Return the relative difference of two losses that rounding can make: sums are made in another order by another number of threads."""
    values = [v for v in state.state_dict()["parameters"].values() if isinstance(v, Tensor) and v.is_floating_point()]
    return 1e-9 if all(value.dtype == torch.float64 for value in values) else 1e-4


def _is_finite(values: Iterable[Any]) -> bool:
    """Tell whether no floating-point number is NaN or infinite."""
    return all(
        bool(torch.isfinite(value).all()) for value in values if isinstance(value, Tensor) and value.is_floating_point()
    )
