"""Gaussian processes conditioned on what a draw of MCMC holds of them, at the training inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.scales_and_masks import require_as_written
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.sites import require_separate_rows
from pyro_dgp.internal.parameters import evaluating, module_local_parameters, modules_of
from pyro_dgp.internal.rows import num_rows
from pyro_dgp.internal.site_names import function_site, inducing_site, is_inducing, process_key, whitened_site
from pyro_dgp.likelihoods import Observation
from pyro_dgp.mcmc.sparse import Inputs, sparse_process, sparse_values
from pyro_dgp.mcmc.whitening import WhitenedModel, without_whitening
from pyro_dgp.prediction.thinning import equally_spaced
from pyro_dgp.processes import Basis, Process
from pyro_dgp.processes.conditioned import conditioned

#: Values by site.
Draw = Mapping[str, Tensor]


#: The draws that are used, and for each the conditioned process of every Gaussian process, by process key.
Conditions = tuple[list[Draw], list[dict[str, Process]]]

#: Most numbers that the conditioned processes of a fit may have to be kept: 160 MB in double precision.
MOST_KEPT = 20_000_000


def condition_on(
    model: Callable[..., Any],
    draws: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    num_draws: int,
) -> Conditions:
    """Return equally spaced draws, at most ``num_draws``, and for each the conditioned process of every GP, by process key.

    :param model: the model, or ``whitened(model)``, which it has to be if that has inducing inputs.
    :param draws: by site ``(K, ...)``. Empty for a model without latent sites: exact regression, which has one draw.
    :param args: arguments of the model at the training rows, with ``kwargs``.
    :raises ValueError: for draws that do not belong to the training rows, or of inducing variables without their inputs.
    """
    if len({len(values) for values in draws.values()}) > 1:
        sizes = {name: len(values) for name, values in draws.items()}
        raise ValueError(f"there are as many draws of each site, one behind another, got {sizes}: take chains.flat")
    inducing = inducing_inputs_of(model, draws)
    model = without_whitening(model)
    total = len(next(iter(draws.values()))) if draws else 1
    chosen: list[Draw] = [{name: values[i] for name, values in draws.items()} for i in equally_spaced(total, num_draws)]
    scope = modules_of(model)
    processes: list[dict[str, Process]] = []
    with torch.no_grad(), module_local_parameters(*scope), evaluating(*scope):
        for draw in chosen:
            with _Condition(draw, inducing, num_rows(args[0])) as condition:
                model(*args, **kwargs)
            processes.append(condition.processes)
    return chosen, processes


class KeptConditions:
    """The last result of :func:`condition_on` for one fit, used again while nothing that it depends on has changed.

    That is the number of draws, every parameter and buffer of the model, and the draws and arguments. Other changes of a model (another
    kernel, a plain attribute, a value in the global store) are not noticed, so that this is for fits whose model belongs to the fit. At
    most :data:`MOST_KEPT` numbers are kept, and none in a pickle or a copy.
    """

    def __init__(self) -> None:
        self._state: tuple[Any, list[Tensor]] | None = None
        self._result: Conditions = [], []

    def __reduce__(self) -> tuple[type[KeptConditions], tuple[()]]:
        return KeptConditions, ()

    def of(
        self,
        model: Callable[..., Any],
        draws: Mapping[str, Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        num_draws: int,
    ) -> Conditions:
        """Return what :func:`condition_on` returns."""
        given = [value for value in (*draws.values(), *args, *kwargs.values()) if isinstance(value, Tensor)]
        modules = modules_of(without_whitening(model))
        present = [value for module in modules for value in (*module.parameters(), *module.buffers())]
        key = num_draws, [(id(value), value._version) for value in given]
        if self._state is not None and self._state[0] == key and _are_equal(self._state[1], present):
            return self._result
        result = condition_on(model, draws, args, kwargs, num_draws=num_draws)
        size = sum(process.size for processes in result[1] for process in processes.values())
        self._state = (key, [value.detach().clone() for value in present]) if size <= MOST_KEPT else None
        self._result = result if size <= MOST_KEPT else ([], [])
        return result


def _are_equal(before: Sequence[Tensor], now: Sequence[Tensor]) -> bool:
    return len(before) == len(now) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
        for a, b in zip(before, now, strict=True)
    )


class AtDraw(SiteHandler, Messenger):
    """Base of handlers that run a model at the training inputs with the values of one draw."""

    def __init__(self, draw: Draw, inducing: Inputs, rows: int) -> None:
        super().__init__()
        self.draw, self.inducing, self.rows = draw, inducing, rows

    def at_other(self, msg: Message) -> None:
        """Set a latent value; raise for an observation that correlates rows."""
        name, fn = msg["name"], msg["fn"]
        if name in self.draw:
            msg["value"] = _shaped(name, self.draw[name], fn.batch_shape + fn.event_shape)
        elif msg["is_observed"]:
            require_separate_rows(msg, self.rows)
        else:
            raise ValueError(f"the draws hold no value for the latent site {name!r}: they have {list(self.draw)}")

    def set_target(self, msg: Message, observation: Observation) -> None:
        """Set the value of a hidden layer with noise, ``h = sample("h", likelihood(gp(x)))``."""
        if not msg["is_observed"] and msg["name"] in self.draw:
            shape = observation.batch_shape + observation.event_shape
            msg["value"] = _shaped(msg["name"], self.draw[msg["name"]], shape)

    def sparse_values(self, name: str, prior: FunctionPrior, inputs: Tensor | Basis) -> Tensor:
        """The values of a function site whose inducing variables the draw holds."""
        return sparse_values(prior, inputs, self.draw[inducing_site(name)], self.draw[whitened_site(name)])

    def function_values(self, name: str, prior: FunctionPrior) -> Tensor:
        """The values of the function site ``name`` in the draw, plain or whitened."""
        for site in (name, whitened_site(name)):
            if site in self.draw:
                values = _shaped(site, self.draw[site], prior.batch_shape + prior.event_shape)
                return values if site == name else prior.unwhiten(values)
        raise ValueError(
            f"the draws hold neither {name!r} nor {whitened_site(name)!r}, the values of that GP: they have {list(self.draw)}"
        )


class _Condition(AtDraw):
    """Keeps a conditioned process for each GP."""

    def __init__(self, draw: Draw, inducing: Inputs, rows: int) -> None:
        super().__init__(draw, inducing, rows)
        self.processes: dict[str, Process] = {}

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Condition each GP on its inducing variables, its values, or the targets: the first of these that there are."""
        self.set_target(msg, observation)
        noise, y = observation.conditional.noise_variance(), msg["value"]
        for gp, prior in observation.priors.items():
            key, site = process_key(msg["name"], gp), function_site(msg["name"], gp)
            if key in self.inducing:
                self.processes[key] = self._sparse(site, prior, self.inducing[key])
            elif site in self.draw or whitened_site(site) in self.draw:
                self.processes[key] = conditioned(prior, self.function_values(site, prior), None)
            elif noise is not None and y is not None:
                require_as_written(msg)
                if not bool(torch.isfinite(y).all()):
                    raise ValueError(
                        f"the targets of the site {msg['name']!r} hold NaN or infinity: leave such rows out"
                    )
                y = observation.conditional.units(y)
                values = y.unsqueeze(-1) if observation.outputs == 1 else y
                self.processes[key] = conditioned(prior, values, noise)
            elif y is not None:
                raise ValueError(
                    f"exact predictions of {msg['name']!r} need Gaussian noise around each function, as Gaussian() has it, and its likelihood is "
                    f"another: draw {whitened_site(site)!r} by MCMC on whitened(model), or give the model a guide"
                )
            else:
                raise ValueError(
                    f"prediction needs draws of {whitened_site(site)!r}, from MCMC on whitened(model), or, under Gaussian noise, y_train"
                )

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Condition the GP on its inducing variables or its values, and set the values."""
        name = msg["name"]
        if name in self.inducing:
            self.processes[name] = self._sparse(name, prior, self.inducing[name])
            msg["value"] = self.sparse_values(name, prior, self.inducing[name])
            return
        if not msg["is_observed"]:
            msg["value"] = self.function_values(name, prior)
        self.processes[name] = conditioned(prior, msg["value"], None)

    def _sparse(self, name: str, prior: FunctionPrior, inputs: Tensor | Basis) -> Process:
        """The GP of the function site ``name``, conditioned on its inducing variables."""
        site = inducing_site(name)
        if site not in self.draw:
            raise ValueError(f"the draws do not hold {site!r}, the inducing variables: they have {list(self.draw)}")
        return sparse_process(prior, inputs, self.draw[site])


def inducing_inputs_of(model: Any, draws: Mapping[str, Tensor]) -> Inputs:
    """The inducing inputs of a whitened model; raises if there are none and the draws hold inducing variables."""
    inducing: Inputs = model.inducing if isinstance(model, WhitenedModel) else {}
    sparse = [name for name in draws if is_inducing(name)]
    if sparse and not inducing:
        raise ValueError(
            f"the draws hold {sparse[0]!r}, inducing variables: give the whitened(model, inducing_inputs(...)) that was sampled, not the "
            "model alone"
        )
    return inducing


def _shaped(name: str, value: Tensor, shape: Size) -> Tensor:
    """One draw of a site in the shape that the model has it in at the training inputs."""
    if value.numel() != shape.numel():
        raise ValueError(
            f"one draw of {name!r} has shape {tuple(value.shape)} and the model wants {tuple(shape)} at these training inputs: give the "
            "rows that were sampled with, and draws of several chains one behind another (chains.flat)"
        )
    return value.reshape(shape)
