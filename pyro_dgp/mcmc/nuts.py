"""The No-U-Turn sampler of a whitened model, with a metric learned from draws and gradients, and figures of every draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.mcmc.adaptation import Adaptation
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.density_kernel import DensityKernel
from pyro_dgp.mcmc.evaluation import IMPOSSIBLE
from pyro_dgp.mcmc.initial_points import PriorDraw, Start
from pyro_dgp.mcmc.lockstep import lockstep
from pyro_dgp.mcmc.trajectories import Leap, Phase, Random, Steps, Trajectory

#: Prior draws that are tried as a start before giving up.
_TRIES = 100


class WhitenedNUTS(DensityKernel):
    """The No-U-Turn sampler (Hoffman and Gelman 2014) of function values in whitened coordinates and hyperparameters, as a kernel of Pyro's MCMC.

    ``run_chains(WhitenedNUTS(model), (x, y), num_samples=500, warmup_steps=500)``. Draws are multinomial over a trajectory (Betancourt 2017). The
    inverse mass matrix is diagonal, ``sqrt(var(draws) / var(gradients))`` of the warm-up, which has the least Fisher divergence (Seyboldt, Carlson and
    Carpenter 2026, arXiv:2603.18845); the step size comes from dual averaging. For a dense mass matrix take Pyro's ``NUTS(whitened(model), full_mass=True)``.

    With :class:`~pyro_dgp.CompiledDensity`, :func:`~pyro_dgp.run_chains` evaluates the chains of one process together. Where the rows are few this costs
    little more than one chain: the gradients of 16 chains of 20 rows take two or three times as long as one.

    :param model: the model, or ``whitened(model)``.
    :param max_tree_depth: at most ``2**max_tree_depth - 1`` gradients a draw; each factorises one matrix of all rows for each layer.
    :param target_accept_prob: acceptance rate that the step size is adapted to, between 0 and 1; a higher one takes smaller steps.
    :param step_size: the step size of every leapfrog step, in units of the metric, which a warm-up still learns; learned too if not given.
    :param density: the class that evaluates the potential, :class:`~pyro_dgp.CompiledDensity` for long chains.
    :param start: the first point unless ``initial_params`` is set: a draw of the prior, or the end of an :class:`~pyro_dgp.Ascent`.
    :ivar stats: of the last draw, names as ArviZ has them: ``lp`` (log density in unconstrained space up to a constant, nats),
        ``energy`` (of the trajectory at its start, nats), ``n_steps`` (gradients), ``tree_depth``, ``acceptance_rate``, ``step_size``,
        ``diverging``.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        max_tree_depth: int = 6,
        target_accept_prob: float = 0.8,
        step_size: float | None = None,
        density: type[WhitenedDensity] = WhitenedDensity,
        start: Start = PriorDraw(),
    ) -> None:
        if max_tree_depth < 1:
            raise ValueError(f"max_tree_depth is at least 1, got {max_tree_depth}")
        if not 0 < target_accept_prob < 1:
            raise ValueError(f"target_accept_prob is between 0 and 1, got {target_accept_prob}")
        if step_size is not None and not 0 < step_size < math.inf:
            raise ValueError(f"step_size is positive and finite, got {step_size}")
        self.max_tree_depth, self.target_accept_prob, self.step_size = max_tree_depth, target_accept_prob, step_size
        self.stats: dict[str, float | int | bool] = {}
        super().__init__(model, density, start)

    def forget(self) -> None:
        """See :class:`DensityKernel`."""
        super().forget()
        self._random, self._adaptation = Random(0), Adaptation(0, 0, target=self.target_accept_prob, step_size=None)
        self._at: Phase | None = None
        self._done, self._warmup, self._accepted = 0, 0, 0.0
        self._divergences: list[int] = []

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """See Pyro's ``MCMCKernel``."""
        density = _with_start(lambda: self.density(self.model, args, kwargs), self._given)
        self.forget()
        self._density, self._warmup = density, warmup_steps
        self.transforms = {name: transform.inv for name, transform in density.transforms.items()}
        self._random = Random(int(torch.randint(2**62, ())))
        size = len(density.vector(density.unconstrained_start()))
        self._adaptation = Adaptation(size, warmup_steps, target=self.target_accept_prob, step_size=self.step_size)

    @property
    def takes_several(self) -> bool:
        """Whether :meth:`slopes` of several chains take less time than those of one after another."""
        return self.density.takes_several

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Make one draw, in unconstrained space."""
        (drawn,) = lockstep([self.steps(params)], self.slopes)
        return drawn

    def slopes(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log densities ``(C,)`` and gradients ``(C, n)`` at positions of one or more chains of this model and data, ``(C, n)``."""
        density = self.require_density()
        values, gradients = density.slopes(density.tensor(positions))
        return values.double().cpu().numpy(), gradients.double().cpu().numpy()

    def steps(self, params: dict[str, Tensor]) -> Steps[dict[str, Tensor]]:
        """Make one draw as a generator, which returns it in unconstrained space; see :data:`~pyro_dgp.mcmc.trajectories.Steps`."""
        density, random, adaptation = self.require_density(), self._random, self._adaptation
        at = self._at
        if at is None or not self.is_at(params):
            position = density.vector(params).double().cpu().numpy()
            at = yield Leap.onto(position, adaptation.metric.variances)
            if not (math.isfinite(at.log_density) and np.isfinite(at.gradient).all()):
                raise ValueError(
                    f"the posterior density or its gradient is not finite where the chain starts: {density.remedy()}, or give another start"
                )
        if not self._done:
            yield from adaptation.begin(at, random)
        variances = adaptation.metric.variances
        momentum = random.normal(len(variances)) / np.sqrt(variances)
        start = Phase.of(at.position, momentum, (at.log_density, at.gradient), variances)
        step_size = adaptation.step_size
        trajectory = Trajectory(start, step_size, variances, self.max_tree_depth, random)
        end = yield trajectory
        rate = trajectory.acceptance / trajectory.n_steps
        self.stats = {
            "energy": start.energy,
            "n_steps": trajectory.n_steps,
            "acceptance_rate": rate,
            "diverging": trajectory.diverging,
            "tree_depth": math.ceil(math.log2(trajectory.n_steps + 1)),
            "step_size": step_size,
            "lp": end.log_density,
        }
        yield from adaptation.update(end, rate, random)
        if self._done >= self._warmup:
            self._accepted += rate
            if trajectory.diverging:
                self._divergences.append(self._done - self._warmup)
        self._done += 1
        if end is start:
            self._at = start
            self._params = params
            return params
        self._at = end
        self._params = density.params(density.tensor(end.position))
        return self._params

    def logging(self) -> dict[str, str]:
        """Step size and acceptance rate of the last draw, as text for a progress bar."""
        return {name: f"{self.stats[name]:.3g}" for name in ("step_size", "acceptance_rate") if name in self.stats}

    def diagnostics(self) -> dict[str, Any]:
        """Draws after the warm-up that diverged, by number, and the mean acceptance rate of all."""
        drawn = self._done - self._warmup
        return {"divergences": self._divergences, "acceptance rate": self._accepted / max(drawn, 1)}

    def state_dict(self) -> dict[str, Any]:
        """Return what the next draw depends on, for a kernel that is set up with the same data, warm-up and first point."""
        at = self._at
        return {
            "at": None
            if at is None
            else {
                "position": torch.from_numpy(at.position),
                "log_density": at.log_density,
                "gradient": torch.from_numpy(at.gradient),
            },
            "params": self._params,
            "random": self._random.state(),
            "adaptation": self._adaptation.state_dict(),
            "done": self._done,
            "accepted": self._accepted,
            "divergences": self._divergences,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned."""
        self._adaptation.load_state_dict(state["adaptation"])
        self._random.set_state(state["random"])
        at, variances = state["at"], self._adaptation.metric.variances
        if at is not None:
            position, gradient = (at[name].cpu().numpy() for name in ("position", "gradient"))
            if not position.shape == gradient.shape == variances.shape:
                raise ValueError("its point is of another model")
            self._at = Phase.of(position, np.zeros_like(position), (at["log_density"], gradient), variances)
        self._params = state["params"]
        self._done, self._accepted, self._divergences = state["done"], state["accepted"], list(state["divergences"])


def _with_start(make: Callable[[], WhitenedDensity], given: dict[str, Tensor] | None) -> WhitenedDensity:
    """Make a density that is finite and has slopes at the point that is given, or at its own draw of the prior."""
    for _ in range(_TRIES):
        density = make()
        if given is not None:
            density.vector(given)  # which raises for other sites
        if given is not None or _is_finite(density, density.unconstrained_start()):
            break
    else:
        raise ValueError(f"none of {_TRIES} prior draws has a finite posterior density: {density.remedy()}")
    if given is not None and not _is_finite(density, given):
        raise ValueError(f"the posterior density is not finite at initial_params: {density.remedy()}")
    _require_slopes(density)
    return density


def _require_slopes(density: WhitenedDensity) -> None:
    """Raise where no function value changes the likelihood by a slope, as under a step function of them."""
    start = {name: value.detach().clone() for name, value in density.unconstrained_start().items()}
    whitened = {name: start[name].requires_grad_() for name in density.whitened}
    if not whitened:
        return
    with torch.enable_grad():
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
    except IMPOSSIBLE:
        return False
