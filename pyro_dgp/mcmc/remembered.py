"""What modules held at one time, by which results that depend on it notice a change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class Remembered:
    """The parameters and batch statistics of modules as they were when this was made.

    >>> import torch
    >>> from pyro_dgp.mcmc.remembered import Remembered
    >>> layer = torch.nn.BatchNorm1d(1)
    >>> then = Remembered([layer])
    >>> layer.running_mean += 1.0
    >>> then.changed()
    ['running_mean']

    :param modules: the modules, which go on to be used and trained.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)
        self._then = [{name: value.detach().clone() for name, value in _held(m).items()} for m in self._modules]

    def changed(self, besides: Collection[str] = (), modules: Sequence[nn.Module] | None = None) -> list[str]:
        """Return the names of parameters and buffers that have other values now; a move to another device or dtype is no change.

        :param besides: names that may change.
        :param modules: copies to look at in the place of the modules themselves.
        """
        return [
            name
            for module, before in zip(self._modules if modules is None else modules, self._then, strict=True)
            for now in [_held(module)]
            for name, value in before.items()
            if name not in besides and not (name in now and _are_equal(now[name].detach(), value))
        ]


def _held(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, and the buffers of modules with batch statistics: others may be large, or written by each evaluation."""
    norms = [(path, part) for path, part in module.named_modules() if isinstance(part, _NormBase)]
    buffers = {
        ".".join(filter(None, (path, name))): value for path, part in norms for name, value in part.named_buffers()
    }
    return {**dict(module.named_parameters()), **buffers}


def _are_equal(now: Tensor, then: Tensor) -> bool:
    """Tell whether values are the same ones, NaN at the same places."""
    then = then.to(now)
    return now.shape == then.shape and (torch.equal(now, then) or bool(now.isclose(then, 0, 0, equal_nan=True).all()))
