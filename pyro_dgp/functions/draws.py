"""Draws of whole functions from a fit."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Size, Tensor

from pyro_dgp.functions.drawn_groups import DrawnGroups, Group, OfGroup
from pyro_dgp.functions.fits import Fit, functions_of
from pyro_dgp.functions.handler import wanted_site
from pyro_dgp.functions.joint import Component, JointDistribution, JointNormal, require_few_rows, shares_and_components
from pyro_dgp.internal.rows import RowArguments
from pyro_dgp.internal.tensors import require_tensor
from pyro_dgp.internal.whole_numbers import whole_number
from pyro_dgp.mcmc.remembered import Remembered

#: Numbers in a block of rows: their random features and kernel values for all draws are held at once.
_BLOCK = 2**23


class FunctionDraws:
    """Draws of a function from a fit: ``functions(x)`` gives its values at any inputs.

    Each draw is one fixed function. It has the same value at the same input, whatever the other rows and in whatever batches they come, up
    to rounding: some 1e-12 of its scale in float64 and 1e-3 in float32. Made by :func:`draw_functions`.

    :ivar num_draws: number of draws, S.
    :ivar site: the site whose function is drawn.
    """

    def __init__(self, fit: Fit, num_draws: int, *, site: str | None, seed: int | None, num_frequencies: int) -> None:
        if num_frequencies < 1:
            raise ValueError(f"num_frequencies is 1 or more, got {num_frequencies}: ask for at least one")
        self.num_draws, self.site = num_draws, wanted_site(fit.keys, site)
        self._fit = fit
        self._drawn = DrawnGroups(
            fit,
            self.site,
            num_draws=num_draws,
            is_named=site is not None,
            seed=int(torch.randint(2**31 - 1, ())) if seed is None else seed,
            num_frequencies=num_frequencies,
        )
        self._then = Remembered(fit.modules())

    @property
    def _groups(self) -> list[Group]:
        return self._drawn.groups

    def __repr__(self) -> str:
        return f"FunctionDraws({self.num_draws} of {self.site!r})"

    def __call__(self, x: Tensor, **arguments: Any) -> Float[Tensor, "s n o"]:
        """Return the values of each draw at inputs ``(N, D)``, or at inputs of its own, ``(S, N, D)``: ``(S, N, D_out)``.

        The values are those of the latent function, without noise, in units of the targets that the likelihood sees: of standardised ones in
        a model with a :class:`~pyro_dgp.Standardizer`, whose ``to_target`` puts them into the target's own. They are differentiable in ``x`` if that requires gradients; otherwise rows are evaluated in blocks, in little memory.

        :param arguments: further arguments of the model, such as ``exposure=e``; a tensor with one entry for each row goes with its rows.
        :raises ValueError: for inputs of another shape, or after the parameters or buffers of the model or guide have changed.
        """
        return self._evaluated(self._drawn.of_group, x, arguments)

    def location(self, x: Tensor, **arguments: Any) -> Float[Tensor, "s n o"] | None:
        """Return what the noise of the target is put around, in its units, at inputs as in a call: ``(S, N, D_out)``.

        For noise around each function these are its values, for a coregionalised target the mixed functions, and for noise with a function of its own the
        mean alone. Nothing where the model says no such thing: where the targets are classes or counts, and where the function is a
        site before a plain observation.
        """
        self._check(x)
        row, arguments_of_row = x.detach().reshape(-1, x.shape[-1])[:1], self._rows(x, arguments)[slice(0, 1)][1]
        with torch.no_grad(), self._fit.running():
            self._drawn.prepare(self._rows(x, arguments))
            if self._drawn.location_of_group(self._groups[0], row, arguments_of_row) is None:
                return None
        return self._evaluated(self._drawn.location_of_group, x, arguments)

    def _evaluated(self, of_group: OfGroup, x: Tensor, arguments: dict[str, Any]) -> Tensor:
        """Return the values of all groups, in blocks of rows where no gradients are asked for."""
        self._check(x)
        rows = self._rows(x, arguments)
        if torch.is_grad_enabled() and x.requires_grad:
            with self._fit.running():
                self._drawn.prepare(rows)
                return self._drawn.values(of_group, x, arguments)
        with torch.no_grad(), self._fit.running():
            self._drawn.prepare(rows)
            size = max(1, _BLOCK // max(each.numbers for group in self._groups for each in group.functions.values()))
            blocks = [slice(start, start + size) for start in range(0, len(rows), size)]
            return torch.cat([self._drawn.values(of_group, x[..., block, :], rows[block][1]) for block in blocks], -2)

    @staticmethod
    def _rows(x: Tensor, arguments: dict[str, Any]) -> RowArguments:
        return RowArguments((x,), arguments, groups=Size())

    def joint(self, x: Tensor, **arguments: Any) -> JointDistribution:
        """Return the joint distribution of the function at rows ``(N, D)``, and of targets there.

        For a model of one layer it is normal, in closed form, for each setting of the other latent sites. For a deep model it is a mixture
        of as many normals as there are draws: hidden layers are drawn as functions, and the last layer is integrated out. All settings weigh alike.

        :param arguments: further arguments of the model.
        :raises ValueError: for more than 2000 rows.
        """
        self._check(x)
        require_few_rows(x)
        x = x.clone()  # components are computed when they are asked for, and the caller may have changed it by then
        self._fit.require_joint(self.site)
        with torch.no_grad(), self._fit.running():
            self._drawn.prepare(self._rows(x, arguments))
            reached = [(group.setting, self._drawn.reach(group, x, arguments)) for group in self._groups]
        shares, components = shares_and_components(reached)
        return JointDistribution([partial(self._component, each) for each in components], shares, name=self.site)

    def _component(self, component: Component) -> JointNormal:
        """Compute a component with the parameters and buffers of the time when the functions were drawn; raise where these have changed."""
        self._require_unchanged()
        with torch.no_grad(), self._fit.running():
            return component()

    def _check(self, x: Tensor) -> None:
        require_tensor(x, "inputs of functions are")
        if x.dim() not in (2, 3) or x.shape[-2] == 0 or (x.dim() == 3 and len(x) != self.num_draws):
            raise ValueError(
                f"inputs of {self.num_draws} functions have shape (N, D), or ({self.num_draws}, N, D) for rows of its own for each, got "
                f"{tuple(x.shape)}: use x[:, None] for one input"
            )
        self._require_unchanged()

    def _require_unchanged(self) -> None:
        changed = self._then.changed()
        if changed:
            raise ValueError(
                f"parameters or buffers of the model or the guide have changed since the functions were drawn, the first {changed[0]!r}: draw "
                "them again"
            )


def draw_functions(
    fit: Any,
    num_draws: int,
    *,
    site: str | None = None,
    seed: int | None = None,
    num_frequencies: int = 256,
) -> FunctionDraws:
    """Draw whole functions from any fit.

    The model itself is run, with a function in the place of each Gaussian process, so that all that it does between layers holds. A
    function is a draw of the prior by random features, moved to a draw of the inducing variables by Matheron's rule (Wilson et al. 2020,
    "Efficiently sampling functions from Gaussian process posteriors"). For draws of MCMC and exact regression it is moved to the sampled
    values at the training inputs, and the last function, under Gaussian noise, to the targets. Each draw has frequencies of its own, so
    that means and covariances over draws are those of the posterior. Under sigma points a hidden layer is ``mean(x) + xi sd(x)``, with
    the point drawn by weight. Other latent sites have one value for each draw. Kernels without random features (adapters, your own, a
    product with ``Linear``) are drawn jointly at all points asked for, at most 2000.

    :param fit: what :func:`~pyro_dgp.predict` takes: a trained guide, chains, :class:`~pyro_dgp.PosteriorDraws` (without draws: exact
        regression), or :class:`~pyro_dgp.InducingDraws`. Draws of a sampler are equally spaced; if there are fewer than functions, they
        serve several each.
    :param num_draws: number of draws, S.
    :param site: the Gaussian process: a site (``"h1"``), an observation (``"y"``, all functions under it) or one GP of an observation
        (``"y/f"``). If not given, the function under the likelihood; where a likelihood has several, the last axis holds all of them.
    :param seed: the seed of the draws; drawn from torch's generator if not given.
    :param num_frequencies: F, the number of random frequencies of a draw. More make each draw closer to normal, and cost as much more.
    :returns: ``functions(x)``, ``(S, N, D_out)``.
    :raises ValueError: for amortised inducing points and latent sites that have a value for each row.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, MonteCarlo, PosteriorDraws, Variational, draw_functions
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> guide = Variational(DeepGP(x, width=2), InducingPoints(20), MonteCarlo(10))
    >>> guide.initialize(x, y)  # a trained guide is used in the same way
    >>> functions = draw_functions(guide, 10, seed=0)
    >>> values = functions(torch.linspace(-2, 2, 50)[:, None])
    >>> values.shape, values.amax(1).shape  # the maximum of each draw
    (torch.Size([10, 50, 1]), torch.Size([10, 1]))
    >>> bool((functions(torch.tensor([[2.0]])) - values[:, -1:]).abs().max() < 0.01)  # a draw is one function, here in float32
    True
    >>> exact = PosteriorDraws(DeepGP(x, layers=1), {}, (x, y))  # exact regression
    >>> draw_functions(exact, 5)(x).shape
    torch.Size([5, 20, 1])
    """
    num_draws = whole_number("num_draws", num_draws, 1)
    return FunctionDraws(functions_of(fit, num_draws), num_draws, site=site, seed=seed, num_frequencies=num_frequencies)
