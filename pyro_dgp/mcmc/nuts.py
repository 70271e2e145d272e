"""The No-U-Turn sampler of a whitened model: Pyro's, on a potential without traces, with figures of every draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import NUTS
from torch import Tensor

from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.initial_points import PriorDraw, Start, require_start
from pyro_dgp.mcmc.whitening import WhitenedModel, whitened

#: Prior draws that are tried as a start before giving up.
_TRIES = 100


class WhitenedNUTS(NUTS):  # type: ignore[misc]
    """Pyro's No-U-Turn sampler (Hoffman and Gelman 2014) of function values in whitened coordinates and hyperparameters.

    ``MCMC(WhitenedNUTS(model), num_samples=500, warmup_steps=500).run(x, y)``. The same chain of draws as
    ``NUTS(whitened(model))`` would make from the same start; the gradient comes without Pyro's traces, the start is a draw of the
    prior, and ``stats`` has figures of the last draw.

    :param model: the model, or ``whitened(model)``.
    :param max_tree_depth: at most ``2**max_tree_depth - 1`` gradients a draw; each factorises one matrix of all rows for each layer.
    :param density: the class that evaluates the potential, :class:`~pyro_dgp.CompiledDensity` for long chains.
    :param start: the first point unless ``initial_params`` is set: a draw of the prior, or the end of an :class:`~pyro_dgp.Ascent`.
    :param options: those of ``pyro.infer.NUTS`` (``target_accept_prob``, ``full_mass``, ``step_size``).
    :ivar stats: of the last draw, names as ArviZ has them: ``lp`` (log density in unconstrained space up to a constant, nats),
        ``energy`` (of the trajectory at its start, nats), ``n_steps`` (gradients), ``tree_depth``, ``acceptance_rate``, ``step_size``,
        ``diverging``.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        max_tree_depth: int = 6,
        density: type[WhitenedDensity] = WhitenedDensity,
        start: Start = PriorDraw(),
        **options: Any,
    ) -> None:
        require_start(start)
        self.stats: dict[str, float | int | bool] = {}
        self.density, self.start = density, start
        super().__init__(
            model if isinstance(model, WhitenedModel) else whitened(model), max_tree_depth=max_tree_depth, **options
        )

    def _initialize_model_properties(self, model_args: tuple[Any, ...], model_kwargs: dict[str, Any]) -> None:
        given = self.initial_params  # type: ignore[has-type]
        for _ in range(_TRIES):
            density = self.density(self.model, model_args, model_kwargs)
            if given is not None or _is_finite(density, density.unconstrained_start()):
                break
        else:
            raise ValueError(f"none of {_TRIES} prior draws has a finite posterior density: {density.remedy()}")
        if given is not None and not _is_finite(density, given):
            raise ValueError(f"the posterior density is not finite at initial_params: {density.remedy()}")
        _require_slopes(density)
        self.potential_fn = density.potential
        self.transforms = {name: transform.inv for name, transform in density.transforms.items()}
        self.initial_params = self.start(density) if given is None else given

    def _build_basetree(self, z: Any, r: Any, z_grads: Any, log_slice: Any, direction: int, energy: Tensor) -> Any:
        tree = super()._build_basetree(z, r, z_grads, log_slice, direction, energy)
        self.stats["energy"] = float(energy)
        self.stats["n_steps"] += 1
        self.stats["acceptance_rate"] += float(tree.sum_accept_probs)
        self.stats["diverging"] = bool(self.stats["diverging"] or tree.diverging)
        return tree

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Make one draw, in unconstrained space."""
        self.stats = {"n_steps": 0, "acceptance_rate": 0.0, "diverging": False}
        drawn: dict[str, Tensor] = super().sample(params)
        steps = self.stats["n_steps"]
        self.stats["acceptance_rate"] /= max(steps, 1)
        self.stats["tree_depth"] = math.ceil(math.log2(steps + 1))
        self.stats["step_size"] = float(self.step_size)
        self.stats["lp"] = -float(self._potential_energy_last)
        return drawn


def _require_slopes(density: WhitenedDensity) -> None:
    """Raise where no function value changes the likelihood by a slope, as under a step function of them."""
    start = {name: value.detach().clone() for name, value in density.unconstrained_start().items()}
    whitened = {name: start[name].requires_grad_() for name in density.whitened}
    if not whitened:
        return
    potential = WhitenedDensity.potential(density, start)  # before anything is compiled
    slopes = torch.autograd.grad(potential, list(whitened.values()), allow_unused=True)
    if all(slope is None or torch.equal(slope, value) for slope, value in zip(slopes, whitened.values(), strict=True)):
        raise ValueError(
            "the likelihood has no gradient in the function values, as that of RobustMax: take EllipticalSlice, which needs none, or Softmax"
        )


def _is_finite(density: WhitenedDensity, start: dict[str, Tensor]) -> bool:
    try:
        with torch.no_grad():
            return math.isfinite(float(WhitenedDensity.potential(density, start)))  # before anything is compiled
    except NotPositiveDefiniteError:
        return False
