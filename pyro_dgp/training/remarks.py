"""Sentences on how a fit went: what a user should know before the predictions are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.diagnosis.guide_checks import GuideSubject, idle_layers
from pyro_dgp.diagnosis.loss_checks import SHORTEST, still_falling
from pyro_dgp.diagnosis.prediction_checks import are_all_of_no_use, shares_left
from pyro_dgp.diagnosis.subject import Rows
from pyro_dgp.diagnosis.symptoms import Finding, found
from pyro_dgp.gp import GaussianProcess
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.rows import Call

#: Symptom of a loss that trains the density of the targets.
EXPLODING = "exploding predictive loss"
#: Change of the logarithm of a lengthscale, or of what stands in its place, below which it stands still.
UNMOVED = 0.02

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

    They are those of :func:`~pyro_dgp.diagnose`, one of hidden layers that are no more than their mean, which is no failure, and two of the
    training run: lengthscales that stand where they began, and a loss that was still falling when the run stopped.

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
    trained = Trained(guide, (x, y), arguments)
    trained.start = dict(start or {})
    return trained.remarks(losses, site)


@torch.no_grad()
def explains_nothing(guide: Variational, x: Tensor, y: Tensor, *, site: str | None = None, **arguments: Any) -> bool:
    """Tell whether a fit is no closer to the targets at its training rows than their mean, in every output."""
    subject = GuideSubject(guide, Rows(x, y, site, arguments))
    with subject.scope():
        left = shares_left(subject)
        return left is not None and are_all_of_no_use(subject, left)


def _on_lengthscales(model: nn.Module, start: Mapping[str, Tensor], steps: int) -> Iterator[Finding]:
    if steps < SHORTEST:
        return
    for name, value in lengthscales_of(model).items():
        if name in start and float((value - start[name]).abs().max()) < UNMOVED:
            yield found("lengthscale unmoved", name=name, steps=steps)


class Trained:
    """A guide and what it is trained on, from before its training.

    :param guide: the guide, with the parameters from which it starts.
    :param data: x and y.
    :param arguments: further arguments of the model.
    :param on_losses: what is found of the losses.
    :param may_explode: whether it may be trained by a loss that makes it far too sure at these rows; others are not asked for that.
    """

    def __init__(
        self,
        guide: Variational,
        data: tuple[Tensor, Tensor],
        arguments: Mapping[str, Any],
        *,
        on_losses: Callable[[Sequence[float]], Iterable[Finding]] = still_falling,
        may_explode: bool = True,
    ) -> None:
        self.guide, self.data, self.arguments, self.may_explode = guide, data, dict(arguments), may_explode
        self.on_losses = on_losses
        self.start = {name: v for model in guide.model_modules for name, v in lengthscales_of(model).items()}

    def seen(self) -> Call:
        """Return the rows that are looked at, and the arguments that go with them."""
        return Rows(*self.data, arguments=self.arguments).some(self.guide.groups)

    @torch.no_grad()
    def findings(self, losses: Sequence[float] = (), site: str | None = None) -> list[Finding]:
        """Return what is found of the fit and of its training run."""
        guide = self.guide
        subject = GuideSubject(guide, Rows(*self.data, site, self.arguments))
        findings = subject.findings()
        with subject.scope():
            findings += idle_layers(subject)
        findings += [each for model in guide.model_modules for each in _on_lengthscales(model, self.start, len(losses))]
        kept = [each for each in findings if self.may_explode or each.symptom != EXPLODING]
        return [*kept, *self.on_losses(losses)]

    def remarks(self, losses: Sequence[float], site: str | None = None) -> list[str]:
        """Return what :func:`remarks` does."""
        return [finding.sentence for finding in self.findings(losses, site)]
