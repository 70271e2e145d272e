"""Functions and networks of the user as parts of a prior: what they may be, and their parameters read at one moment."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from pyro_dgp.internal.parameters import modules_of, trainable_of


def adopted(function: Any, part: str) -> Any:
    """Return a function or network that a prior can call; raise one sentence for any other object.

    A network is made a Pyro module in place: reading its parameters is then a Pyro statement, so that stock ``SVI`` trains
    them, and a ``PyroSample`` may stand for each.

    :param part: what the function is, for the message: ``mean function`` or ``covariance function``.
    """
    if isinstance(function, nn.Module):
        for module in function.modules():
            if isinstance(module, _NormBase | _DropoutNd):
                raise ValueError(
                    f"a {part} with {type(module).__name__} is no function of single rows: take that layer out, or put the network "
                    "in front of the model, DeepKernel(network, model)"
                )
        to_pyro_module_(function)
        return function
    named = trainable_of(function)
    if named:
        raise ValueError(
            f"the {part} uses {' and '.join(named)}, whose values would not be trained or saved: give the network itself, or a "
            "torch.nn.Module that holds them"
        )
    return function


@dataclass(frozen=True)
class PresentFunction:
    """A function of the user with the parameter values of one moment.

    :ivar function: the function, or a copy of the network that :func:`with_values` made.
    :ivar named: modules that a plain function names.
    """

    function: Callable[..., Any]
    named: tuple[nn.Module, ...] = ()

    @classmethod
    def of(cls, function: Any) -> PresentFunction:
        """Read every parameter of a network now; one read later would be drawn again."""
        if isinstance(function, nn.Module):
            return cls(with_values(function))
        return cls(function, tuple(modules_of(function)))

    def __call__(self, x: Tensor, *more: Tensor) -> Any:
        """Call the function; raise if its parameters have another dtype than the inputs, or a plain function reads a prior of a module."""
        if isinstance(self.function, nn.Module):
            for parameter in self.function.parameters():
                if parameter.is_floating_point() and parameter.dtype != x.dtype:
                    ours, theirs = (str(t.dtype).removeprefix("torch.") for t in (parameter, x))
                    raise TypeError(
                        f"the network {type(self.function).__name__} has parameters of {ours} and inputs of {theirs}: convert it, "
                        "as in network.to(x.dtype)"
                    )
        with _without_priors(self.named):
            return self.function(x, *more)


class _Unread(dict[str, Any]):
    """Priors of a module that a function of the user's may not read by itself: each evaluation would draw them anew."""

    def __init__(self, priors: Mapping[str, Any], module: nn.Module) -> None:
        super().__init__(priors)
        self.owner = type(module).__name__

    def __getitem__(self, name: str) -> Any:
        raise ValueError(
            f"a function of a Gaussian process reads the prior {name!r} of {self.owner} by itself, and each evaluation would draw another value: write "
            f"it as a PyroModule that holds the prior, self.{name} = PyroSample(...), and give that as the mean or covariance function"
        )


@contextmanager
def _without_priors(modules: Iterable[nn.Module]) -> Iterator[None]:
    """A scope in which reading a prior of the modules raises."""
    parts = [part for module in modules for part in module.modules() if vars(part).get("_pyro_samples")]
    before = [part.__dict__["_pyro_samples"] for part in parts]
    for part, priors in zip(parts, before, strict=True):
        part.__dict__["_pyro_samples"] = _Unread(priors, part)
    try:
        yield
    finally:
        for part, priors in zip(parts, before, strict=True):
            part.__dict__["_pyro_samples"] = priors


def with_values(module: nn.Module) -> nn.Module:
    """Return a shallow copy of a Pyro module that holds the present values in place of parameters and priors."""
    clone = object.__new__(type(module))
    clone.__dict__.update(module.__dict__)
    clone.__dict__["_modules"] = {name: child and with_values(child) for name, child in module._modules.items()}
    for name, parameter in module._parameters.items():
        if isinstance(parameter, nn.Parameter) and not name.endswith("_unconstrained"):
            # Pyro's SVI asks every parameter for this, and a network's own has it in the global store alone.
            parameter.unconstrained = weakref.ref(parameter)  # type: ignore[attr-defined]
            clone.__dict__[name] = getattr(module, name)
    for name in (*getattr(module, "_pyro_params", ()), *getattr(module, "_pyro_samples", ())):
        clone.__dict__[name] = getattr(module, name)
    return clone
