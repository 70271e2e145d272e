"""Sentences on how a fit went: what a user should know before the predictions are used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior, GaussianProcess
from pyro_dgp.guides.guide_pass import SiteRecord
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.parameters import evaluating, module_local_parameters
from pyro_dgp.internal.rows import Call, RowArguments
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.likelihoods import Gaussian, Observation
from pyro_dgp.prediction.predict import predict
from pyro_dgp.processes import WhitenedProcess

#: Training rows that are looked at, at most.
MOST_ROWS = 500
#: Share of the variance of the targets below which a fit explains nothing. Of N rows M inducing points explain some M / N by chance: twice
#: that share is nothing too, if it is not above the second number.
EXPLAINED, BY_CHANCE = 0.02, 0.1
#: Spread of a hidden layer below which it is flat, and share of its spread below which it is its mean.
FLAT = 0.01
#: Change of the logarithm of a lengthscale, or of what stands in its place, below which it stands still.
UNMOVED = 0.02
#: Shortest run, in steps, whose end tells anything.
SHORTEST = 100
#: Fall of the loss over a tenth of the steps, before the learning rate falls, that counts as still improving: nats a row.
STILL_FALLING = 0.02

Lengthscales = dict[str, Tensor]


def lengthscales_of(model: nn.Module) -> Lengthscales:
    """Return the unconstrained lengthscales of every Gaussian process of a model, by name of the parameter."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, GaussianProcess):
            for own, value in module.kernel.named_parameters():
                if own.split(".")[-1] == "lengthscale_unconstrained" and value.requires_grad:
                    found[f"{name}.kernel.{own}".removesuffix("_unconstrained").lstrip(".")] = value.detach().clone()
    return found


@torch.no_grad()
def remarks(
    guide: Variational,
    x: Tensor,
    y: Tensor,
    *,
    losses: Sequence[float] = (),
    start: Mapping[str, Tensor] | None = None,
    site: str | None = None,
    **arguments: Any,
) -> list[str]:
    """Return sentences on how the fit of a guide went; none where nothing was found.

    Looked for, at 500 training rows at most: a fit that explains nothing of the targets, a noise variance at its floor or at the variance
    of the targets, hidden layers that are flat or no more than their mean, inputs of a layer outside of the interval of its Fourier
    features, lengthscales that stand where they began, a loss that was still falling when the run stopped.

    :param guide: a trained guide.
    :param x: training inputs ``(N, D)``.
    :param y: their targets.
    :param losses: minus the objective at each step, nats a row, as :class:`~pyro_dgp.FitResult` holds them.
    :param start: :func:`lengthscales_of` the model before training.
    :param site: the observation that ``y`` belongs to, if the model has several.
    :param arguments: further arguments of the model, as in training.

    >>> import torch
    >>> from pyro_dgp import ELBO, DeepGP, InducingPoints, Variational, fit, remarks
    >>> x = torch.linspace(-1, 1, 200)[:, None]
    >>> y = torch.randn(200)  # nothing to be found
    >>> guide = Variational(DeepGP(x, layers=1), InducingPoints(10))
    >>> guide.initialize(x, y)
    >>> result = fit(ELBO(200)(guide.model, guide), x, y, steps=200)
    >>> remarks(guide, x, y)[0][:40]
    'the fit explains nothing of the targets '
    """
    (x_seen, y_seen), named = _some_rows(guide, x, y, arguments)
    modules: list[nn.Module] = [guide, *guide.model_modules]
    with torch.random.fork_rng(), module_local_parameters(*modules), evaluating(*modules):
        torch.manual_seed(0)
        found = [
            *_on_targets(guide, x_seen, y_seen, rows=x.shape[-2], site=site, arguments=named),
            *_on_noise(modules),
            *_on_layers(guide, trace := guide.components(x_seen, new_rows=True, **named).trace),
            *_on_features(guide, trace),
        ]
    found += [sentence for module in modules[1:] for sentence in _on_lengthscales(module, start or {}, len(losses))]
    return found + list(_on_the_loss(losses))


def _some_rows(guide: Variational, x: Tensor, y: Tensor, arguments: Mapping[str, Any]) -> Call:
    """Return equally spaced rows, at most :data:`MOST_ROWS`."""
    number = torch.linspace(0, x.shape[-2] - 1, min(MOST_ROWS, x.shape[-2]), device=x.device).long()
    return RowArguments((x, y), arguments, groups=guide.groups)[number]


@torch.no_grad()
def explains_nothing(guide: Variational, x: Tensor, y: Tensor, *, site: str | None = None, **arguments: Any) -> bool:
    """Tell whether a fit is no closer to the targets at its training rows than their mean."""
    (x_seen, y_seen), named = _some_rows(guide, x, y, arguments)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        left = _share_left(guide, x_seen, y_seen, site, named)
    return left is not None and left > _most_left(guide, x.shape[-2])


def _share_left(
    guide: Variational, x: Tensor, y: Tensor, site: str | None, arguments: Mapping[str, Any]
) -> float | None:
    """Return the share of the variance of the targets that a fit leaves; nothing for classes."""
    if not y.is_floating_point():
        return None
    try:
        mean = predict(guide, x, site=site, **arguments).mean
    except (ValueError, NotImplementedError):
        return None  # classes, and distributions without a mean
    return float((y - mean).square().mean() / y.var(correction=0).clamp_min(torch.finfo(y.dtype).tiny))


