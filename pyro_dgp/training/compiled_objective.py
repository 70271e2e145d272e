"""Training steps as compiled programs: for runs long enough to pay for the compiler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from pyro_dgp.internal.compiled_function import CompiledFunction, say_not_compiled, with_gradients
from pyro_dgp.internal.parameters import module_local_parameters


class CompiledObjective(nn.Module):
    """An objective whose loss and gradients are recorded once and compiled by ``torch.compile``; it is called as the objective is.

    ``fit(CompiledObjective(ELBO(len(x))(model, guide)), x, y, steps)``: the same training to rounding, with the same random numbers, without
    Python, Pyro's handlers and autograd in each step. The price is 10 to 60 seconds for each program, in each process, and minutes for amortised guides of
    several layers (the compiler keeps what it made on disk). It needs a C++ compiler.

    A program serves one signature: shapes, dtypes and devices of the arguments, parameters and buffers, which parameters want gradients,
    other arguments by value, the modules, the numbers and words that each has as attributes (whether it trains, a jitter) and those that the loss
    holds (beta, ``num_data``): one that changes at every step is never compiled. It is made when
    its signature comes for the second time in a row, so that a call to try, or the smaller batch that ends an epoch, pays nothing: such calls run as
    they are, and with two batches to an epoch, one smaller, all do. Parameters and buffers may change in any way between calls.
    All else is recorded as it is: numbers inside other objects, a tensor that is neither parameter nor buffer.

    The model must do the same tensor operations at whatever values: one that looks at numbers (``if h.mean() > 0``, ``h.tolist()``) has no program.
    The first :data:`~pyro_dgp.internal.compiled_function.CHECKS` results of each are compared with the objective's. Where there is no program the log says why.
    The objective runs as it is there, without gradients (``torch.no_grad()``), inside handlers of Pyro, and at each step at which a matrix has no
    Cholesky factor at the first jitter, the targets are refused or the loss is not finite. Parameters stay in their modules, as in
    :func:`~pyro_dgp.module_local_parameters`. Gradients have no gradients.

    :param objective: ``loss(model, guide)``, or a :class:`~pyro_dgp.MarginalLikelihood`.
    :cvar backend: of ``torch.compile``.
    :raises TypeError: for what is no ``torch.nn.Module``.
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

    def __getstate__(self) -> dict[str, Any]:
        """Without programs: they belong to a process and to these very modules."""
        return {**vars(self), "_programs": {}, "_last": None}

    @property
    def elbo(self) -> Any:
        """The loss of the objective; nothing where it has none."""
        return getattr(self.objective, "elbo", None)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The objective's loss, a scalar, with gradients."""
        result = self._compiled(args, kwargs) if torch.is_grad_enabled() and not am_i_wrapped() else None
        if result is None:
            with module_local_parameters(self.objective):
                result = self.objective(*args, **kwargs)
        return result

    def _compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        call = _Call.read(self.objective, args, kwargs)
        try:
            signature = call.signature(self.elbo)
        except ValueError as problem:
            if str(problem) not in self._said:
                self._said.add(str(problem))
                say_not_compiled("the loss", str(problem))
            return None
        if signature not in self._programs:
            before, self._last = self._last, signature
            if before != signature:
                return None
            step = _Step(self.objective, call)
            program = CompiledFunction("the loss", step, self.backend, closed=True, prepare=step.look_at_buffers)
            self._programs[signature] = program, step
        self._last = signature
        program, step = self._programs[signature]
        with module_local_parameters(*(() if program.is_checked else (self.objective,))):
            results = program(*(tensor.detach() for tensor in call.tensors))
        return None if results is None else step.outcome(results, call)


