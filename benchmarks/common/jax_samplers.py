"""The deep GP of the sampler studies in JAX, and NumPyro's and BlackJAX's No-U-Turn samplers of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from pyro_dgp import DeepGP, whitened
from pyro_dgp.likelihoods import NOISE_FLOOR
from pyro_dgp.mcmc.density import WhitenedDensity

#: Largest difference of gradients in JAX and here, as a share of the largest.
AGREEMENT = 1e-5

#: Relative jitter of covariances, that of float64 here.
JITTER = 1e-8


@dataclass
class Sampled:
    """Chains of one process.

    :ivar draws: by site, in the space of each, ``(chains, draws, ...)``.
    :ivar gradients: number of those after the warm-up.
    :ivar seconds: the whole time, compilation included.
    :ivar drawing_seconds: time after the warm-up.
    """

    draws: dict[str, np.ndarray]
    gradients: int
    seconds: float
    drawing_seconds: float


def require_peers() -> None:
    """End with one sentence where NumPyro or BlackJAX is not installed."""
    try:
        import blackjax  # noqa: F401
        import numpyro  # noqa: F401
    except ImportError as error:
        sys.exit(f"this study runs NumPyro and BlackJAX: pip install numpyro blackjax ({error})")


def potential(model: DeepGP, x: Tensor, y: Tensor) -> Callable[[dict[str, Any]], Any]:
    """Minus the log posterior density of a two-layer model with priors, of unconstrained values by the names of its sites, up to a constant.

    The model is that of :func:`~pyro_dgp.zoo.recipes.deep_with_priors`: Matern 5/2, whitened hidden values, log-normal priors.
    """
    import jax.numpy as jnp

    sites = poutine.trace(whitened(model)).get_trace(x, y).nodes
    names = [name for name in sites if name.endswith((".variance", ".lengthscale"))]
    priors = {name: _log_normal(sites[name]["fn"]) for name in names}
    mean = model.hidden[0].mean()
    base, inputs, targets = (jnp.array(part.detach().numpy(), copy=True) for part in (mean(x), x, y))
    count = len(x)

    def matern(points: Any, variance: Any, lengthscale: Any) -> Any:
        scaled = points / lengthscale
        squared = ((scaled[:, None] - scaled[None]) ** 2).sum(-1)
        distance = jnp.sqrt(5.0 * jnp.where(squared > 0, squared, 1.0)) * (squared > 0)
        return variance * (1 + distance + distance**2 / 3) * jnp.exp(-distance)

    def energy(at: dict[str, Any]) -> Any:
        total, value = 0.0, {}
        for name, (loc, scale, floor) in priors.items():
            total = total + 0.5 * (((at[name] - loc) / scale) ** 2).sum()
            value[name] = floor + jnp.exp(at[name])
        white = at["h1_whitened"]
        inner = matern(inputs, value["hidden.0.kernel.variance"], value["hidden.0.kernel.lengthscale"])
        inner = inner + JITTER * value["hidden.0.kernel.variance"] * jnp.eye(count)
        hidden = base + jnp.linalg.cholesky(inner) @ white
        outer = matern(hidden, value["top.kernel.variance"], value["top.kernel.lengthscale"])
        factor = jnp.linalg.cholesky(outer + value["likelihood.variance"] * jnp.eye(count))
        residual = _solve(factor, targets)
        return total + 0.5 * (white**2).sum() + 0.5 * (residual**2).sum() + jnp.log(jnp.diagonal(factor)).sum()

    return energy


@dataclass(frozen=True)
class Plan:
    """What a process samples.

    :ivar starts: first points in unconstrained space, by site, ``(chains, ...)``.
    """

    starts: dict[str, np.ndarray]
    warmup: int
    draws: int
    max_tree_depth: int
    seed: int


def require_agreement(model: DeepGP, x: Tensor, y: Tensor, plan: Plan) -> None:
    """Raise unless the compiled gradients in JAX are those of this library at the first points.

    The compiled programs of JAX 0.10.2 gave wrong values and NaN here, on a processor, for some numbers of rows; those of JAX 0.9.0 were right.
    """
    import jax

    density = WhitenedDensity(whitened(model), (x, y), {})
    chains = len(next(iter(plan.starts.values())))
    points = [{name: torch.as_tensor(values[chain]) for name, values in plan.starts.items()} for chain in range(chains)]
    values, gradients = density.slopes(torch.stack([density.vector(point) for point in points]))
    theirs, slopes = jax.jit(jax.vmap(jax.value_and_grad(potential(model, x, y))))(plan.starts)
    found = [torch.tensor(np.array(slopes[name])).reshape(chains, -1) for name in density.start]
    offset = torch.tensor(np.array(theirs)) + values
    worst = max(float((torch.cat(found, 1) + gradients).abs().max()), float((offset - offset[0]).abs().max()))
    if not worst < AGREEMENT * (1 + float(gradients.abs().max())):
        raise ValueError(f"the density in JAX is another one: values or gradients differ by up to {worst:.1e}")


def by_numpyro(model: DeepGP, x: Tensor, y: Tensor, plan: Plan) -> Sampled:
    """Sample with NumPyro's NUTS, its chains vectorised."""
    import jax
    from numpyro.infer import MCMC, NUTS

    begin = time.perf_counter()
    kernel = NUTS(potential_fn=potential(model, x, y), max_tree_depth=plan.max_tree_depth)
    chains = len(next(iter(plan.starts.values())))
    sampler = MCMC(
        kernel,
        num_warmup=plan.warmup,
        num_samples=plan.draws,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    starts = {name: jax.numpy.asarray(value if chains > 1 else value[0]) for name, value in plan.starts.items()}
    sampler.run(jax.random.PRNGKey(plan.seed), init_params=starts, extra_fields=("num_steps",))
    draws = {name: np.asarray(values) for name, values in sampler.get_samples(group_by_chain=True).items()}
    gradients = int(sampler.get_extra_fields()["num_steps"].sum())
    seconds = time.perf_counter() - begin
    sampler.post_warmup_state = sampler.last_state
    sampler.run(jax.random.PRNGKey(plan.seed + 1), extra_fields=("num_steps",))  # compiled once more for the state
    sampler.post_warmup_state = sampler.last_state
    again = time.perf_counter()
    sampler.run(jax.random.PRNGKey(plan.seed + 2), extra_fields=("num_steps",))
    last = int(sampler.get_extra_fields()["num_steps"].sum())
    drawing = (time.perf_counter() - again) * gradients / last
    return Sampled(_constrained(draws), gradients, seconds, drawing)


def by_blackjax(model: DeepGP, x: Tensor, y: Tensor, plan: Plan) -> Sampled:
    """Sample with BlackJAX's NUTS after its window adaptation, its chains vectorised."""
    import blackjax
    import jax

    begin = time.perf_counter()
    energy = potential(model, x, y)

    def log_density(at: Any) -> Any:
        return -energy(at)

    depth = {"max_num_doublings": plan.max_tree_depth}
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density, target_acceptance_rate=0.8, **depth)
    starts = {name: jax.numpy.asarray(value) for name, value in plan.starts.items()}
    chains = len(next(iter(starts.values())))
    keys = jax.random.split(jax.random.PRNGKey(plan.seed), chains)

    def warm(key: Any, start: Any) -> Any:
        (state, parameters), _ = adaptation.run(key, start, num_steps=plan.warmup)
        del parameters["max_num_doublings"]
        return state, parameters

    def draw(key: Any, state: Any, parameters: Any) -> Any:
        step = blackjax.nuts(log_density, **parameters, **depth).step

        def once(state: Any, key: Any) -> Any:
            state, info = step(key, state)
            return state, (state.position, info.num_integration_steps)

        return jax.lax.scan(once, state, jax.random.split(key, plan.draws))[1]

    states, parameters = jax.block_until_ready(jax.jit(jax.vmap(warm))(keys, starts))
    drawn = jax.jit(jax.vmap(draw))
    positions, steps = jax.block_until_ready(drawn(keys, states, parameters))
    seconds, again = time.perf_counter() - begin, time.perf_counter()
    jax.block_until_ready(drawn(keys, states, parameters))
    drawing = time.perf_counter() - again
    draws = {name: np.asarray(values) for name, values in positions.items()}
    return Sampled(_constrained(draws), int(steps.sum()), seconds, drawing)


def _constrained(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draws in the space of each site."""
    floors = {"likelihood.variance": NOISE_FLOOR}
    return {
        name: values if name == "h1_whitened" else floors.get(name, 0.0) + np.exp(values)
        for name, values in draws.items()
    }


def _solve(factor: Any, columns: Any) -> Any:
    from jax.scipy.linalg import solve_triangular

    return solve_triangular(factor, columns, lower=True)


def _log_normal(fn: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and standard deviation of the logarithm above a floor, and the floor."""
    while not hasattr(fn, "base_dist") or hasattr(fn, "reinterpreted_batch_ndims"):
        fn = fn.base_dist
    floor = NOISE_FLOOR if type(fn).__name__ == "FlooredLogNormal" else 0.0
    while not hasattr(fn, "loc") or hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn.loc.detach().numpy().copy(), fn.scale.detach().numpy().copy(), floor
