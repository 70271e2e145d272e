"""Training steps as compiled programs, for runs long enough to pay for the compiler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from types import FunctionType
from typing import Any, NamedTuple

import torch
from pyro.infer.elbo import ELBOModule
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from pyro_dgp.internal.compiled_function import CompiledFunction, FasterFunction, say_not_compiled, with_gradients
from pyro_dgp.internal.held_values import held_values
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.training.optimising import bare


class CompiledObjective(nn.Module):
    """An objective whose loss and gradients are recorded once and compiled by ``torch.compile``.

    It is called as the objective is: ``fit(CompiledObjective(ELBO(len(x))(model, guide)), x, y, steps=steps)`` is the same
    training up to rounding, with the same random numbers. Its steps run without Python, Pyro's handlers and autograd. The
    price is 10 to 60 seconds for each program, in each process, and minutes for amortised guides of several layers. The
    compiler keeps its results on disk. A C++ compiler is needed.

    A program serves one signature, which consists of

    - shapes, dtypes and devices of arguments, parameters and buffers, and which parameters want gradients;
    - the values of arguments that are no tensors;
    - the modules, and the numbers, strings and plain tensors among their attributes (whether a module trains, a jitter), also in lists, tuples and dictionaries;
    - the numbers and strings that the loss holds (beta, ``num_data``).

    A program is made when its signature comes for the second time in a row. A single call, or the smaller batch that ends
    an epoch, therefore costs nothing and runs uncompiled. With two batches to an epoch, one of them smaller, and with a
    signature that changes at every step, all calls run uncompiled. Parameters and buffers may change in any way between
    calls. A plain tensor counts as another one where it is assigned or changed in place. Numbers inside other objects, and
    attributes of more than 300 entries, are recorded as constants.

    The model must do the same tensor operations at all values: one that looks at numbers (``if h.mean() > 0``,
    ``h.tolist()``, ``h[h > 0]``) has no program, and the log says why. The first :data:`~pyro_dgp.internal.compiled_function.CHECKS`
    results of a program are compared with those of the objective, and so are their times on a processor: a program that takes longer is set aside.

    Calls without gradients (``torch.no_grad()``) or inside handlers of Pyro run uncompiled. So does each step at which a
    matrix has no Cholesky factor at the first jitter, the targets are refused or the loss is not finite. Parameters stay
    in their modules, as in :func:`~pyro_dgp.module_local_parameters`. Second derivatives are not available.

    :param objective: ``loss(model, guide)``, or a :class:`~pyro_dgp.MarginalLikelihood`.
    :cvar backend: backend of ``torch.compile``.
    :raises TypeError: for an objective that is no ``torch.nn.Module``.

    >>> import torch
    >>> from pyro_dgp import CompiledObjective, DeepGP, MarginalLikelihood
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> objective = MarginalLikelihood(DeepGP(x, layers=1))
    >>> compiled = CompiledObjective(objective)  # give it to fit in the place of the objective
    >>> bool(compiled(x, y) == objective(x, y))  # the first call runs uncompiled
    True
    """

    backend = "inductor"

    def __init__(self, objective: Any) -> None:
        super().__init__()
        if not isinstance(objective, nn.Module):
            raise TypeError(
                f"CompiledObjective takes loss(model, guide), a torch.nn.Module, not {type(objective).__name__}: call the loss on both"
            )
        self.objective = objective
        self._programs: dict[tuple[Any, ...], tuple[CompiledFunction, _Step]] = {}
        self._last: tuple[Any, ...] | None = None
        self._said: set[str] = set()
        self._changed: set[tuple[int, str]] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without programs, which belong to this process and to the present modules."""
        return {**vars(self), "_programs": {}, "_last": None}

    @property
    def elbo(self) -> Any:
        """Loss of the objective; ``None`` where the objective has none."""
        return getattr(bare(self.objective), "elbo", None)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the objective's loss, a scalar, with gradients."""
        result = self._compiled(args, kwargs) if torch.is_grad_enabled() and not am_i_wrapped() else None
        if result is None:
            with module_local_parameters(self.objective):
                result = self.objective(*args, **kwargs)
        return result

    def _compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        call = _Call.read(self.objective, args, kwargs)
        try:
            signature = call.signature()
        except ValueError as problem:
            if str(problem) not in self._said:
                self._said.add(str(problem))
                say_not_compiled("the loss", str(problem))
            return None
        if signature not in self._programs:
            before, self._last = self._last, signature
            if before != signature:
                self._say_what_changes(before, signature)
                return None
            step = _Step(self.objective, call)
            kind = FasterFunction if self.backend == "inductor" else CompiledFunction
            program = kind("the loss", step, self.backend, closed=True, prepare=step.look_at_buffers)
            self._programs[signature] = program, step
        self._last = signature
        program, step = self._programs[signature]
        with module_local_parameters(*(() if program.is_checked else (self.objective,))):
            results = program(*(tensor.detach() for tensor in call.tensors))
        return None if results is None else step.outcome(results, call)

    def _say_what_changes(self, before: tuple[Any, ...] | None, now: tuple[Any, ...]) -> None:
        """Say which attributes of modules have another value than in the call before, where they had in that call too."""
        changed = set() if before is None else {place for place, _ in {*now[_HELD]} - {*before[_HELD]}}
        for number, name in sorted(changed & self._changed):
            owner = type(now[0][number]).__name__
            problem = f"{name!r} of {owner} is another value in each call: a tensor that the model reads may be a buffer, and what it writes belongs elsewhere"
            if problem not in self._said:
                self._said.add(problem)
                say_not_compiled("the loss", problem)
        self._changed = changed


