"""Targets that the distribution of a plain site does not have: refused by guides and samplers, whether or not Pyro validates."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import RBF, GaussianProcess, InducingPoints, Variational, WhitenedNUTS, run_chains

X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
Y = torch.tensor([0.0, 1.0] * 4, dtype=torch.float64)


class Plain(PyroModule):
    """One function, and a plain site with a distribution made of its values."""

    def __init__(self, kind):
        super().__init__()
        self.gp, self.kind = GaussianProcess(RBF()), kind

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", self.kind(f).to_event(1), obs=y)


def in_a_guide(kind, y):
    Variational(Plain(kind), InducingPoints(4)).initialize(X, y)


def in_a_sampler(kind, y):
    run_chains(WhitenedNUTS(Plain(kind)), (X, y), num_samples=1, warmup_steps=1, num_chains=1)


@pytest.fixture(params=[True, False], ids=["validating", "not validating"])
def _validation(request):
    with pyro.validation_enabled(request.param):
        yield


@pytest.mark.usefixtures("_validation")
@pytest.mark.parametrize("run", [in_a_guide, in_a_sampler])
@pytest.mark.parametrize(
    ("kind", "y", "said"),
    [
        (lambda f: dist.Bernoulli(logits=f), 2 * Y - 1, "is -1, and Bernoulli takes whole numbers from 0 to 1"),
        (lambda f: dist.Poisson(f.exp()), Y + 0.5, "is 0.5, and Poisson takes whole numbers from 0 on"),
        (lambda f: dist.Gamma(f.exp(), 1.0), -Y, r"is -1, outside the support of Gamma, GreaterThanEq\(lower_bound=0"),
        (lambda f: dist.LogNormal(f, 1.0), -Y, r"is -?0, outside the support of LogNormal, GreaterThan\(lower_bound=0"),
    ],
)
def test_targets_that_a_distribution_does_not_have_are_refused(run, kind, y, said):
    with pytest.raises(ValueError, match=f"at the site 'y', a target {said}.*: recode the targets"):
        run(kind, y)


@pytest.mark.parametrize("run", [in_a_guide, in_a_sampler])
@pytest.mark.parametrize("y", [Y.long(), Y.bool()])
def test_whole_numbers_with_which_a_distribution_does_not_compute_are_refused(run, y):
    with pytest.raises(TypeError, match=r"'y' is (int64|bool), which Bernoulli does not compute with .*: pass y.to\("):
        run(lambda f: dist.Bernoulli(logits=f), y)


def test_masked_targets_may_be_anything():
    y = torch.where(Y > 0, Y, -1.0)
    guide = Variational(Plain(lambda f: dist.Bernoulli(logits=f, validate_args=False).mask(y >= 0)), InducingPoints(4))
    guide.initialize(X, y)
    assert guide.processes
