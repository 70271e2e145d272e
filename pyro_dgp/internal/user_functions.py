"""Functions and networks of the user as parts of a prior: what they may be, and their parameters read at one moment."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType
from typing import Any

from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from pyro_dgp.internal.parameters import trainable_of


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
    """

    function: Callable[..., Any]

    @classmethod
    def of(cls, function: Any) -> PresentFunction:
        """Read every parameter of a network now; one read later would be drawn again.

        :raises ValueError: for a function that reads a prior of a module by itself.
        """
        _require_no_late_prior(function)
        return cls(with_values(function) if isinstance(function, nn.Module) else function)

    def __call__(self, x: Tensor, *more: Tensor) -> Any:
        """Call the function; raise if its parameters have another dtype than the inputs."""
        if isinstance(self.function, nn.Module):
            for parameter in self.function.parameters():
                if parameter.is_floating_point() and parameter.dtype != x.dtype:
                    ours, theirs = (str(t.dtype).removeprefix("torch.") for t in (parameter, x))
                    raise TypeError(
                        f"the network {type(self.function).__name__} has parameters of {ours} and inputs of {theirs}: convert it, "
                        "as in network.to(x.dtype)"
                    )
        return self.function(x, *more)


def _require_no_late_prior(function: Any) -> None:
    """Raise for a function of the user, ``lambda x: self.slope * x``, that reads a prior of a module: each evaluation would draw it anew."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    held = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    held.append(getattr(function, "__self__", None))
    for module in (each for each in held if isinstance(each, nn.Module)):
        read = [name for name in getattr(module, "_pyro_samples", ()) if name in code.co_names]
        if read:
            raise ValueError(
                f"a function of a Gaussian process reads the prior {read[0]!r} of {type(module).__name__} by itself, and each evaluation would draw another value: write "
                f"it as a PyroModule that holds the prior, self.{read[0]} = PyroSample(...), and give that as the mean or covariance function"
            )


def _is_set(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # which raises where there is none
    except ValueError:
        return False
    return True


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
