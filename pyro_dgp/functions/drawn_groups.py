"""Functions of all GPs of a fit, drawn for groups of draws that share a setting."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.functions.fits import Fit, Setting
from pyro_dgp.functions.handler import ReachedSite, Values, run_to
from pyro_dgp.functions.posterior_path import Functions
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.rows import RowArguments


@dataclass
class Group:
    """K draws that share a setting, and the functions of each GP, drawn when the model first comes to it."""

    number: int
    setting: Setting
    functions: dict[str, Functions] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)


#: Values of one group at inputs, given further arguments of the model.
OfGroup = Callable[[Group, Tensor, dict[str, Any]], Tensor]


class DrawnGroups:
    """Draws of the functions that lead to one site of a fit.

    :ivar groups: one for each setting, drawn at the first call of :meth:`prepare`.
    """

    def __init__(self, fit: Fit, site: str, *, num_draws: int, is_named: bool, seed: int, num_frequencies: int) -> None:
        self.fit, self.site, self.num_draws = fit, site, num_draws
        self._is_named, self._seed, self._num_frequencies = is_named, seed, num_frequencies
        self.groups: list[Group] = []

    def prepare(self, rows: RowArguments) -> None:
        """Draw all that is random, at the first row of the first call: nothing of it depends on the row."""
        if self.groups:
            return
        x: Tensor = rows.args[0]
        row, arguments = x.detach().reshape(-1, x.shape[-1])[:1], rows[slice(0, 1)][1]
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(self._seed_of("settings"))
            settings = self.fit.settings(self.num_draws, ((row,), arguments))
            groups = [Group(number, setting) for number, setting in enumerate(settings)]
            for group in groups:
                torch.manual_seed(self._seed_of(f"{group.number}"))
                self.of_group(group, row, arguments)
            if not self._is_named and self.site in self.fit.keys:
                self._require_one_end(groups[0], row, arguments)
        self.groups = groups

    def _require_one_end(self, group: Group, x: Tensor, arguments: dict[str, Any]) -> None:
        """Raise where several functions are taken by no other one, so that none of them is *the* function of the model."""
        ends = [self.site]
        for key in group.functions.keys() - {self.site}:
            taken: list[bool] = []

            def values(name: str, prior: FunctionPrior, key: str = key, taken: list[bool] = taken) -> Tensor:
                taken.append(_has_gradients(prior))
                return self._at(group, name, prior).detach().requires_grad_(name == key)

            with torch.enable_grad():
                last = self.reach(group, x, arguments, values)
            if not any((*taken, *map(_has_gradients, last.priors.values()))):
                ends.append(key)
        if len(ends) > 1:
            raise ValueError(
                f"the functions at {sorted(ends, key=self.fit.keys.index)} are taken by no other Gaussian process, so that none is the one of the "
                "model: name one with site="
            )

    def _seed_of(self, what: str) -> int:
        """Return a seed for one part of the draws, so that it does not depend on the others, nor on when it is drawn."""
        return zlib.crc32(f"{self._seed}/{what}".encode())

    def values(self, of_group: OfGroup, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        """Return the values of all groups, ``(S, N, D_out)``.

        :param of_group: gives those of one group.
        """
        parts, start = [], 0
        for group in self.groups:
            end = start + group.setting.num_draws
            parts.append(of_group(group, x if x.dim() == 2 else x[start:end], arguments))
            start = end
        values = torch.cat(parts)
        if not bool(torch.isfinite(values).all()):
            raise ValueError(
                f"the function at {self.site!r} is not finite: look for NaN in the inputs, and for an observed site before it on which it "
                "depends, since observations are no functions of the inputs"
            )
        return values

    def of_group(self, group: Group, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        """Return the values of one group, ``(K, N, D_out)``."""
        priors = self.reach(group, x, arguments).priors
        return torch.cat([self._at(group, key, prior) for key, prior in priors.items()], -1)

    def location_of_group(self, group: Group, x: Tensor, arguments: dict[str, Any]) -> Any:
        """Return the location of the target of one group, ``(K, N, D_out)``; nothing where there is none."""
        reached = self.reach(group, x, arguments)
        if reached.conditional is None or self.site in self.fit.keys:
            return None
        values = [self._at(group, key, prior) for key, prior in reached.priors.items()]
        return reached.conditional.location(torch.cat(values, -1))

    def reach(self, group: Group, x: Tensor, arguments: dict[str, Any], values: Values | None = None) -> ReachedSite:
        """Run the model on one group up to the site."""
        return run_to(
            self.site,
            self.fit.model,
            ((x,), arguments),
            values=values or (lambda key, prior: self._at(group, key, prior)),
            latents=group.setting.latents,
            observed=self.fit.was_observed,
        )

    def _at(self, group: Group, key: str, prior: FunctionPrior) -> Tensor:
        """Return the values of one GP's functions, ``(K, N, D_out)``; draw them at the first call."""
        draws = group.setting.num_draws
        if prior.x.dim() > 3 or (prior.x.dim() == 3 and len(prior.x) != draws):
            raise ValueError(
                f"the Gaussian process {key!r} has inputs of shape {tuple(prior.x.shape)}: functions are drawn for inputs (N, D), with "
                f"{draws} draws in front where they come from a layer below; write groups as outputs of one GaussianProcess(..., num_outputs=)"
            )
        if key not in group.functions:
            with torch.random.fork_rng():
                torch.manual_seed(self._seed_of(f"{group.number}/{key}"))
                group.functions[key] = self.fit.functions(
                    key, group.setting, prior, num_frequencies=self._num_frequencies, memory=group.memory
                )
        return group.functions[key](prior)


def _has_gradients(prior: FunctionPrior) -> bool:
    """Tell whether a GP takes values that require gradients."""
    return prior.x.requires_grad or prior.mean.requires_grad
