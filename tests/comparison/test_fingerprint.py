"""Fingerprints of models: priors and attributes that neither the words nor the state of a module hold."""

import collections
import copy
import datetime
import decimal
import fractions
import functools
import math
import numbers
import operator
import os
import re
import subprocess
import sys
import types

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch.distributions import constraints, transforms

from pyro_dgp import ELBO, DeepGP, InducingPoints, Matern52, MonteCarlo, RobustMax, SigmaPoints
from pyro_dgp.comparison.fingerprint import fingerprint
from pyro_dgp.comparison.run import compare
from pyro_dgp.zoo.by_guide import ByGuide
from tests.comparison.test_own_model import TOY, data, quiet


class Part(PyroModule):
    """A module with an attribute of any kind."""

    def __init__(self, held=None):
        super().__init__()
        self.held = held


class Hidden(Part):
    def forward(self, x):
        return 2 * x


class Described(Part):
    def extra_repr(self):
        return f"held={object()}"


def model(prior=None, **attributes):
    built = DeepGP(torch.linspace(-1, 1, 20).double()[:, None], layers=1)
    if prior is not None:
        built.likelihood.variance = PyroSample(prior)
    for name, value in attributes.items():
        setattr(built, name, value)
    return built


def normal(loc=0.0, scale=1.0):
    return dist.Normal(torch.tensor(loc), torch.tensor(scale))


def mixture(loc=0.0, logits=(0.0, 1.0)):
    parts = dist.LogNormal(torch.tensor([loc, 1.0]), torch.ones(2))
    return dist.MixtureSameFamily(dist.Categorical(logits=torch.tensor(logits)), parts)


def positive(prior):
    return dist.TransformedDistribution(prior, transforms.ExpTransform())


def transformed(*parts):
    return dist.TransformedDistribution(normal(), list(parts))


def frozen():
    built = model()
    built.likelihood.requires_grad_(False)
    return built


def constrained(constraint):
    part = Part()
    part.scale = PyroParam(torch.tensor(1.0), constraint=constraint)
    part.scale_unconstrained.data.fill_(0.5)
    return part


def buffered(value):
    part = Part()
    part.register_buffer("table", torch.full((2,), value), persistent=False)
    return part


def scaled(scale):
    return lambda module: dist.Gamma(scale, 1.0)