#: Place of the values that modules hold in a signature.
_HELD = 1


class _Call(NamedTuple):
    """Everything that a call of an objective depends on."""

    modules: tuple[nn.Module, ...]
    parameters: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]
    arguments: tuple[Tensor, ...]
    others: tuple[tuple[int, Any], ...]  # arguments that are no tensors, with their places among the leaves
    structure: Any  # of the arguments

    @classmethod
    def read(cls, objective: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """Collect a call. Parameters and buffers come once each, in the order of ``named_parameters`` and ``named_buffers``."""
        modules = tuple(objective.modules())
        parameters = dict.fromkeys(p for module in modules for p in module._parameters.values() if p is not None)
        buffers = dict.fromkeys(b for module in modules for b in module._buffers.values() if b is not None)
        leaves, structure = tree_flatten((args, kwargs))
        arguments = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        others = tuple((place, leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, Tensor))
        return cls(modules, tuple(parameters), tuple(buffers), arguments, others, structure)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Inputs of a program."""
        return *self.parameters, *self.buffers, *self.arguments

    def signature(self) -> tuple[Any, ...]:
        """Return all that a program depends on besides the values of tensors; raise where it cannot be compared."""
        if any(argument.requires_grad for argument in self.arguments):
            raise ValueError("an argument wants gradients")
        losses = [module.elbo for module in self.modules if isinstance(module, ELBOModule)]
        return (
            self.modules,
            held_values(self.modules, (*self.parameters, *self.buffers)),
            tuple([(t.shape, t.stride(), t.dtype, t.device, t.requires_grad) for t in self.tensors]),
            _values("the call", self.others),
            str(self.structure),
            tuple([(type(loss), _values("the loss", vars(loss).items())) for loss in losses]),
            torch.get_default_dtype(),
        )


#: Types compared by identity whose values do not change.
_CONSTANTS = (type(None), type, FunctionType, torch.dtype, torch.device)


def _values(owner: str, items: Iterable[tuple[Any, Any]]) -> tuple[Any, ...]:
    """Return names, values and their types; raise for a value that is compared by identity and may change."""
    named = tuple([(name, value, type(value)) for name, value in items])
    for name, value, kind in named:
        by_identity = kind.__hash__ in (None, object.__hash__, Tensor.__hash__)
        if by_identity and not isinstance(value, _CONSTANTS):
            raise ValueError(
                f"{owner} holds a {kind.__name__} ({name}), and only values such as numbers and strings can be compared"
            )
    return named


class _Buffer(NamedTuple):
    """Value of a buffer before an evaluation, the copy that the evaluation is given, and the version of that copy."""

    value: Tensor
    copy: Tensor
    version: int

    def is_written(self, after: Tensor) -> bool:
        """Tell whether the evaluation wrote the buffer, also where its value stays the same."""
        return after is not self.copy or after._version != self.version or not torch.equal(self.value, after)


class _Step:
    """Loss, gradients and changed buffers of an objective as a function of tensors alone."""

    def __init__(self, objective: nn.Module, call: _Call) -> None:
        self.objective, self.structure, self.others = objective, call.structure, call.others
        self.parameters = [name for name, _ in objective.named_parameters()]
        self.buffers = [name for name, _ in objective.named_buffers()]
        # Every place of a tensor, with the name under which it is given. A module that has two names is one place: to put a tensor there twice,
        # as the weights that functional_call ties by itself are, would leave it there.
        names = {id(tensor): name for name, tensor in chain(objective.named_parameters(), objective.named_buffers())}
        self.places = {
            f"{path}.{slot}".lstrip("."): names[id(tensor)]
            for path, module in objective.named_modules()
            for slot, tensor in chain(module._parameters.items(), module._buffers.items())
            if tensor is not None
        }
        self.trained = [number for number, p in enumerate(call.parameters) if p.requires_grad]
        self.used: list[int] = []  # trained parameters that the loss depends on
        self.changed: list[int] = []  # buffers that the objective changes

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        loss, gradients, _, after = self._evaluate(tensors)
        self.used = [number for number, gradient in zip(self.trained, gradients, strict=True) if gradient is not None]
        present = [gradient for gradient in gradients if gradient is not None]
        return loss.detach(), *present, *(after[number].detach() for number in self.changed)

    def look_at_buffers(self, tensors: Sequence[Tensor]) -> None:
        """Evaluate once to find the buffers that the objective writes.

        A buffer that is written may keep its value, as a power iteration that has converged does: objects and their versions tell. Batch
        statistics raise no version, so that values are compared too, and all buffers of a module count as written where one of them is.
        """
        with torch.random.fork_rng():
            _, _, before, after = self._evaluate(tensors)
        for name, old, new in zip(self.buffers, before, after, strict=True):
            if new.shape != old.value.shape or new.dtype != old.value.dtype:
                raise ValueError(f"the buffer {name!r} changes its shape or dtype")
        owners = [name.rpartition(".")[0] for name in self.buffers]
        writing = {owner for owner, old, new in zip(owners, before, after, strict=True) if old.is_written(new)}
        self.changed = [number for number, owner in enumerate(owners) if owner in writing]

    def _evaluate(
        self, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor | None, ...], list[_Buffer], list[Tensor]]:
        """Return loss, gradients, and the buffers before and after."""
        count, end = len(self.parameters), len(self.parameters) + len(self.buffers)
        parameters = [value.detach() for value in tensors[:count]]
        buffers = [value.clone() for value in tensors[count:end]]
        trained = [parameters[number].requires_grad_() for number in self.trained]
        before = [_Buffer(value, copy, copy._version) for value, copy in zip(tensors[count:end], buffers, strict=True)]
        named = dict(zip([*self.parameters, *self.buffers], [*parameters, *buffers], strict=True))
        given = {place: named[name] for place, name in self.places.items()}
        leaves: list[Any] = list(tensors[end:])
        for place, value in self.others:
            leaves.insert(place, value)
        args, kwargs = tree_unflatten(leaves, self.structure)
        with torch.enable_grad():
            loss = functional_call(self.objective, given, args, kwargs, tie_weights=False)
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        return loss, gradients, before, [given[name] for name in self.buffers]

    def outcome(self, results: list[Tensor], call: _Call) -> Tensor:
        """Write the changed buffers, and return the loss with its gradients."""
        loss, *rest = results
        with torch.no_grad():
            for number, value in zip(self.changed, rest[len(self.used) :], strict=True):
                call.buffers[number].copy_(value)
        return with_gradients(loss, rest[: len(self.used)], [call.parameters[number] for number in self.used])
