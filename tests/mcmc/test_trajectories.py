"""The No-U-Turn sampler on densities that are known."""

import math

import numpy as np
import pytest
from scipy import stats

from pyro_dgp.mcmc.lockstep import _MANY, lockstep
from pyro_dgp.mcmc.trajectories import Leap, Phase, Random, Trajectory, leapfrogs, log_sum


def double_well(position):
    """Two modes of unequal height: log density and gradient."""
    x = position[0]
    return -(x**4) + 2 * x**2 + 0.5 * x, np.array([-4 * x**3 + 4 * x + 0.5])


def double_well_in_three(position):
    """The product of three such densities."""
    return float((-(position**4) + 2 * position**2 + 0.5 * position).sum()), -4 * position**3 + 4 * position + 0.5


def wall(position):
    """A normal density that is not finite beyond a plane."""
    return (-0.5 * float(position @ position), -position) if position[0] < 1.2 else (math.nan, np.full(3, math.nan))


def normal(position):
    return -0.5 * float(position @ position), -position


def each(density):
    """Log densities and gradients of several positions, from a density of one."""

    def slopes(positions):
        values, gradients = zip(*(density(position) for position in positions), strict=True)
        return np.array(values), np.stack(gradients)

    return slopes


def alone(run, density):
    """The result of the computation of one chain."""
    (result,) = lockstep([run], each(density))
    return result


def leapfrog(leap, density):
    """The end of one leapfrog step."""

    def one():
        return (yield leap)

    return alone(one(), density)


def draw(density, position, *, step_size, variances, depth, random):
    """One transition, and its trajectory."""
    momentum = random.normal(len(position)) / np.sqrt(variances)
    start = Phase.of(position, momentum, density(position), variances)
    trajectory = Trajectory(start, step_size, variances, depth, random)
    return alone(trajectory.run(), density), trajectory


