"""Checks of what is assigned to a module's attributes, made there and then."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from weakref import ref

import numpy as np
import torch
from pyro.distributions import Distribution, constraints
from pyro.nn import PyroModule, PyroParam, PyroSample
from pyro.params import param_with_module_name
from torch import Tensor, nn
from torch.distributions import transform_to

from pyro_dgp.internal.global_store import is_in_use, may_read, pyro_parameters
from pyro_dgp.internal.misspelt import require_spelling
from pyro_dgp.internal.moved_priors import device_of, moved
from pyro_dgp.internal.prior_support import may_look, require_support, require_value


class CheckedModule(PyroModule):
    """Base of the library's modules: an attribute takes what can stand there, and refuses the rest in a sentence.

    | assigned where a ``PyroParam`` stands | result |
    |---|---|
    | a number | every entry has this value; the constraint stays |
    | a tensor, array or list of the parameter's shape | the parameter has these values, in its own dtype and device |
    | ``PyroParam``, ``PyroSample`` | a new parameter, a prior: as in any Pyro module |
    | anything else; a wrong shape; a value outside the constraint; a prior with draws outside its bounds | raises |

    A prior that a function makes, and one whose support cannot be read, is looked at when it is drawn for the first time.

    A value is read once: a tensor that a model sampled belongs in a ``PyroSample``. A subclass says in :meth:`admit`
    what its other attributes take.

    Moving a module (``model.to(device)``, ``model.double()``) moves the distributions that are priors of its parameters too. A prior that is given to a
    module on another device is moved there.

    Where parameters live in Pyro's global store, one that another module of this library has put there under the same name is not taken over: a Pyro
    handler, such as a trace, refuses it, and in a plain call each module reads its own.

    :raises ValueError: for a wrong shape, for values outside the constraint, for a prior with draws outside its bounds, for a value where a prior stands, and
        where a parameter that is read has the name of another object's in the store.
    :raises TypeError: for any other object where a parameter stands.
    :raises AttributeError: where :attr:`spelling_is_checked`, for a new attribute whose name is nearly that of a parameter.

    >>> from pyro_dgp import RBF
    >>> kernel = RBF(ard=2)
    >>> kernel.lengthscale = 0.5
    >>> kernel.lengthscale.detach()
    tensor([0.5000, 0.5000])
    """

    #: Whether a new attribute whose name is nearly that of a parameter is refused, in the library's own classes.
    spelling_is_checked: ClassVar[bool] = False

    def admit(self, name: str, value: Any) -> Any:
        """Return what the attribute ``name``, which is no parameter, keeps for ``value``; raise if it cannot stand there."""
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        explicit = isinstance(value, PyroParam | PyroSample)
        if not explicit and name in self.__dict__.get("_pyro_params", ()):
            value = self._values(name, value)
        elif not explicit and name in self.__dict__.get("_pyro_samples", ()):
            raise ValueError(
                f"{self._labelled(name)} has a prior: for a point estimate assign PyroParam(torch.as_tensor(value), "
                f"constraint=...), and for a fixed value condition the model, pyro.condition(model, data={{site: value}})"
            )
        else:
            if self.spelling_is_checked:
                require_spelling(self, name, value)
            value = self.admit(name, value)
            if isinstance(value, PyroModule):
                release(value)
            elif isinstance(value, PyroSample):
                value = self._checked_prior(name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_pyro_undrawn", ()) and name in self._pyro_samples and may_look():
            return self._first_draw(name)
        context = self.__dict__.get("_pyro_context")
        if context is not None and context.active and is_in_use():
            own = self.__dict__["_parameters"].get(f"{name}_unconstrained")
            if own is not None and name in self._pyro_params:
                if not may_read(self._pyro_get_fullname(name), own, context.cache):
                    return _constrained(own, self._pyro_params[name][0])
            elif (part := self.__dict__["_modules"].get(name)) is not None and not isinstance(part, CheckedModule):
                for path, weights in _weights_of(part, self._pyro_get_fullname(name)):
                    may_read(path, weights, context.cache)
        return super().__getattr__(name)

    def _checked_prior(self, name: str, given: PyroSample) -> PyroSample:
        """Return a prior on the device of the parameter that it replaces; raise if it has draws outside the parameter's bounds.

        The module keeps the constraint of the parameter, for the next prior in its place.
        """
        present, own = self.__dict__.get("_pyro_params", {}), self.__dict__
        declared, undrawn = own.setdefault("_pyro_declared", {}), own.setdefault("_pyro_undrawn", {})
        if name in present:
            declared[name] = present[name][0]
        constraint, prior = declared.get(name), given.prior
        is_settled = constraint is None
        if constraint is not None and hasattr(prior, "sample") and may_look():
            is_settled = require_support(prior, constraint, self._labelled(name))
        undrawn.pop(name, None)
        if not is_settled:
            undrawn[name] = constraint
        return PyroSample(moved(prior, self._to_device_of(name)))

    def _first_draw(self, name: str) -> Any:
        """Return a draw of a prior whose support was not known yet; raise if the prior or the draw is outside the parameter's bounds."""
        prior, label, constraint = self._pyro_samples[name], self._labelled(name), self._pyro_undrawn.pop(name, None)
        try:
            made = prior if hasattr(prior, "sample") else prior(self)
            is_settled = made is not prior and not isinstance(made, Tensor) and require_support(made, constraint, label)
            self._pyro_samples[name] = lambda _: made  # the function has run, and runs once
            value = getattr(self, name)
            if not is_settled:
                require_value(value, constraint, label)
        except BaseException:
            self._pyro_undrawn[name] = constraint
            raise
        finally:
            self._pyro_samples[name] = prior
        return value

    def _to_device_of(self, name: str) -> Callable[[Tensor], Tensor]:
        """From a tensor to the same on the device of the parameter, or of the prior, of that name, if there is one."""
        present = self.__dict__.get("_parameters", {})
        own = present.get(f"{name}_unconstrained", present.get(name))
        device = device_of(self.__dict__.get("_pyro_samples", {}).get(name)) if own is None else own.device
        return lambda value: value.to(device or value.device)

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._apply(fn, *args, **kwargs)
        for name, prior in self._pyro_samples.items():
            self._pyro_samples[name] = moved(prior, fn)
        return result

    def _labelled(self, name: str) -> str:
        return f"{type(self).__name__}.{name}"

    def _values(self, name: str, value: Any) -> Tensor:
        """Return the values that a parameter takes, in its shape, dtype and device."""
        constraint, _ = self._pyro_params[name]
        label = self._labelled(name)
        if isinstance(value, Distribution | torch.distributions.Distribution):
            raise TypeError(f"{label} takes a number or a tensor; for a prior assign PyroSample(distribution)")
        if isinstance(value, nn.Parameter):
            raise TypeError(
                f"{label} would lose its constraint to an nn.Parameter: assign its values, value.detach(), or a PyroParam"
            )
        with torch.no_grad():
            present = transform_to(constraint)(self._parameters[f"{name}_unconstrained"])
        if not isinstance(value, numbers.Real | Tensor | np.ndarray | list | tuple):
            raise TypeError(
                f"{label} takes a number or a tensor of shape {tuple(present.shape)}, not {type(value).__name__}: "
                "for a prior assign a PyroSample, for another parameter a PyroParam"
            )
        if isinstance(value, Tensor) and value.requires_grad:
            raise TypeError(
                f"{label} takes values, and would lose the gradient of the tensor that it got: for a prior assign PyroSample(distribution) once, where the model "
                "is built, and Pyro samples it; for a copy of values assign value.detach()"
            )
        values = torch.as_tensor(value, dtype=present.dtype, device=present.device).detach()
        if isinstance(value, numbers.Real):
            values = values.expand(present.shape)
        if values.shape != present.shape:
            raise ValueError(
                f"{label} has shape {tuple(present.shape)} and got values of shape {tuple(values.shape)}: "
                "give a number for all entries, or one value for each"
            )
        _require_within(constraint, values, label)
        return values.clone()


