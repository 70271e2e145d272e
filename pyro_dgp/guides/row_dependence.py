"""Search for the sites and plates of a model that stand for the rows of a data set, by a run on one row less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.internal.rows import RowArguments
from pyro_dgp.likelihoods import Observation


@dataclass
class RowDependence:
    """Names of the sites whose shape, and of the plates whose size, follows the number of rows.

    :ivar others: names of the other sites. A site is in neither set where the model could not be asked.
    """

    sites: set[str] = field(default_factory=set)
    plates: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


class _Shapes(SiteHandler, Messenger):
    """Handler that runs a model with GPs at their means and keeps the shapes of all sites and the sizes of plates."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[str, tuple[int, ...]] = {}
        self.plates: dict[str, int] = {}

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set function values to their mean where they are not observed."""
        msg["value"] = prior.mean if msg["value"] is None else msg["value"]

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Set an observation to zeros, since only its shape matters."""
        first = next(iter(observation.priors.values()))
        msg["value"] = first.mean.new_zeros(observation.batch_shape + observation.event_shape)

    def _pyro_post_sample(self, msg: Message) -> None:
        for frame in msg["cond_indep_stack"]:
            self.plates[frame.name] = frame.full_size or frame.size
        if not site_is_subsample(msg):
            self.sites[msg["name"]] = tuple(msg["fn"].shape())


def _rows_of(tensors: list[Tensor]) -> Tensor | None:
    if tensors and tensors[0].dim() == 2:
        return tensors[0]
    if any(tensor.dim() != 1 for tensor in tensors):
        return None
    lengths = [len(tensor) for tensor in tensors]
    return next((tensor for tensor in tensors if lengths.count(len(tensor)) > 1), None)


@torch.no_grad()
def row_dependence(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> RowDependence:
    """Compare the model on its arguments with the model on their first N - 1 rows.

    N is the number of rows of the first tensor argument ``(N, D)``; where all tensors are ``(N,)``, it is the first length
    that two of them share. Every row argument, a tensor of N rows, is shortened. Nothing is found for batched inputs, a single row, or a
    model that cannot be run on fewer rows.
    """
    first = _rows_of([value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)])
    if first is None or len(first) < 2:
        return RowDependence()
    fewer_args, fewer_kwargs = RowArguments(args, kwargs, len(first))[slice(0, len(first) - 1)]
    state = torch.get_rng_state()
    try:
        with _Shapes() as whole:
            model(*args, **kwargs)
        with _Shapes() as less:
            model(*fewer_args, **fewer_kwargs)
    except (RuntimeError, ValueError, IndexError, AssertionError, KeyError, TypeError):
        return RowDependence()
    finally:
        torch.set_rng_state(state)
    sites = {name for name, shape in whole.sites.items() if less.sites.get(name) != shape}
    plates = {name for name, size in whole.plates.items() if less.plates.get(name) != size}
    return RowDependence(sites, plates, whole.sites.keys() - sites)