@pytest.mark.parametrize(("step_size", "depth"), [(0.35, 1), (0.35, 2), (0.3, 3), (0.2, 5), (0.6, 4)])
def test_a_transition_leaves_a_density_as_it_is(step_size, depth):
    """Starts are exact draws of a density with two modes; so are the ends, however large the steps are."""
    grid = np.linspace(-3, 3, 60_001)
    weights = np.exp([double_well(np.array([x]))[0] for x in grid])
    cumulative = np.cumsum(weights) / weights.sum()
    random, variances = Random(7), np.array([0.7])
    ends, moved = [], 0
    for level in (np.arange(6000) + 0.5) / 6000:
        position = np.array([np.interp(level, cumulative, grid)])
        end, _ = draw(double_well, position, step_size=step_size, variances=variances, depth=depth, random=random)
        ends.append(np.interp(end.position[0], grid, cumulative))
        moved += end.position[0] != position[0]
    counts, _ = np.histogram(ends, bins=20, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 1e-3
    assert moved > 2500


def test_a_chain_has_the_moments_of_a_correlated_normal():
    covariance = np.array([[1.0, 0.8, 0.0], [0.8, 1.0, 0.3], [0.0, 0.3, 0.5]])
    precision = np.linalg.inv(covariance)

    def density(position):
        slope = -precision @ position
        return 0.5 * float(position @ slope), slope

    random, variances = Random(1), np.array([0.5, 2.0, 1.0])
    position, draws = np.zeros(3), []
    for _ in range(6000):
        end, _ = draw(density, position, step_size=0.4, variances=variances, depth=6, random=random)
        position = end.position
        draws.append(position)
    found = np.cov(np.array(draws[200:]).T)
    assert np.abs(found - covariance).max() < 0.08
    assert np.abs(np.mean(draws, 0)).max() < 0.08


def test_leapfrog_goes_back_where_it_came_from():
    variances = np.array([1.0, 3.0])
    start = Phase.of(np.array([0.3, -1.0]), np.array([1.0, 0.2]), normal(np.array([0.3, -1.0])), variances)
    there = leapfrog(Leap(start, 0.4, variances), normal)
    back = leapfrog(Leap(there, -0.4, variances), normal)
    np.testing.assert_allclose(back.position, start.position, atol=1e-12)
    np.testing.assert_allclose(back.momentum, start.momentum, atol=1e-12)
    assert abs(there.energy - start.energy) < 0.1 and not np.allclose(there.position, start.position)


def test_leapfrog_steps_of_several_chains_are_those_of_each():
    """Positions, steps and metrics of their own; compared with the formula written out for one."""
    generator = np.random.default_rng(0)
    plans = [(generator.normal(size=2), generator.normal(size=2), step) for step in (0.1, -0.3, 0.7)]
    metrics = [np.array([1.0, 3.0]), np.array([0.2, 0.5]), np.array([4.0, 1.0])]
    starts = [Phase.of(q, p, double(q), m) for (q, p, _), m in zip(plans, metrics, strict=True)]
    steps = np.array([step for _, _, step in plans])
    ends = leapfrogs(np.stack([start.numbers for start in starts]), steps, np.stack(metrics), each(double))
    for (q, p, step), metric, *numbers in zip(plans, metrics, *ends, strict=True):
        end = Phase(*numbers)
        half = p + 0.5 * step * double(q)[1]
        at = q + step * metric * half
        value, slope = double(at)
        after = half + 0.5 * step * slope
        np.testing.assert_allclose(end.position, at, rtol=1e-14)
        np.testing.assert_allclose(end.momentum, after, rtol=1e-14)
        np.testing.assert_allclose(end.velocity, metric * after, rtol=1e-14)
        np.testing.assert_allclose(end.gradient, slope, rtol=1e-14)
        assert end.log_density == value and end.energy == pytest.approx(0.5 * after @ (metric * after) - value)


def double(position):
    return -float(position @ position) + 0.3 * position[0], -2 * position + np.array([0.3, 0.0])


def test_the_step_onto_a_position_asks_for_its_slope_and_stands_still():
    position = np.array([0.3, -1.0])
    at = leapfrog(Leap.onto(position, np.array([1e-3, 1e3])), normal)
    assert np.array_equal(at.position, position) and not at.momentum.any()
    assert at.log_density == normal(position)[0] and np.array_equal(at.gradient, -position)


def test_a_trajectory_ends_where_it_turns_back():
    random = Random(3)
    counts = [
        draw(normal, np.array([1.0]), step_size=0.1, variances=np.ones(1), depth=10, random=random)[1].n_steps
        for _ in range(50)
    ]
    assert max(counts) <= 127  # a period has 63 steps; without the criterion there would be 1023
    assert np.mean(counts) > 12


def test_a_step_of_no_finite_energy_ends_a_trajectory_where_it_began():
    def cliff(position):
        return (-0.5 * float(position @ position), -position) if position[0] < 1.2 else (math.nan, np.zeros(1))

    random = Random(0)
    ends = [
        draw(cliff, np.array([1.1]), step_size=2.0, variances=np.ones(1), depth=4, random=random) for _ in range(40)
    ]
    diverged = [(end, trajectory) for end, trajectory in ends if trajectory.diverging]
    assert diverged and all(end.position[0] < 1.2 for end, _ in ends)
    assert all(0 <= trajectory.acceptance <= trajectory.n_steps for _, trajectory in ends)


def test_sums_of_exponentials():
    assert log_sum(1.0, 2.0) == pytest.approx(np.logaddexp(1.0, 2.0))
    assert log_sum(2.0, 1.0) == log_sum(1.0, 2.0)
    assert log_sum(-math.inf, 3.0) == 3.0 and log_sum(-math.inf, -math.inf) == -math.inf


def test_random_numbers_go_on_where_their_state_was_kept():
    first = Random(5)
    first.normal(3)
    state, after = first.state(), first.uniform(2).tolist()
    other = Random(6)
    other.set_state(state)
    assert other.uniform(2).tolist() == after and Random(5).uniform(1) != Random(6).uniform(1)


def chain(density, position, *, step_size, variances, depth, seed, count):
    """Make some transitions: their ends, counts of steps, acceptances, and whether each diverged."""
    random, found = Random(seed), []
    at = yield Leap.onto(position, variances)
    for _ in range(count):
        momentum = random.normal(len(position)) / np.sqrt(variances)
        start = Phase.of(at.position, momentum, (at.log_density, at.gradient), variances)
        trajectory = Trajectory(start, step_size, variances, depth, random)
        at = yield trajectory
        found.append((at, trajectory))
    return found


@pytest.mark.parametrize("density", [normal, double_well_in_three, wall])
def test_trajectories_as_arrays_are_those_of_each_chain_alone(density):
    """Chains of unequal steps, metrics, depths and lengths: each transition is that of the reference, which grows a tree of points."""
    generator = np.random.default_rng(4)
    plans = [
        {
            "position": 0.3 * generator.normal(size=3),
            "variances": generator.uniform(0.3, 2.0, size=3),
            "step_size": step,
            "depth": depth,
            "seed": seed,
            "count": 20 + 5 * seed,
        }
        for seed, (step, depth) in enumerate(2 * [(0.05, 9), (0.1, 4), (0.4, 6), (0.9, 3), (1.7, 5), (0.3, 1)])
    ]
    assert len(plans) >= _MANY
    together = lockstep([chain(density, **plan) for plan in plans], each(density))
    ended = []
    for plan, found in zip(plans, together, strict=True):
        for (end, trajectory), (wanted, reference) in zip(found, alone(chain(density, **plan), density), strict=True):
            np.testing.assert_allclose(end.numbers, wanted.numbers, rtol=1e-7, atol=1e-9)
            assert end.log_density == pytest.approx(wanted.log_density) and end.energy == pytest.approx(wanted.energy)
            assert (trajectory.n_steps, trajectory.diverging) == (reference.n_steps, reference.diverging)
            assert trajectory.acceptance == pytest.approx(reference.acceptance)
            assert (end is trajectory.start) == (wanted is reference.start)
            ended.append((trajectory.n_steps, trajectory.diverging))
    assert len({steps for steps, _ in ended}) > 7
    assert density is not wall or any(diverging for _, diverging in ended)
