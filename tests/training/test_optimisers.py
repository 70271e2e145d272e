"""What fit takes as optimizer=, and one sentence for everything else."""

import functools

import pyro
import pytest
import torch

from pyro_dgp import (
    ELBO,
    InducingPoints,
    MarginalLikelihood,
    NaturalGradients,
    Validation,
    Variational,
    fit,
    fit_validated,
)
from pyro_dgp.training.optimising import adam, adam_for_networks
from tests.examples import OneLayer, regression

pytestmark = pytest.mark.usefixtures("unannotated")

WRONG = {
    "class": torch.optim.Adam,
    "partial": functools.partial(torch.optim.Adam, lr=0.1),
    "of Pyro": pyro.optim.Adam({"lr": 0.1}),
    "kind of Pyro": pyro.optim.Adam,
    "instance": torch.optim.Adam([torch.zeros(1, requires_grad=True)]),
    "name": "adam",
    "nothing": None,
    "returns nothing": lambda objective, learning_rate: None,
    "returns the class": lambda objective, learning_rate: torch.optim.Adam,
    "one argument": lambda objective: torch.optim.Adam(objective.parameters()),
}
SENTENCE = (
    r"optimizer is a function of the objective and the learning rate that returns an optimiser of PyTorch, and got .*: write it as in "
    r"optimizer=lambda objective, lr: torch.optim.Adam\(objective.parameters\(\), lr\)"
)


def guide_of(x, y):
    guide = Variational(OneLayer(), InducingPoints(4))
    guide.initialize(x, y)
    return guide


@pytest.mark.parametrize("kind", WRONG)
def test_what_builds_no_optimiser_is_refused_in_one_sentence(kind, local):
    x, y = regression(12)
    with pytest.raises(TypeError, match=SENTENCE):
        fit(MarginalLikelihood(OneLayer()), x, y, steps=2, optimizer=WRONG[kind])


def test_fit_validated_refuses_it_alike(local):
    x, y = regression(30)
    for kind in ("class", "name"):
        with pytest.raises(TypeError, match=SENTENCE):
            fit_validated(
                guide_of(x, y),
                lambda beta, rows: ELBO(rows),
                x,
                y,
                steps=2,
                validation=Validation(betas=(1.0,)),
                optimizer=WRONG[kind],
            )


def test_natural_gradients_refuse_it_alike_for_the_other_parameters(local):
    x, y = regression(12)
    guide = guide_of(x, y)
    for kind in ("class", "returns nothing"):
        with pytest.raises(TypeError, match=SENTENCE):
            fit(ELBO(12)(guide.model, guide), x, y, steps=2, optimizer=NaturalGradients(others=WRONG[kind]))


def test_an_error_of_the_function_itself_stays(local):
    def own(objective, learning_rate):
        raise TypeError("of my own")

    x, y = regression(12)
    with pytest.raises(TypeError, match="of my own"):
        fit(MarginalLikelihood(OneLayer()), x, y, steps=2, optimizer=own)


class Own(torch.optim.SGD):
    """An optimiser that is built from the objective by its own class."""

    def __init__(self, objective, learning_rate):
        super().__init__(objective.parameters(), learning_rate)


@pytest.mark.parametrize(
    "optimizer",
    [adam, adam_for_networks, Own, lambda objective, lr: torch.optim.RMSprop(objective.parameters(), lr)],
)
def test_functions_and_classes_of_objective_and_learning_rate_are_taken(optimizer, local):
    x, y = regression(12)
    assert len(fit(MarginalLikelihood(OneLayer()), x, y, steps=2, learning_rate=1e-3, optimizer=optimizer).losses) == 2


def test_an_optimiser_that_a_schedule_has_touched_is_taken(local):
    """A schedule puts a function without a bound ``self`` in the place of the step, that of a first fit too."""
    x, y = regression(12)
    objective, kept = MarginalLikelihood(OneLayer()), []

    def same(objective, learning_rate):
        kept.append(kept[0] if kept else torch.optim.Adam(objective.parameters(), learning_rate))
        return kept[-1]

    def with_schedule(objective, learning_rate):
        optimizer = torch.optim.Adam(objective.parameters(), learning_rate)
        torch.optim.lr_scheduler.StepLR(optimizer, 5)
        return optimizer

    for optimizer in (same, same, with_schedule):
        assert len(fit(objective, x, y, steps=2, optimizer=optimizer).losses) == 2


def test_an_optimiser_whose_step_needs_a_closure_is_refused(local):
    x, y = regression(12)
    with pytest.raises(
        ValueError,
        match=r"the step of LBFGS needs a function \(closure\) .*: take one whose step .* such as Adam or SGD",
    ):
        fit(
            MarginalLikelihood(OneLayer()),
            x,
            y,
            steps=2,
            optimizer=lambda objective, lr: torch.optim.LBFGS(objective.parameters()),
        )


def test_a_fit_without_a_parameter_to_train_says_so(local):
    x, y = regression(12)
    objective = MarginalLikelihood(OneLayer()).requires_grad_(False)
    for optimizer in (adam, adam_for_networks):
        with pytest.raises(ValueError, match=r"nothing is left to train: .* objective.requires_grad_\(True\)"):
            fit(objective, x, y, steps=2, optimizer=optimizer)
    guide = guide_of(x, y)
    with pytest.raises(ValueError, match="nothing is left to train"):
        fit(ELBO(num_data=12)(guide.model, guide).requires_grad_(False), x, y, steps=2)
    objective.model.likelihood.requires_grad_(True)
    assert len(fit(objective, x, y, steps=2).losses) == 2
