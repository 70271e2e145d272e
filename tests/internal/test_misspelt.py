"""Attributes whose names are nearly those of parameters."""

import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroParam, PyroSample

from pyro_dgp import RBF, ConstantMean, Gaussian, Kernel, Likelihood, LinearMean, Mean, Periodic, Scaled, StudentT

MISSPELT = {
    "RBF.lenghtscale": (RBF, "lengthscale"),
    "RBF.length_scale": (RBF, "lengthscale"),
    "RBF.variances": (RBF, "variance"),
    "Periodic.perod": (Periodic, "period"),
    "Scaled.varience": (lambda: Scaled(RBF()), "variance"),
    "Gaussian.varianc": (Gaussian, "variance"),
    "StudentT.scal": (StudentT, "scale"),
    "ConstantMean.constnat": (ConstantMean, "constant"),
    "LinearMean.weigth": (lambda: LinearMean(2), "weight"),
}
VALUES = {
    "prior": lambda: PyroSample(dist.LogNormal(0.0, 1.0)),
    "parameter": lambda: PyroParam(torch.tensor(1.0)),
    "number": lambda: 1.0,
    "tensor": lambda: torch.tensor(1.0),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("place", MISSPELT)
def test_a_misspelt_parameter_is_refused_with_the_name_that_is_meant(place, value):
    make, meant = MISSPELT[place]
    module, (kind, _, name) = make(), place.partition(".")
    with pytest.raises(AttributeError) as error:
        setattr(module, name, value())
    assert str(error.value) == f"{kind} has no parameter {name!r}: did you mean {meant}?"
    assert not hasattr(module, name)


def test_a_misspelt_prior_is_refused_where_another_prior_stands():
    kernel = RBF()
    kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    with pytest.raises(AttributeError, match="did you mean lengthscale"):
        kernel.lenghtscale = PyroSample(dist.LogNormal(0.0, 1.0))


@pytest.mark.parametrize("make", [RBF, Gaussian, ConstantMean])
def test_other_attributes_are_free(make):
    module = make()
    module.note, module._variance, module._constants = "mine", 2, 3
    module.register_buffer("variances", torch.ones(2))
    module.variances = torch.zeros(2)  # there by now
    module.network = torch.nn.Linear(1, 1)
    module.note = "changed"
    assert module.note == "changed" and module.variances.tolist() == [0, 0]


class OwnKernel(RBF):
    def __init__(self):
        super().__init__()
        self.lengthscales = PyroParam(torch.ones(2))
        self.register_buffer("variance0", torch.ones(()))
        self.variance_ = torch.nn.Linear(1, 1)

    def forward(self):
        self.lengthscale1 = self.lengthscale.detach()
        return super().forward()


class OwnLikelihood(Likelihood):
    def __init__(self):
        super().__init__()
        self.variance, self.variances = PyroParam(torch.ones(())), [1, 2]


class OwnMean(Mean):
    weights = 3

    def __init__(self):
        super().__init__()
        self.weight = PyroParam(torch.ones(()))
        self.weights = 4


@pytest.mark.parametrize("make", [OwnKernel, OwnLikelihood, OwnMean])
def test_classes_of_users_have_the_attributes_that_they_like(make):
    module = make()
    if isinstance(module, Kernel):
        module()
        assert module.lengthscale1 == 1 and module.variance_.in_features == 1
    assert make.__name__ not in ("RBF", "Gaussian") and len(list(module.parameters()))