def _most_left(guide: Variational, rows: int) -> float:
    sizes = [process.basis.size for process in guide.processes.children() if isinstance(process, WhitenedProcess)]
    return 1 - max(EXPLAINED, min(BY_CHANCE, 2 * max(sizes, default=10) / rows))


def _on_targets(
    guide: Variational, x: Tensor, y: Tensor, *, rows: int, site: str | None, arguments: Mapping[str, Any]
) -> Iterator[str]:
    left = _share_left(guide, x, y, site, arguments)
    if left is not None and left > _most_left(guide, rows):
        yield (
            f"the fit explains nothing of the targets at its training rows (root mean square error {math.sqrt(left):.2f} of their standard "
            "deviation): if there is something to be found, train longer or at another learning rate, start from a fit of one layer, or "
            "leave out inputs that do not matter"
        )


def _on_noise(modules: Sequence[nn.Module]) -> Iterator[str]:
    for name, module in (pair for each in modules[1:] for pair in each.named_modules()):
        if not isinstance(module, Gaussian) or "variance" not in module._pyro_params:
            continue
        constraint: Any = module._pyro_params["variance"][0]
        floor = constraint.lower_bound if isinstance(constraint, constraints.greater_than) else 0.0
        least = float(torch.as_tensor(module.variance).min())
        if least < 1.1 * floor:
            yield (
                f"the noise variance of {name or 'the likelihood'} is at its floor, {floor:g}: the targets have next to no noise (then lower "
                "the floor, Gaussian(floor=...)), or the fit runs through every one of them"
            )


def _on_layers(guide: Variational, trace: Trace) -> Iterator[str]:
    for name in list(guide.processes._modules)[:-1]:
        record = SiteRecord.of(trace.nodes[name]) if name in trace.nodes else None
        if record is None or record.marginal is None or not isinstance(record.prior, FunctionPrior):
            continue
        value, mean = (
            each.flatten(0, -3).mean(0) if each.dim() > 2 else each
            for each in (record.marginal.mean, record.prior.mean)
        )
        spread, own = float(value.std(0).max()), float((value - mean).std(0).max())
        if spread < FLAT:
            yield f"the hidden layer {name!r} is flat (it moves by {spread:.1g} over the rows), so that nothing passes it: give it a linear mean"
        elif own < FLAT * max(spread, 1e-12):
            yield (
                f"the hidden layer {name!r} is no more than its mean function, so that the model is as good as one layer less: train longer, or "
                "take fewer layers"
            )


def _on_features(guide: Variational, trace: Trace) -> Iterator[str]:
    """Ask the basis of each process about the inputs of its Gaussian process."""
    for name, site in trace.nodes.items():
        record = SiteRecord.of(site) if "infer" in site else None
        prior = None if record is None else record.prior
        if isinstance(prior, Observation):
            priors = {process_key(name, own): each for own, each in prior.priors.items()}
        else:
            priors = {name: prior} if isinstance(prior, FunctionPrior) else {}
        for key, each in priors.items():
            process = getattr(guide.processes, key, None)
            if isinstance(process, WhitenedProcess):
                yield from process.basis.remarks(each)


def _on_lengthscales(model: nn.Module, start: Mapping[str, Tensor], steps: int) -> Iterator[str]:
    if steps < SHORTEST:
        return
    for name, value in lengthscales_of(model).items():
        if name in start and float((value - start[name]).abs().max()) < UNMOVED:
            yield f"{name} stands where it began after {steps} steps: the data say nothing about it, or no gradient reaches it"


def _on_the_loss(losses: Sequence[float]) -> Iterator[str]:
    """Compare the last two tenths of the steps before the learning rate falls."""
    tenth = len(losses) // 10
    if len(losses) < SHORTEST:
        return
    values = torch.tensor(losses[4 * tenth : 6 * tenth], dtype=torch.float64)
    before, after = values[:tenth], values[tenth:]
    fall = float(before.mean() - after.mean())
    error = float(((before.var() + after.var()) / tenth).sqrt())
    if fall > STILL_FALLING and fall > 3 * error:
        yield (
            f"the loss was still falling, by {fall:.2g} nats a row in a tenth of the {len(losses)} steps, when the learning rate began to fall: "
            "train longer"
        )


class Trained:
    """A guide and what it is trained on, from before its training.

    :param guide: the guide, with the parameters from which it starts.
    :param data: x and y.
    :param arguments: further arguments of the model.
    """

    def __init__(self, guide: Variational, data: tuple[Tensor, Tensor], arguments: Mapping[str, Any]) -> None:
        self.guide, self.data, self.arguments = guide, data, dict(arguments)
        self.start = {name: v for model in guide.model_modules for name, v in lengthscales_of(model).items()}

    def seen(self) -> Call:
        """Return the rows that are looked at, and the arguments that go with them."""
        return _some_rows(self.guide, *self.data, self.arguments)

    def remarks(self, losses: Sequence[float], site: str | None = None) -> list[str]:
        """Return what :func:`remarks` finds."""
        x, y = self.data
        return remarks(self.guide, x, y, losses=losses, start=self.start, site=site, **self.arguments)
