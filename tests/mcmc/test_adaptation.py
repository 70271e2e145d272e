"""Step sizes and metrics that a warm-up learns."""

import numpy as np
import pytest
import torch

from pyro_dgp.mcmc.adaptation import Adaptation, DualAveraging, FisherMetric
from pyro_dgp.mcmc.lockstep import lockstep
from pyro_dgp.mcmc.trajectories import Phase, Random, Trajectory

SCALES = np.array([0.01, 1.0, 30.0])


def density(position):
    scaled = position / SCALES
    return -0.5 * float(scaled @ scaled), -scaled / SCALES


def phase(position):
    return Phase.of(position, np.zeros(3), density(position), np.ones(3))


def slopes(positions):
    values, gradients = zip(*map(density, positions), strict=True)
    return np.array(values), np.stack(gradients)


def drive(steps):
    return lockstep([steps], slopes)[0]


def warmed(warmup, draws, *, target=0.8, step_size=None, depth=8, seed=0, start=np.ones(3)):
    """A chain, from far out if not told otherwise: acceptance rates of its draws, and its adaptation."""
    adaptation, random = Adaptation(3, warmup, target=target, step_size=step_size), Random(seed)
    at, rates = phase(start), []
    drive(adaptation.begin(at, random))
    for number in range(warmup + draws):
        variances = adaptation.metric.variances
        start = Phase.of(at.position, random.normal(3) / np.sqrt(variances), (at.log_density, at.gradient), variances)
        trajectory = Trajectory(start, adaptation.step_size, variances, depth, random)
        at = drive(trajectory.run())
        rate = trajectory.acceptance / trajectory.n_steps
        drive(adaptation.update(at, rate, random))
        if number >= warmup:
            rates.append(rate)
    return rates, adaptation


def test_the_metric_of_independent_normals_is_exact_after_a_few_draws():
    metric, generator = FisherMetric(3), np.random.default_rng(0)
    for _ in range(4):
        metric.add(phase(SCALES * generator.standard_normal(3)), 100)
    np.testing.assert_allclose(metric.variances, SCALES**2, rtol=1e-9)


def test_what_came_before_the_last_window_is_forgotten():
    metric, generator = FisherMetric(3), np.random.default_rng(0)

    def wide(position):
        return Phase.of(position, np.zeros(3), (0.0, -position / 100), np.ones(3))

    for number in range(8):
        assert metric.add(wide(10 * generator.standard_normal(3)), 8) is (number == 7)
    np.testing.assert_allclose(metric.variances, 100.0, rtol=1e-9)
    for _ in range(8):
        metric.add(phase(SCALES * generator.standard_normal(3)), 8)
    np.testing.assert_allclose(metric.variances, SCALES**2, rtol=1e-9)


def test_the_step_size_has_about_the_wanted_acceptance_rate():
    """A little above it, since the average of the logarithms of the step sizes is taken, as in Stan."""
    found = {}
    for target in (0.6, 0.8, 0.95):
        rates, adaptation = warmed(300, 400, target=target)
        found[target] = adaptation.step_size
        assert target - 0.02 < np.mean(rates) < target + 0.15
        np.testing.assert_allclose(adaptation.metric.variances, SCALES**2, rtol=1e-6)
    assert found[0.6] > found[0.8] > found[0.95] > 0.3


def test_after_the_warm_up_nothing_changes():
    _, adaptation = warmed(40, 0)
    before = adaptation.state_dict()
    drive(adaptation.update(phase(np.ones(3)), 0.1, Random(0)))
    assert adaptation.state_dict()["done"] == before["done"] == 40
    assert adaptation.state_dict()["step size"] == before["step size"]
    assert torch.equal(adaptation.state_dict()["metric"]["variances"], before["metric"]["variances"])
    assert adaptation.step_size == pytest.approx(np.exp(before["step size"]["log_average"]))


def test_a_given_step_size_stays():
    _, adaptation = warmed(30, 3, step_size=0.123)
    assert adaptation.step_size == 0.123
    assert not np.allclose(adaptation.metric.variances, 1.0)


def test_without_a_warm_up_a_step_size_is_found_and_the_metric_is_one():
    rates, adaptation = warmed(0, 20)
    assert np.array_equal(adaptation.metric.variances, np.ones(3))
    assert 0.003 < adaptation.step_size < 0.1  # the shortest scale is 0.01
    assert np.mean(rates) > 0.3


def test_a_state_goes_on_as_if_nothing_had_been():
    _, first = warmed(50, 0)
    other = Adaptation(3, 50, target=0.8, step_size=None)
    other.load_state_dict(first.state_dict())
    for each in (first, other):
        each.done = 20
        drive(each.update(phase(np.array([0.02, 0.3, 9.0])), 0.4, Random(1)))
    assert first.step_size == other.step_size
    np.testing.assert_array_equal(first.metric.variances, other.metric.variances)
    averaging = DualAveraging(0.8)
    averaging.load_state_dict(first.averaging.state_dict())
    assert vars(averaging) == vars(first.averaging)


def test_coordinates_that_have_not_moved_keep_their_scale():
    metric = FisherMetric(3)
    metric.start_at(np.array([10.0, 0.1, 1.0]))
    before = metric.variances.copy()
    for _ in range(5):
        metric.add(phase(np.ones(3)), 100)
    np.testing.assert_array_equal(metric.variances, before)
    for number in range(5):
        metric.add(phase(np.array([1.0, 1.0, number])), 100)
    np.testing.assert_allclose(metric.variances, [before[0], before[1], SCALES[2] ** 2])


@pytest.mark.parametrize("warmup", [1, 2, 5])
def test_a_short_warm_up_does_no_harm(warmup):
    """A step size from one or two rates would be ten times the one that was found."""
    rates = [np.mean(warmed(warmup, 40, seed=seed, start=SCALES)[0]) for seed in range(5)]
    assert min(rates) > 0.25


def test_no_trajectory_begins_where_the_density_is_infinite():
    at = Phase.of(np.zeros(3), np.ones(3), (np.inf, np.zeros(3)), np.ones(3))
    assert at.energy == np.inf
