"""Type-II maximum likelihood of a model without latent sites."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.hidden_draws import require_no_hidden_draws
from pyro_dgp.guides.scales_and_masks import require_as_written, require_scaled_subsamples
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.sites import gps_of_site, is_observation, require_exact, warn_of_repeated
from pyro_dgp.internal.one_thread import one_thread
from pyro_dgp.internal.parameters import check_parameters_found, modules_of, require_own_parameters
from pyro_dgp.internal.rows import num_rows
from pyro_dgp.internal.training_step import require_weight_of_all_rows
from pyro_dgp.internal.whole_numbers import whole_number
from pyro_dgp.likelihoods import Observation


class _SomeTerms(SiteHandler, Messenger):
    """Puts estimates from some terms in the place of the densities of observed sites."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Take some terms of each GP of an observation."""
        if not msg["is_observed"]:
            return
        priors = {name: prior.some_terms(self.count) for name, prior in observation.priors.items()}
        msg["fn"] = Observation(observation.conditional, priors, observation.outputs)

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Take some terms of observed function values."""
        if msg["is_observed"]:
            msg["fn"] = prior.some_terms(self.count)


class MarginalLikelihood(torch.nn.Module):
    """The loss ``-log p(y)`` of a model whose sites are all observed: exact GP regression, nats in total.

    It is a ``torch.nn.Module``, as ``loss(model, guide)`` of the other losses is, but has no guide. It is called on all
    data at once: the likelihood of some rows is no part of that of all. That of a Vecchia approximation is a product of terms, one for
    each row given its neighbours. With ``terms`` each call takes so many of them at random, and returns minus N / terms times the sum of their logarithms. The mean of
    this over draws of the terms is the loss of all of them.

    :cvar needs_all_rows: tells :func:`~pyro_dgp.fit` that a step has all rows.

    >>> import torch
    >>> from pyro_dgp import DeepGP, MarginalLikelihood, fit
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> result = fit(MarginalLikelihood(DeepGP(x, layers=1)), x, y, steps=20)
    >>> result.losses[-1] < result.losses[0]
    True

    :param terms: terms of each call, for ``vecchia(model)``; all if not given.
    """

    needs_all_rows: ClassVar[bool] = True

    def __init__(self, model: Callable[..., Any], *, terms: int | None = None) -> None:
        super().__init__()
        self.model, self.terms = model, None if terms is None else whole_number("terms", terms, 1)
        self._is_checked = False
        self.model_modules = torch.nn.ModuleList([] if isinstance(model, torch.nn.Module) else modules_of(model))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return minus the log marginal likelihood.

        :raises ValueError: for a model with latent sites, or one that could not be predicted from its data in closed form.
        """
        require_weight_of_all_rows(type(self).__name__, (args, kwargs), None, takes_num_data=False)
        with one_thread:
            require_own_parameters(*modules_of(self.model))
            with nullcontext() if self.terms is None else _SomeTerms(self.terms):
                trace = poutine.trace(self.model).get_trace(*args, **kwargs)
        if not self._is_checked:
            check_parameters_found(trace, modules_of(self.model))
            require_scaled_subsamples(trace)
            require_no_hidden_draws(self.model, (args, kwargs), modules=modules_of(self.model))
            warn_of_repeated(gp for name, site in trace.nodes.items() for gp in gps_of_site(name, site.get("fn")))
            self._is_checked = True
        for site in trace.nodes.values():
            if site["type"] == "sample" and is_observation(site):
                require_as_written(site)
        latent = [name for name in trace.stochastic_nodes if not site_is_subsample(trace.nodes[name])]
        forgotten = [name for name in latent if isinstance(trace.nodes[name]["fn"], Observation)]
        if forgotten:
            raise ValueError(
                f"the site {forgotten[0]!r} is not observed: pass its values to the loss, as in loss(x, y)"
            )
        if latent:
            raise ValueError(
                f"the marginal likelihood is exact for one layer only, and this model has latent sites {latent}: "
                "give it a guide and another loss, such as ELBO"
            )
        if not trace.observation_nodes:
            raise ValueError("nothing is observed: pass y to the loss, as in loss(x, y)")
        loss: Tensor = -trace.log_prob_sum()
        rows = num_rows(next((value for value in args if isinstance(value, Tensor)), torch.zeros(1)))
        for name in trace.observation_nodes:
            require_exact(trace.nodes[name], rows)
        return loss
