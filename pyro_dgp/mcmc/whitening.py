"""Whitening as a reparameterisation: function values f = m + L eps become standard normal eps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from pyro import distributions as dist
from pyro import sample
from pyro.infer.reparam.reparam import Reparam
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.reparam_messenger import ReparamMessenger
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.scales_and_masks import require_prior_unmasked, require_rows_unmasked, require_unscaled
from pyro_dgp.guides.served_sites import is_discrete, require_no_angle, require_usable
from pyro_dgp.guides.sites import gps_of_site, is_observation, warn_of_repeated
from pyro_dgp.internal.callers import is_trained
from pyro_dgp.internal.global_store import require_none_loaded
from pyro_dgp.internal.parameters import (
    evaluating,
    module_local_parameters,
    modules_of,
    require_own_parameters,
)
from pyro_dgp.internal.site_names import (
    function_site,
    function_site_of,
    inducing_site,
    is_whitened,
    process_key,
    whitened_site,
)
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.observation import join
from pyro_dgp.mcmc.sparse import Inputs, num_coefficients, sparse_moments, sparse_observation, sparse_values
from pyro_dgp.processes import Basis

logger = logging.getLogger("pyro_dgp")

#: Point estimates of each model that have been named in the log.
_told: WeakKeyDictionary[torch.nn.Module, list[str]] = WeakKeyDictionary()


def standard_normal(prior: FunctionPrior, rows: int) -> dist.Independent:
    """The prior of whitened values: standard normal over ``rows`` rows and the outputs of a GP, ``(..., rows, D_out)``."""
    return dist.Normal(prior.x.new_zeros((*prior.batch_shape, rows, prior.num_outputs)), 1.0).to_event(2)


def draw_inducing(name: str, prior: FunctionPrior, inputs: Tensor | Basis) -> Tensor:
    """Sample the whitened inducing variables ``(M, D_out)`` of the function site ``name``."""
    white: Tensor = sample(inducing_site(name), standard_normal(prior, num_coefficients(inputs)))
    return white


def draw_sparse(name: str, prior: FunctionPrior, inputs: Tensor | Basis) -> Tensor:
    """Sample the whitened inducing variables of the function site ``name`` and the whitened rest, and return the function values."""
    white = draw_inducing(name, prior, inputs)
    rest = sample(whitened_site(name), standard_normal(prior, prior.event_shape[0]))
    return sparse_values(prior, inputs, white, rest)


def draw_whitened(name: str, prior: FunctionPrior, value: Tensor | None = None) -> Tensor:
    """Sample ``eps ~ N(0, I)`` at the whitened site of the function site ``name`` and return ``m + L eps``.

    :param value: function values that an initialiser has set; their eps becomes the value of the whitened site.
    """
    noise = None if value is None else prior.whiten(value)
    standard = standard_normal(prior, prior.event_shape[0])
    eps = sample(whitened_site(name), standard, obs=noise, infer={"is_observed": False})
    return prior.unwhiten(eps)


class Whiten(Reparam):
    """Turns a GP site into its whitened values and a deterministic function of them."""

    def __init__(self, inducing: Inputs) -> None:
        self.inducing = inducing

    def apply(self, msg: Any) -> Any:
        """See ``pyro.infer.reparam``."""
        if msg["is_observed"]:
            return msg
        name = msg["name"]
        if name in self.inducing:
            value = draw_sparse(name, msg["fn"], self.inducing[name])
        else:
            value = draw_whitened(name, msg["fn"], msg["value"])
        return {"fn": dist.Delta(value, event_dim=2).mask(False), "value": value, "is_observed": True}


class ExpandObservation(Reparam):
    """Turns an observation without closed form into whitened function values and a plain p(y | f), and one with inducing inputs into
    whitened inducing variables and p(y | u).
    """

    def __init__(self, inducing: Inputs) -> None:
        self.inducing = inducing

    def apply(self, msg: Any) -> Any:
        """See ``pyro.infer.reparam``."""
        observation: Observation = msg["fn"]
        if not is_expanded(observation):
            ((gp, prior),) = observation.priors.items()
            inputs = self.inducing[process_key(msg["name"], gp)]
            white = draw_inducing(function_site(msg["name"], gp), prior, inputs)
            return {**msg, "fn": sparse_observation(observation, sparse_moments(prior, inputs, white))}
        values = {gp: self._draw(msg["name"], gp, prior) for gp, prior in observation.priors.items()}
        value = None if msg["value"] is None else observation.target(msg["value"], join(values))
        return {**msg, "fn": observation.conditional.given(join(values)), "value": value}

    def _draw(self, site: str, gp: str, prior: FunctionPrior) -> Tensor:
        """Function values of one GP of the observation, by its inducing variables where it has inducing inputs."""
        name, inputs = function_site(site, gp), self.inducing.get(process_key(site, gp))
        return draw_whitened(name, prior) if inputs is None else draw_sparse(name, prior, inputs)


def is_expanded(observation: Observation) -> bool:
    """Whether the function values of an observation are sampled, since they cannot be integrated out."""
    return observation.conditional.noise_variance() is None or len(observation.priors) > 1


class Whitening:
    """The strategy: which sites are whitened. It remembers the inputs it first saw and refuses others.

    Draws of the whitened values at 40 training inputs mean nothing at 40 test inputs.
    """

    def __init__(self, inducing: Inputs) -> None:
        self.inducing = inducing
        self._whiten, self._expand = Whiten(inducing), ExpandObservation(inducing)
        self._inputs: Tensor | None = None
        self._met: dict[str, FunctionPrior] | None = {}
        self._latent, self._made = set[str](), set[str]()
        self._discrete = set[str]()

    def __call__(self, msg: Any) -> Reparam | None:
        """The strategy for one site, or nothing for sites that are no GP."""
        fn = msg["fn"]
        self.meet(msg["name"], fn)
        if self._met is not None and not (msg["is_observed"] or isinstance(fn, FunctionPrior)):
            self._latent.add(msg["name"])
            require_no_angle(msg["name"], fn)
        if self._met is not None and msg["is_observed"]:
            require_usable(msg)
        if not msg["is_observed"] and is_discrete(fn):
            self._discrete.add(msg["name"])
        if isinstance(fn, FunctionPrior) or is_observation(msg):
            require_rows_unmasked(msg)
        elif msg["is_observed"] and isinstance(msg["mask"], Tensor) and msg["mask"].dim() > len(fn.batch_shape):
            require_rows_unmasked(msg)  # the mask would multiply the one term of all rows
        if isinstance(fn, FunctionPrior):
            require_unscaled(msg)
            if not msg["is_observed"]:
                self._require_one_prior(msg, fn)
                require_prior_unmasked(msg)
                self._note_made(msg["name"])
            return self._whiten
        if isinstance(fn, Observation) and (
            is_expanded(fn) or any(process_key(msg["name"], gp) in self.inducing for gp in fn.priors)
        ):
            require_unscaled(msg)
            require_prior_unmasked(msg)
            for prior in fn.priors.values():
                self._require_one_prior(msg, prior)
            self._note_made(*(function_site(msg["name"], gp) for gp in fn.priors))
            return self._expand
        return None

    def _require_one_prior(self, msg: Any, prior: FunctionPrior) -> None:
        """Raise for a prior that Pyro has made for each value of a discrete site: under each value only its own function values have a prior."""
        first = next((each.first_available_dim for each in _PYRO_STACK if isinstance(each, EnumMessenger)), None)
        if first is not None and any(size > 1 for size in prior.batch_shape[: len(prior.batch_shape) + first + 1]):
            raise ValueError(
                f"Pyro sums out {' and '.join(map(repr, sorted(self._discrete)))}, and the function of {msg['name']!r} has another prior under each of the values, so that "
                "under each all but one of its copies have none: sum out in the model, as in MixtureSameFamily, or give each value a process of its own"
            )

    def _note_made(self, *functions: str) -> None:
        """Note the names of the sites that stand for function values in the first run of the model."""
        if self._met is not None:
            self._made |= {name_of(function) for function in functions for name_of in (whitened_site, inducing_site)}

    def meet(self, name: str, fn: Any) -> None:
        """Note the GPs of a site in the first run of the model; see :meth:`end_first_run`."""
        if self._met is None:
            return
        self._met |= gps_of_site(name, fn)

    def end_first_run(self) -> None:
        """Warn of what the sites of the model have in common; raise for a latent site with a name that belongs to function values or their whitened form."""
        if self._met is None:
            return
        functions = {function_site_of(key) for key in self._met}
        taken = sorted(name for name in self._latent - self._made if is_whitened(name) or name in functions)
        if taken:
            raise ValueError(
                f"the latent site {taken[0]!r} has a name that samplers give to function values (f_whitened for those of f, y_f for the function f of an observation y): "
                "give it another name"
            )
        if self._met:
            warn_of_repeated(self._met.items())
            self._met, self._latent, self._made = None, set(), set()

    def require_inputs(self, inputs: Tensor) -> None:
        """Remember the inputs at the first call; raise at a later one that brings others."""
        if self._inputs is None:
            self._inputs = inputs.detach().clone()
        elif self._inputs.shape != inputs.shape or not torch.equal(self._inputs, inputs):
            raise ValueError(
                f"this whitened model was run at {len(self._inputs)} inputs and is now called with others "
                f"({tuple(inputs.shape)}): predict at new inputs with pyro_dgp.predict(PosteriorDraws(...), x), or make a new whitened(model)"
            )


class WhitenedModel:
    """The model that ``NUTS`` samples; see :func:`whitened`. It pickles, as parallel chains need."""

    is_whitened: ClassVar[bool] = True

    def __init__(self, model: Callable[..., Any], inducing: Inputs | None = None) -> None:
        self.model, self.inducing = model, dict(inducing or {})
        self.strategy, self._modules = Whitening(self.inducing), modules_of(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with whitened GP sites."""
        inputs = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        if inputs is not None:
            self.strategy.require_inputs(inputs)
        run = ReparamMessenger(self.strategy)(self.model)
        if is_trained():
            require_own_parameters(*self._modules)
            result = run(*args, **kwargs)
        else:
            # A sampler trains nothing: Pyro's store has no part in it, and networks are as they are in predictions.
            require_none_loaded(*self._modules)
            with module_local_parameters(*self._modules), evaluating(*self._modules):
                result = run(*args, **kwargs)
        self.strategy.end_first_run()
        return result