def _constrained(own: Tensor, constraint: constraints.Constraint) -> Tensor:
    """Return the values of a parameter, as Pyro makes them."""
    values = transform_to(constraint)(own)
    values.unconstrained = ref(own)
    return values


def _weights_of(part: nn.Module, name: str) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the parameters of a network by the names that they have in Pyro, where the network itself has this one."""
    if not isinstance(part, PyroModule):
        yield from ((param_with_module_name(name, path), weights) for path, weights in part.named_parameters())
        return
    for module in part.modules():
        if not isinstance(module, CheckedModule):
            yield from ((path, weights) for path, weights in pyro_parameters(module) if weights is not None)


def release(module: PyroModule) -> None:
    """Let a module of several parts that has run by itself become a part of another; raise for one that has run as a part.

    Pyro's names of parameters begin at the outermost module. It refuses a module whose own parts have run under other names.
    """
    context = module._pyro_context
    has_parts = any(isinstance(part, PyroModule) for part in module._modules.values())
    if has_parts and context.used and not context.active:
        if module._pyro_name:
            raise ValueError(
                f"this {type(module).__name__} is a part of another module, under the name {module._pyro_name!r}, and has run "
                "there: make one for each place"
            )
        context.used = False


def _require_within(constraint: constraints.Constraint, values: Tensor, label: str) -> None:
    """Raise unless all values are finite and satisfy the constraint of a parameter."""
    valid = constraint.check(values)
    valid = torch.isfinite(values) & (valid if valid.shape == values.shape else valid.all())
    if not bool(valid.all()):
        first = values[~valid][0].item()
        raise ValueError(f"{label} takes {_described(constraint)}, not {first:g}: give such values")


def _described(constraint: constraints.Constraint) -> str:
    """Return a constraint in words."""
    if isinstance(constraint, type(constraints.greater_than(0.0))):
        return f"numbers above {constraint.lower_bound:g}"
    return "finite numbers" if constraint is constraints.real else f"values that satisfy {constraint}"
