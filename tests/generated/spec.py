"""A random small program, as choices by name: its line of a table says what was run, and its number makes it again."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

KERNELS = (
    "rbf",
    "matern12",
    "matern32",
    "matern52",
    "rational quadratic",
    "periodic",
    "linear",
    "arc-cosine 0",
    "arc-cosine 1",
    "arc-cosine 2",
    "spherical",
    "function",
    "gpytorch",
    "pyro contrib",
)
#: Means that a hidden layer has.
LAYER_MEANS = ("linear", "projection")
MEANS = ("zero", "constant", "linear", "projection", "function", "network")
REAL = ("gaussian", "student", "heteroscedastic", "two functions", "coregionalization", "missing")
LIKELIHOODS = (*REAL, "probit", "logit", "robust max", "softmax", "ordinal", "poisson", "negative binomial")
FAMILIES = (
    "points full",
    "points diagonal",
    "points delta",
    "points prior",
    "points of outputs",
    "amortised",
    "one network",
    "fourier",
    "spherical",
    "activations",
    "published activations",
    "orthogonal",
)
PROPAGATIONS = ("samples", "qr1", "qr2", "qr3", "gauss-hermite", "with mean", "moments")
LOSSES = ("elbo", "predictive", "gamma", "ep")
#: How often a way to fit is drawn.
WAYS = {"guide": 74, "exact": 6, "collapsed": 3, "slices": 5, "nuts": 5, "sparse nuts": 3, "sghmc": 4}
INPUTS = ("plain", "plain", "plain", "plain", "duplicates", "equal rows", "constant column", "grid", "outlier")
TARGETS = ("plain", "plain", "plain", "plain", "plain", "constant", "outlier", "tied")


@dataclass(frozen=True)
class Spec:
    """The choices of one program.

    :ivar seed: of all that is drawn at random in it.
    :ivar batch: axes of data sets in front of the rows.
    :ivar ambient: PyTorch's default dtype, which need not be that of the data.
    :ivar x_scale, x_offset, y_scale, y_offset: units of inputs and targets.
    :ivar is_standardized: whether the model has a Standardizer.
    :ivar kernels: an expression for each layer.
    :ivar has_two_sites: whether function values are a site of their own.
    :ivar has_prior: whether hyperparameters have priors.
    """

    seed: int
    way: str
    rows: int
    inputs: int
    outputs: int
    batch: tuple[int, ...]
    dtype: str
    ambient: str
    x_pattern: str
    y_pattern: str
    x_scale: float
    x_offset: float
    y_scale: float
    y_offset: float
    is_standardized: bool
    kernels: tuple[str, ...]
    ard: bool
    per_output: bool
    mean: str
    likelihood: str
    family: str
    size: int
    propagation: str
    samples: int
    loss: str
    layers: int
    width: int
    batch_size: int
    new: int
    has_skip: bool
    has_two_sites: bool
    has_prior: bool

    @property
    def is_real(self) -> bool:
        """Whether targets are real numbers."""
        return self.likelihood in REAL

    @property
    def has_bounded_powers(self) -> bool:
        """Whether the gamma divergence knows the integral of its density to a power."""
        return self.likelihood not in ("poisson", "negative binomial", "heteroscedastic", "two functions")

    @property
    def is_ordinary(self) -> bool:
        """Whether nothing about the numbers makes rounding large."""
        one = (self.x_scale, self.x_offset, self.y_scale, self.y_offset) == (1.0, 0.0, 1.0, 0.0)
        return (one or self.is_standardized) and self.x_pattern == "plain" and self.y_pattern == "plain"

    @property
    def is_deterministic(self) -> bool:
        """Whether the prediction of a row has no draws in it."""
        if self.has_two_sites or (self.has_prior and self.way == "guide"):
            return False
        drawn = self.way != "guide" or self.propagation in ("samples", "with mean")
        return self.layers == 1 or not drawn


def expression(random: random.Random, family: str, propagation: str, depth: int) -> str:
    """A kernel as an expression: mostly one that the family and the propagation serve."""
    if random.random() < 0.85:
        if family == "fourier":
            return random.choice(("additive", "additive with constant", "additive 12"))
        if family in ("spherical", "activations", "published activations"):
            return random.choice(("arc-cosine 1", "spherical", "arc-cosine 0", "arc-cosine 2"))
        if propagation == "moments":
            return random.choice(("rbf", "rbf with white"))
    if depth and random.random() < 0.35:
        form = random.choice(("sum", "product", "scaled", "some inputs", "with white", "with constant"))
        part = expression(random, "", "", depth - 1)
        if form in ("sum", "product"):
            return f"{form}({part}, {expression(random, '', '', depth - 1)})"
        return f"{form}({part})"
    return random.choice(KERNELS)


def magnitude(random: random.Random) -> float:
    """A scale, mostly one."""
    return 1.0 if random.random() < 0.5 else 10.0 ** random.choice((-6, -3, -1, 1, 3, 6))


def offset(random: random.Random) -> float:
    """An offset, mostly zero."""
    return 0.0 if random.random() < 0.6 else random.choice((-1, 1)) * 10.0 ** random.choice((0, 2, 4, 6))


def served(r: random.Random, spec: Spec) -> Spec:
    """Draw most choices that are known to be refused again, so that most cases run."""
    instead: dict[str, Any] = {}
    if spec.is_standardized:
        instead |= {"x_pattern": r.choice(("plain", "duplicates", "outlier")), "rows": max(2, spec.rows)}
        instead |= {"y_pattern": r.choice(("plain", "outlier"))} if spec.is_real else {}
    if spec.propagation == "gauss-hermite" and spec.layers > 1:
        instead |= {"layers": 2, "width": 1, "kernels": spec.kernels[-2:], "has_two_sites": False}
    if spec.propagation == "moments":
        instead |= {"has_two_sites": False}
        instead |= {} if spec.family.startswith("points") or spec.layers == 1 else {"family": "points full"}
        instead |= {} if spec.mean in LAYER_MEANS or spec.layers == 1 else {"mean": "zero"}
    family = instead.get("family", spec.family)
    if family in ("amortised", "one network"):
        instead |= {"batch": ()} | ({"loss": "elbo"} if spec.loss == "ep" else {})
    if spec.loss == "gamma" and not spec.has_bounded_powers:
        instead |= {"loss": "elbo"}
    if spec.way in ("collapsed", "sparse nuts"):
        instead |= {"batch": ()}
    if spec.way == "collapsed":
        instead |= {"outputs": 1, "mean": "zero", "is_standardized": False, "has_prior": False, "has_two_sites": False}
    if spec.way == "exact":
        instead |= {"has_two_sites": False}
    if spec.likelihood == "coregionalization":
        instead |= {"outputs": max(2, spec.outputs)}
    if spec.is_standardized and spec.inputs > 1 and instead.get("x_pattern", spec.x_pattern) == "duplicates":
        instead |= {"rows": max(3, spec.rows)}
    if spec.family == "points delta" and spec.loss == "ep":
        instead |= {"loss": "elbo"}
    if spec.propagation == "moments" and spec.layers > 1:
        instead |= {"batch": ()}
    return replace(spec, **instead)


def drawn(seed: int, number: int) -> Spec:
    """Draw the choices of a case."""
    r = random.Random(f"{seed}/{number}")
    spec = unserved(r)
    if spec.has_prior:  # the posterior of a hyperparameter has PyTorch's default dtype
        spec = replace(spec, ambient=spec.dtype)
    return served(r, spec) if r.random() < 0.9 else spec


def unserved(r: random.Random) -> Spec:
    """Draw choices one by one."""
    way = r.choices(list(WAYS), list(WAYS.values()))[0]
    sampled = way in ("slices", "nuts", "sparse nuts")
    dtype = r.choice(("float32", "float64"))
    family, propagation = r.choice(FAMILIES), r.choice(PROPAGATIONS)
    likelihood, layers = r.choice(LIKELIHOODS), r.choice((1, 1, 2, 2, 3))
    if r.random() < 0.4:
        likelihood = "gaussian"
    if way in ("exact", "collapsed"):
        likelihood, layers = r.choice(("gaussian", "gaussian", "coregionalization")), 1
    if way == "collapsed":
        family, likelihood = "fourier", "gaussian"
    if way == "sghmc":
        family, propagation = "points delta", "samples"
    kernels = tuple(expression(r, family, propagation, 1) for _ in range(layers))
    return Spec(
        seed=r.randrange(10**6),
        way=way,
        rows=r.choice((1, 2, 3, 10) if sampled else (1, 2, 3, 10, 50)),
        inputs=r.choice((1, 2, 7)),
        outputs=r.choice((1, 1, 2, 3)),
        batch=r.choice(((), (), (), (), (1,), (2,), (3,))),
        dtype=dtype,
        ambient=dtype if r.random() < 0.75 else "float64" if dtype == "float32" else "float32",
        x_pattern=r.choice(INPUTS),
        y_pattern=r.choice(TARGETS),
        x_scale=magnitude(r),
        x_offset=offset(r),
        y_scale=magnitude(r),
        y_offset=offset(r),
        is_standardized=r.random() < 0.4,
        kernels=kernels,
        ard=r.random() < 0.5,
        per_output=r.random() < 0.3,
        mean=r.choice(MEANS),
        likelihood=likelihood,
        family=family,
        size=r.choice((1, 3, 5, 20)),
        propagation=propagation,
        samples=r.choice((1, 2, 5)),
        loss=r.choice(("elbo", *LOSSES)),
        layers=layers,
        width=r.choice((1, 2, 3)),
        batch_size=r.choice((1, 4, 256)),
        new=r.choice((1, 5)),
        has_skip=r.random() < 0.2,
        has_two_sites=r.random() < 0.12,
        has_prior=r.random() < (0.5 if sampled else 0.1),
    )