def without_whitening(model: Any) -> Any:
    """The model inside a whitened model; any other model as it is."""
    return model.model if isinstance(model, WhitenedModel) else model


def whitened(model: Callable[..., Any], inducing: Inputs | None = None) -> WhitenedModel:
    """The model with its GP sites whitened, for ``pyro.infer.MCMC(NUTS(whitened(model)))``.

    >>> import pyro
    >>> from pyro_dgp import RBF, GaussianProcess, whitened
    >>> gp = GaussianProcess(RBF())
    >>> sites = pyro.poutine.trace(whitened(lambda x: pyro.sample("f", gp(x)))).get_trace(torch.zeros(4, 1))
    >>> sites.stochastic_nodes
    ['f_whitened']

    The model itself is not changed. With a Gaussian likelihood the top layer stays integrated out; any other likelihood's
    function values become a whitened site ``y_f_whitened``. Hyperparameters that are ``PyroSample`` are sampled; those that
    have no prior, and the weights of networks, stay at their present values, and the log names them.

    :param inducing: inputs ``(M, D)`` of inducing variables by the name of the GP, ``h`` or ``y/f``, as :func:`inducing_inputs` makes them;
        or a basis, whose coefficients are sampled, as :func:`bases_of` makes it.
        Such a GP is sparse: its inducing variables are sampled (``h_inducing_whitened``), and its function values given them
        are independent over rows (``h_whitened``, their standardised rest; under Gaussian noise those of the last GP are integrated
        out). The cost is linear in the rows; inducing inputs at the data make it exact.
    """
    for module in modules_of(model):
        fixed = [
            name.removesuffix("_unconstrained") for name, value in module.named_parameters() if value.requires_grad
        ]
        if fixed and _told.get(module) != fixed:
            _told[module] = fixed
            logger.warning("MCMC keeps these point estimates at their present values: %s", ", ".join(fixed))
    return WhitenedModel(model, inducing)
