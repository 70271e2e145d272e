"""Predictions in the target's own units: values in any layout, and tables by name."""

import numpy as np
import pandas as pd
import pytest
import torch
from pyro import distributions as dist

from pyro_dgp import Mixture, Prediction, RescaledPrediction

NAMES = ("a", "b")
VALUES = np.array([[1.0, 900.0], [2.0, 1100.0], [3.0, 1000.0], [0.0, 950.0]])


def of_outputs(outputs=NAMES):
    """Normals, independent, of mean 1 and 1000 and scale 2 and 100, in float64."""

    def evaluate(rows):
        mean = torch.zeros(1, rows.stop - rows.start, 2, dtype=torch.float64)
        return Mixture(dist.MultivariateNormal(mean, torch.eye(2).double()), torch.zeros(1).double())

    prediction = Prediction(evaluate, 4, torch.Size([2]))
    shift, scale = torch.tensor([1.0, 1000.0]).double(), torch.tensor([2.0, 100.0]).double()
    return RescaledPrediction(prediction, shift=shift, scale=scale, like=torch.zeros(1).double(), outputs=outputs)


def of_one():
    def evaluate(rows):
        mean = torch.zeros(1, rows.stop - rows.start, dtype=torch.float64)
        return Mixture(dist.Normal(mean, torch.ones_like(mean)), torch.zeros(1).double())

    return RescaledPrediction(Prediction(evaluate, 4), shift=1.0, scale=2.0, like=torch.zeros(1).double())


EXPECTED = dist.Normal(torch.tensor([1.0, 1000.0]), torch.tensor([2.0, 100.0])).log_prob(torch.tensor(VALUES)).sum(-1)


def test_a_table_of_targets_is_taken_by_name():
    prediction, table = of_outputs(), pd.DataFrame(VALUES, columns=NAMES)
    for own in (table, table[["b", "a"]]):
        torch.testing.assert_close(prediction.log_prob(own), EXPECTED)
        torch.testing.assert_close(prediction.crps(own), prediction.crps(VALUES))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (["a", "c"], "the targets have no column 'b': give the columns a, b, which may be in any order"),
        (["a"], "the targets have no column 'b'"),
        (["a", "b", "c"], "the targets have the column 'c', which is no output: give the columns a, b"),
        (["a", "b", "b"], "the targets have the column 'b' twice: give the columns a, b"),
    ],
)
def test_a_table_of_other_targets_is_refused(columns, sentence):
    table = pd.DataFrame(np.ones((4, len(columns))), columns=columns)
    with pytest.raises(ValueError, match=sentence):
        of_outputs().log_prob(table)


def test_outputs_that_have_numbers_for_names_take_a_table_as_it_stands():
    prediction, table = of_outputs(("y0", "y1")), pd.DataFrame(VALUES, columns=NAMES)
    torch.testing.assert_close(prediction.log_prob(table), EXPECTED)
    numbered = table.set_axis(["y0", "y1"], axis=1)
    torch.testing.assert_close(prediction.log_prob(numbered[["y1", "y0"]]), EXPECTED)
    torch.testing.assert_close(of_outputs(()).log_prob(table), EXPECTED)


def test_values_are_taken_in_any_layout():
    """Arrays whose memory runs backwards, by columns or with steps: torch takes none of the first."""
    prediction = of_outputs()
    backwards = np.ascontiguousarray(VALUES[::-1, ::-1])[::-1, ::-1]
    assert min(backwards.strides) < 0
    for values in (backwards, np.asfortranarray(VALUES), np.repeat(VALUES, 2, 0)[::2], VALUES.astype("f4")):
        torch.testing.assert_close(prediction.log_prob(values), EXPECTED)
        torch.testing.assert_close(prediction.crps(values), prediction.crps(VALUES))
    one = of_one()
    values = np.arange(4.0)
    torch.testing.assert_close(one.cdf(values[::-1]), one.cdf(values).flip(0))
    torch.testing.assert_close(one.log_prob(pd.Series(values)), one.log_prob(values))
    assert not np.shares_memory(values, one._standardised(values).numpy())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [(np.ma.masked_values([1.0, -9.0, 2.0, 3.0], -9.0), "masked"), (np.ones(4, dtype=complex), "complex")],
)
def test_values_that_would_lose_a_part_are_refused(values, sentence):
    with pytest.raises(ValueError, match=f"the targets.*{sentence}"):
        of_one().log_prob(values)


def test_the_covariance_of_student_t_is_its_scatter_times_df_over_df_less_two():
    """Pyro's ``covariance_matrix`` is the scatter, a third of the covariance at df 3."""
    scatter, df = torch.tensor([[0.3, 0.1], [0.1, 0.2]]).double(), torch.tensor([3.0, 5.0]).double()

    def evaluate(rows):
        root = torch.linalg.cholesky(scatter).expand(2, rows.stop - rows.start, 2, 2)
        freedom = df[:, None].expand(2, rows.stop - rows.start)
        loc = torch.zeros(2, rows.stop - rows.start, 2).double()
        return Mixture(dist.MultivariateStudentT(freedom, loc, root), torch.tensor([0.5, 0.5]).double().log())

    prediction = Prediction(evaluate, 3, torch.Size([2]))
    torch.testing.assert_close(prediction.covariance, (0.5 * (3 + 5 / 3) * scatter).expand(3, 2, 2))
    torch.testing.assert_close(prediction.covariance.diagonal(dim1=1, dim2=2), prediction.variance)


def test_the_covariance_is_that_of_draws_in_the_units_of_the_targets():
    """Correlated outputs, of units that differ by a factor of fifty; a single target has its variance."""
    within = torch.tensor([[1.0, 0.6], [0.6, 2.0]]).double()

    def evaluate(rows):
        mean = torch.tensor([[0.0, 0.0], [1.0, -1.0]]).double().unsqueeze(1).expand(2, rows.stop - rows.start, 2)
        return Mixture(dist.MultivariateNormal(mean, within), torch.tensor([0.5, 0.5]).double().log())

    shift, scale = torch.tensor([1.0, 1000.0]).double(), torch.tensor([2.0, 100.0]).double()
    prediction = RescaledPrediction(
        Prediction(evaluate, 3, torch.Size([2])), shift=shift, scale=scale, like=torch.zeros(1).double(), outputs=NAMES
    )
    between = torch.tensor([[0.25, -0.25], [-0.25, 0.25]]).double()
    expected = scale[:, None] * scale * (within + between)
    torch.testing.assert_close(prediction.covariance, expected.expand(3, 2, 2))
    torch.testing.assert_close(prediction.covariance.diagonal(dim1=1, dim2=2), prediction.variance)
    torch.testing.assert_close(of_one().covariance.flatten(), of_one().variance)