MAKERS = {
    "no prior": model,
    "frozen": frozen,
    "lognormal": lambda: model(dist.LogNormal(-3.0, 0.05)),
    "lognormal of another mean": lambda: model(dist.LogNormal(2.0, 0.05)),
    "lognormal of another scale": lambda: model(dist.LogNormal(2.0, 0.5)),
    "gamma": lambda: model(dist.Gamma(2.0, 1.0)),
    "inverse gamma": lambda: model(dist.InverseGamma(2.0, 1.0)),
    "expanded": lambda: model(dist.Gamma(2.0, 1.0).expand([1])),
    "independent": lambda: model(dist.Gamma(2.0, 1.0).expand([1]).to_event(1)),
    "masked": lambda: model(dist.Gamma(2.0, 1.0).mask(False)),
    "mixture": lambda: model(mixture()),
    "mixture of another mean": lambda: model(mixture(0.5)),
    "mixture of other weights": lambda: model(mixture(logits=(0.0, 2.0))),
    "transformed": lambda: model(transformed(transforms.AffineTransform(0.0, 2.0), transforms.ExpTransform())),
    "transformed by another scale": lambda: model(
        transformed(transforms.AffineTransform(0.0, 3.0), transforms.ExpTransform())
    ),
    "transformed in another order": lambda: model(
        transformed(transforms.ExpTransform(), transforms.AffineTransform(0.0, 2.0))
    ),
    "inverse": lambda: transformed(transforms.AffineTransform(0.0, 2.0).inv),
    "inverse of another": lambda: transformed(transforms.AffineTransform(0.0, 3.0).inv),
    "correlated": lambda: model(positive(dist.MultivariateNormal(torch.zeros(2), torch.eye(2)))),
    "correlated by a factor": lambda: model(
        positive(dist.MultivariateNormal(torch.zeros(2), scale_tril=2 * torch.eye(2)))
    ),
    "geometric": lambda: model(dist.Geometric(torch.tensor(0.3))),
    "geometric of another": lambda: model(dist.Geometric(torch.tensor(0.4))),
    "function": lambda: model(lambda module: dist.Gamma(2.0, 1.0)),
    "function of another constant": lambda: model(lambda module: dist.Gamma(3.0, 1.0)),
    "closure": lambda: model(scaled(2.0)),
    "closure of another constant": lambda: model(scaled(3.0)),
    "number": lambda: model(power=2),
    "another number": lambda: model(power=3),
    "private number": lambda: model(_power=2),
    "words": lambda: model(part=Part("one")),
    "other words": lambda: model(part=Part("two")),
    "tuple": lambda: model(part=Part((1, (2, "three")))),
    "another tuple": lambda: model(part=Part((1, (2, "four")))),
    "dictionary": lambda: model(part=Part({"a": {"b": [1]}})),
    "another dictionary": lambda: model(part=Part({"a": {"b": [2]}})),
    "set": lambda: model(part=Part({"alpha", "beta", "gamma", "delta"})),
    "another set": lambda: model(part=Part({"alpha", "beta", "gamma", "epsilon"})),
    "tensor": lambda: model(part=Part(torch.zeros(2))),
    "another tensor": lambda: model(part=Part(torch.ones(2))),
    "distribution": lambda: model(part=Part([normal()])),
    "another distribution": lambda: model(part=Part([normal(1.0)])),
    "method": lambda: model(part=Part(Part().extra_repr)),
    "object": lambda: model(part=Part(object())),
    "another class": lambda: model(part=Hidden()),
    "an address in words": lambda: model(part=Described(1)),
    "buffer": lambda: model(part=buffered(1.0)),
    "another buffer": lambda: model(part=buffered(2.0)),
    "interval": lambda: model(part=constrained(constraints.interval(0.0, 1.0))),
    "another interval": lambda: model(part=constrained(constraints.interval(0.0, 2.0))),
    "positive": lambda: model(part=constrained(constraints.positive)),
    "robust max": lambda: RobustMax(3),
    "robust max of another error": lambda: RobustMax(3, epsilon=0.01),
    "kernel": lambda: Matern52(ard=2),
    "samples": lambda: ByGuide(InducingPoints(5), MonteCarlo(2), ELBO),
    "other samples": lambda: ByGuide(InducingPoints(5), MonteCarlo(3), ELBO),
    "points": lambda: ByGuide(InducingPoints(5), SigmaPoints("qr3", 3), ELBO),
    "other points": lambda: ByGuide(InducingPoints(5), SigmaPoints("qr3", 4), ELBO),
}


def prints():
    return {name: fingerprint(make()) for name, make in MAKERS.items()}


def test_models_that_differ_have_other_fingerprints():
    found = prints()
    assert len(set(found.values())) == len(found)


def test_models_that_are_built_alike_have_the_same_in_every_process():
    found = prints()
    assert prints() == found
    program = (
        "import torch; torch.set_default_dtype(torch.float64); from tests.comparison.test_fingerprint import prints; "
        "print(*prints().values())"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert len(found[0]) == len(MAKERS) and found[0] == found[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: dist.LogNormal(0.0, 1.0),
        lambda: positive(dist.MultivariateNormal(torch.zeros(2), torch.eye(2))),
        lambda: dist.Bernoulli(torch.tensor(0.3)),
        mixture,
        lambda: transformed(transforms.AffineTransform(0.0, 2.0).inv, transforms.ExpTransform(cache_size=1)),
    ],
)
def test_a_prior_that_was_used_is_the_same(make):
    used = make()
    value = used.sample()
    used.log_prob(value)
    for name in ("logits", "precision_matrix", "transforms"):
        getattr(used, name, None)
    for each in getattr(used, "transforms", []):
        assert each.inv is not None
    assert fingerprint(used) == fingerprint(make())
    assert fingerprint(model(used)) == fingerprint(model(make()))


