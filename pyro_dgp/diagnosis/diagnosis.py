"""Diagnosis of a fit: every check that suits it, and the pages on what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyro_dgp.diagnosis import guide_checks  # noqa: F401  # registers guides
from pyro_dgp.diagnosis.loss_checks import still_falling
from pyro_dgp.diagnosis.subject import Rows, subject_of
from pyro_dgp.diagnosis.symptoms import Finding


@dataclass(frozen=True)
class Diagnosis:
    """The findings of :func:`diagnose`, in the order of the checks. A finding that explains others stands first. A sound fit has none.

    ``print`` shows a sentence for each, with the name of the page that explains it.

    :ivar findings: each with ``symptom``, ``seen``, ``remedy`` and ``page``.
    :ivar checks: number of checks that were run.

    >>> from pyro_dgp import Diagnosis
    >>> print(Diagnosis((), checks=9))
    nothing found in 9 checks
    """

    findings: tuple[Finding, ...]
    checks: int

    @property
    def pages(self) -> tuple[str, ...]:
        """Pages of what was found, each once."""
        return tuple(dict.fromkeys(finding.page for finding in self.findings))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or f"nothing found in {self.checks} checks"


def diagnose(
    fit: Any, x: Any, y: Any, *, losses: Sequence[float] | None = None, site: str | None = None, **arguments: Any
) -> Diagnosis:
    """Look for the symptoms of ``docs/pitfalls`` in a fit.

    Looked for, at 500 rows at most: flat hidden layers, collapsed noise, exploding predictive losses, divergences, mirror images among
    chains, inputs that their precision rounds, amortised extrapolation, targets that are not scaled, inducing points that coincide; also
    fits that explain nothing, training that stopped too early, and chains that have not converged. Checks that do not suit the fit are left out: a guide has no chains to look at.

    :param fit: a trained guide; the chains of :func:`~pyro_dgp.run_chains`, or :class:`~pyro_dgp.PosteriorDraws`, which know no chains and
        no divergences; or a method's fit of :func:`~pyro_dgp.compare`, ``result["dsvi"]``, with rows in their own units.
    :param x: inputs ``(N, D)`` of the rows that the fit is judged at: those of training. Rows that were held out, and rows
        from where the fit is to be used, show more of predictive losses and of amortised guides.
    :param y: their targets.
    :param losses: those of the training run, ``result.losses`` of :func:`~pyro_dgp.fit`, which tell whether it stopped too early.
    :param site: the observation that ``y`` belongs to, if the model has several.
    :param arguments: further arguments of the model, as in training.
    :raises ValueError: for inputs that are no rows, targets of another shape than predictions, and a site that the model does not have.

    >>> import torch
    >>> from pyro_dgp import ELBO, DeepGP, InducingPoints, Variational, diagnose, fit
    >>> x = torch.linspace(-1, 1, 100)[:, None]
    >>> y = torch.sin(4 * x[:, 0]) + 0.2 * torch.randn(100)
    >>> guide = Variational(DeepGP(x, layers=1), InducingPoints(10))
    >>> guide.initialize(x, y)
    >>> result = fit(ELBO(100)(guide.model, guide), x, y, steps=1000, learning_rate=0.05)
    >>> print(diagnose(guide, x, y, losses=result.losses))
    nothing found in 10 checks
    """
    subject = subject_of(fit, Rows(x, y, site, arguments))
    subject.require_targets()
    if losses is None or len(losses) == 0:
        return Diagnosis(tuple(subject.findings()), len(subject.checks))
    return Diagnosis((*subject.findings(), *still_falling(losses)), len(subject.checks) + 1)