class _Call(NamedTuple):
    """What a call of an objective depends on."""

    modules: tuple[nn.Module, ...]
    parameters: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]
    arguments: tuple[Tensor, ...]
    others: tuple[tuple[int, Any], ...]  # arguments that are no tensors, with their places among the leaves
    structure: Any  # of the arguments

    @classmethod
    def read(cls, objective: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """Parameters and buffers once each, in the order of ``named_parameters`` and ``named_buffers``."""
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

    def signature(self, loss: Any) -> tuple[Any, ...]:
        """What a program depends on besides the values of tensors; raises where it is not known."""
        if any(argument.requires_grad for argument in self.arguments):
            raise ValueError("an argument wants gradients")
        return (
            self.modules,
            tuple(
                [tuple([item for item in vars(module).items() if type(item[1]) in _PLAIN]) for module in self.modules]
            ),
            tuple([(t.shape, t.stride(), t.dtype, t.device, t.requires_grad) for t in self.tensors]),
            _values("the call", self.others),
            str(self.structure),
            type(loss),
            _values("the loss", vars(loss).items() if loss is not None else ()),
            torch.get_default_dtype(),
        )


#: Attributes of modules that a program holds as they were: whether it trains, a jitter, a number of samples, a probability.
_PLAIN = (bool, int, float, str, type(None))

#: These have no insides that could change.
_CONSTANTS = (type(None), type, FunctionType, torch.dtype, torch.device)


def _values(owner: str, items: Iterable[tuple[Any, Any]]) -> tuple[Any, ...]:
    """Names, values and their types, if values are compared by what they hold."""
    named = tuple([(name, value, type(value)) for name, value in items])
    for name, value, kind in named:
        by_identity = kind.__hash__ in (None, object.__hash__, Tensor.__hash__)
        if by_identity and not isinstance(value, _CONSTANTS):
            raise ValueError(
                f"{owner} holds a {kind.__name__} ({name}), and only numbers, words and the like can be compared"
            )
    return named


class _Step:
    """Loss, gradients and changed buffers of an objective as a function of tensors alone."""

    def __init__(self, objective: nn.Module, call: _Call) -> None:
        self.objective, self.structure, self.others = objective, call.structure, call.others
        self.parameters = [name for name, _ in objective.named_parameters()]
        self.buffers = [name for name, _ in objective.named_buffers()]
        self.trained = [number for number, p in enumerate(call.parameters) if p.requires_grad]
        self.used: list[int] = []  # trained parameters that the loss depends on
        self.changed: list[int] = []  # buffers that the objective changes

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        loss, gradients, _, after = self._evaluate(tensors)
        self.used = [number for number, gradient in zip(self.trained, gradients, strict=True) if gradient is not None]
        present = [gradient for gradient in gradients if gradient is not None]
        return loss.detach(), *present, *(after[number].detach() for number in self.changed)

    def look_at_buffers(self, tensors: Sequence[Tensor]) -> None:
        """Evaluate once to see which buffers the objective changes: by their values, since batch statistics leave their version alone."""
        with torch.random.fork_rng():
            _, _, before, after = self._evaluate(tensors)
        for name, old, new in zip(self.buffers, before, after, strict=True):
            if new.shape != old.shape or new.dtype != old.dtype:
                raise ValueError(f"the buffer {name!r} changes its shape or dtype")
        pairs = enumerate(zip(before, after, strict=True))
        self.changed = [number for number, (old, new) in pairs if not torch.equal(old, new)]

    def _evaluate(
        self, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor | None, ...], list[Tensor], list[Tensor]]:
        """Loss, gradients, and the buffers before and after."""
        count, end = len(self.parameters), len(self.parameters) + len(self.buffers)
        parameters = [value.detach() for value in tensors[:count]]
        buffers = [value.clone() for value in tensors[count:end]]
        trained = [parameters[number].requires_grad_() for number in self.trained]
        given = dict(zip([*self.parameters, *self.buffers], [*parameters, *buffers], strict=True))
        leaves: list[Any] = list(tensors[end:])
        for place, value in self.others:
            leaves.insert(place, value)
        args, kwargs = tree_unflatten(leaves, self.structure)
        with torch.enable_grad():
            loss = functional_call(self.objective, given, args, kwargs)
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        return loss, gradients, list(tensors[count:end]), [given[name] for name in self.buffers]

    def outcome(self, results: list[Tensor], call: _Call) -> Tensor:
        """The loss with its gradients, the changed buffers written."""
        loss, *rest = results
        with torch.no_grad():
            for number, value in zip(self.changed, rest[len(self.used) :], strict=True):
                call.buffers[number].copy_(value)
        return with_gradients(loss, rest[: len(self.used)], [call.parameters[number] for number in self.used])