class OwnNumber(numbers.Number):
    __hash__ = object.__hash__

    def __init__(self, value):
        self.value = value


class OwnMapping(collections.abc.Mapping):
    def __init__(self, value):
        self.value = value

    def __getitem__(self, key):
        return 1

    def __iter__(self):
        return iter("a")

    def __len__(self):
        return 1


class OwnDeque(collections.deque):
    value = 0

    def __init__(self, value):
        super().__init__([1])
        self.value = value

    def __copy__(self):
        return OwnDeque(self.value)


ONE, OTHER = (lambda value: value), (lambda value: -value)


def kept(value):
    """A class with a property that is computed once."""
    return type("Kept", (), {"value": functools.cached_property(value)})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([ONE, OTHER, ONE], [ONE, OTHER, OTHER]),
        ({ONE: 1, "b": OTHER, "c": ONE}, {ONE: 1, "b": OTHER, "c": OTHER}),
        (torch.tanh, torch.sin),
        (torch.Tensor.tanh, torch.Tensor.sin),
        (np.tanh, np.sin),
        (math.tanh, math.sin),
        (kept(ONE), kept(OTHER)),
        (collections.deque([1]), collections.deque([2])),
        (types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 2})),
        (decimal.Decimal("0.1"), decimal.Decimal("0.2")),
        (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
        (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
        (operator.itemgetter(0), operator.itemgetter(1)),
        (re.compile("a"), re.compile("b")),
        (re.compile("a" * 300 + "b"), re.compile("a" * 300 + "c")),
        ({"a": 1}.get, {"a": 2}.get),
        (OwnNumber(1.0), OwnNumber(2.0)),
        (OwnMapping(1.0), OwnMapping(2.0)),
        (OwnDeque(1.0), OwnDeque(2.0)),
        (operator.methodcaller("f", {"a", "b"}), operator.methodcaller("f", {"a", "c"})),
        (pd.Series([1.0, 2.0]), pd.Series([1.0, 3.0])),
        (pd.Series([1.0], index=["a"]), pd.Series([1.0], index=["b"])),
        (pd.DataFrame({"a": [1.0]}), pd.DataFrame({"b": [1.0]})),
        (pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-02")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_hold_others_more_than_once_or_have_no_code_to_look_into_are_told_apart(first, second):
    assert fingerprint(first) != fingerprint(second)
    is_copied = not isinstance(first, types.MappingProxyType)
    assert fingerprint(first) == fingerprint(copy.copy(first) if is_copied else types.MappingProxyType(dict(first)))


def test_the_environment_is_no_part_of_a_model(monkeypatch):
    before = fingerprint(os.environ)
    monkeypatch.setenv("ANOTHER_VARIABLE", "1")
    assert fingerprint(os.environ) == before


def test_an_object_within_words_has_no_address_there():
    assert fingerprint(operator.methodcaller("a", Part())) == fingerprint(operator.methodcaller("a", Part()))


def test_a_model_with_another_prior_is_not_taken_for_the_old_one(tmp_path):
    x, y = data()
    x, y = x / 50 - 1, y / 10 - 5

    def asked(loc):
        torch.manual_seed(0)
        built = DeepGP(torch.as_tensor(x[:20]), layers=1)
        built.likelihood.variance = PyroSample(dist.LogNormal(loc, 0.05))
        return compare(
            built,
            x[:20],
            y[:20],
            test=(x[20:], y[20:]),
            methods=["svgp"],
            settings=TOY,
            output=tmp_path / "out",
            resume=True,
            standardize=False,
            say=quiet,
        )

    first = asked(-3.0)
    assert asked(-3.0).rows[0]["nll"] == first.rows[0]["nll"]
    with pytest.raises(ValueError, match=r"made with other settings \(model_code"):
        asked(2.0)
