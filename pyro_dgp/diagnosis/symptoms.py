"""The one table of symptoms: what is said of each, the remedy, and the page that explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Symptom:
    """Words for one symptom.

    :ivar seen: what was seen, with places for figures in braces.
    :ivar remedy: what to do.
    :ivar page: page of the documents.
    """

    seen: str
    remedy: str
    page: str = "docs/pitfalls.md"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One symptom of one fit.

    :ivar symptom: its name in :data:`SYMPTOMS`.
    :ivar seen: what was seen, with figures.
    :ivar remedy: what to do.
    :ivar page: page of the documents that explains it.
    """

    symptom: str
    seen: str
    remedy: str
    page: str

    @property
    def sentence(self) -> str:
        """Return what was seen and the remedy, as one sentence."""
        return f"{self.seen}: {self.remedy}" if self.remedy else self.seen

    def __str__(self) -> str:
        return f"{self.sentence} ({self.page})"


#: A symptom that others follow from, and those that nothing can be said of before it is mended: both compare with the scale of the targets.
CAUSE, CONSEQUENCES = "unscaled targets", ("collapsed noise", "exploding predictive loss")


def causes_first(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with the cause of others in front, and without those that it makes meaningless."""
    causes = [finding for finding in findings if finding.symptom == CAUSE]
    if not causes:
        return list(findings)
    return [*causes, *(each for each in findings if each.symptom not in (CAUSE, *CONSEQUENCES))]


def found(symptom: str, **figures: object) -> Finding:
    """Make the finding of a symptom from its figures."""
    words = SYMPTOMS[symptom]
    return Finding(
        symptom=symptom, seen=words.seen.format(**figures), remedy=words.remedy.format(**figures), page=words.page
    )


_PAGES = "docs/pitfalls/"

#: Every symptom by name. The first nine have a page each.
SYMPTOMS = {
    "flat hidden layer": Symptom(
        "the hidden layer {name!r} is flat (it moves by {spread:.1g} over the rows), so that nothing passes it",
        "give it a linear mean",
        _PAGES + "flat-hidden-layers.md",
    ),
    "collapsed noise": Symptom(
        "the noise variance of {name} is {at}, and predictions are as narrow",
        "if the targets have next to no noise, lower the floor, Gaussian(floor=...); else the fit runs through every one of them, and needs more "
        "rows, fewer inducing points, or a noise variance that is learned",
        _PAGES + "collapsed-noise.md",
    ),
    "exploding predictive loss": Symptom(
        "{what}",
        "unless the function bends as much from row to row, the fit is too sure at those that it was trained on; train by the ELBO if it was another loss, or by fit_validated with a "
        "fallback, a larger beta, or fewer inducing points",
        _PAGES + "exploding-predictive-losses.md",
    ),
    "divergences": Symptom(
        "{divergences} of its {transitions} transitions diverged",
        "its draws may miss parts of the posterior; warm up longer, raise target_accept_prob, start at Ascent(), or take a slice sampler",
        _PAGES + "divergences.md",
    ),
    "frozen chains": Symptom(
        "the steps of a chain have fallen to {step:.1g}, so that it moves by {path:.1g} in a draw, where functions and unconstrained hyperparameters move by "
        "about one",
        "give the model and the data in float64; or the density is too rough for gradients, and a slice sampler may do better",
        _PAGES + "divergences.md",
    ),
    "mirror images": Symptom(
        "R-hat of the hidden function {name!r} is {before:.2f}, and {after:.2f} once the chains are brought to one sign: they sit in mirror images "
        "of each other, which predict alike",
        "judge predictions instead of hidden functions, and give the layer a linear mean if you want to read it",
        _PAGES + "mirror-images.md",
    ),
    "coarse inputs": Symptom(
        "{dtype} rounds {what} to steps of {step:.2g}, and {unit} is {size:.2g}",
        "subtract the smallest input and convert to float64 before the first operation in {dtype}",
        _PAGES + "float32-long-ranges.md",
    ),
    "amortised extrapolation": Symptom(
        "{share:.0%} of the rows lie more than {far:g} standard deviations from their prediction, and these rows lie farther out than the others: "
        "an amortised guide does not return to the prior",
        "use InducingPoints where you extrapolate",
        _PAGES + "amortised-extrapolation.md",
    ),
    "unscaled targets": Symptom(
        "{target} has mean {mean:.3g} and standard deviation {scale:.3g} beside the mean function, and the prior is made for "
        "0 and 1",
        "mend this first, other symptoms may follow from it; standardise by Standardizer.fit(x, y), which the model carries, as in DeepGP(x, standardizer=...)",
        _PAGES + "unscaled-targets.md",
    ),
    "coinciding points": Symptom(
        "{count} of the {size} inducing points of {name!r} coincide with others, so that they add nothing",
        "start them at distinct inputs, as guide.initialize does, or take {left}",
        _PAGES + "coinciding-points.md",
    ),
    "explains nothing": Symptom(
        "the fit explains nothing of {targets} at its training rows (root mean square error {error:.2f} of their standard deviation)",
        "there may be nothing to be found in these inputs; before you believe it, train longer or at another learning rate, start from a fit of one layer, or "
        "leave out inputs that do not matter",
    ),
    "no better than a constant": Symptom(
        "its log marginal likelihood is {ahead:.1f} nats in total above that of a normal that looks at no input, which its {count} hyperparameters may gain "
        "by chance",
        "there may be nothing to be found in these inputs, or too few rows to find it; leave out inputs that do not matter, bring more rows, or train longer",
    ),
    "worse than a constant": Symptom(
        "its log marginal likelihood, {own:.1f} nats in total, is below that of a normal that looks at no input, {constant:.1f}",
        "standardise the targets if they are not, as by Standardizer.fit(x, y), or train longer",
    ),
    "idle hidden layer": Symptom(
        "the hidden layer {name!r} is no more than its mean function, so that the model is as good as one layer less",
        "train longer, or take fewer layers",
        _PAGES + "flat-hidden-layers.md",
    ),
    "basis": Symptom("{sentence}", "", "docs/how-to/features.md"),
    "lengthscale unmoved": Symptom(
        "{name} stands where it began after {steps} steps",
        "the data say nothing about it, or no gradient reaches it",
    ),
    "few steps": Symptom(
        "this run had no more than {steps}, too few to tell whether its end was reached", "train longer"
    ),
    "loss still falling": Symptom(
        "the loss was still falling, by {fall:.2g} nats a row in a {part} of the {steps} steps, when the learning rate began to fall",
        "train longer",
    ),
    "loss falling at the end": Symptom(
        "the loss was still falling, by {fall:.2g} nats a row in the last {part}",
        "allow more steps",
    ),
    "overfitted": Symptom(
        "it scores {training:.2f} nats a row at its training rows and {held_out:.2f} at those held out, so that it has overfitted",
        "fewer inducing points, one layer, or a larger beta where the loss has one, may do better",
        _PAGES + "exploding-predictive-losses.md",
    ),
    "not converged": Symptom(
        "its largest R-hat is {r_hat:.2f}",
        "not converged; take more draws, a longer warm-up or more chains (num_samples, warmup_steps, num_chains; --mcmc-samples, --warmup, --chains in the shell)",
        "docs/how-to/samplers.md",
    ),
    "no R-hat": Symptom(
        "it has no R-hat", "too few draws, or some quantity never moved or is NaN", "docs/how-to/samplers.md"
    ),
}
