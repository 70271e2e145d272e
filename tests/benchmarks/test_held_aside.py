"""The study on sets that nobody tuned to: simulators, GPyTorch as its examples use it, and the table of paired differences."""

import sys

import numpy as np
import pandas as pd
import pytest

from benchmarks.common.gpytorch_stock import STOCK
from benchmarks.common.simulators import (
    ANGLES,
    ARM,
    BOREHOLE,
    FOR_ADVICE,
    FOR_CHOICES,
    FORMULAS,
    OTL,
    PISTON,
    SCREENED,
    SPILL,
    WING,
    borehole,
    bump_in_a_corner,
    cantilever,
    cheng_sandu,
    currin,
    decreasing,
    dette_pepelyshev,
    franke,
    goldstein_price,
    hartmann,
    ishigami,
    lim,
    otl_circuit,
    park,
    piston,
    robot_arm,
    roos_arnold,
    screening,
    simulated,
    sobol_g,
    spill,
    wing_weight,
    yuan_wahba,
    zhou,
)
from benchmarks.studies import held_aside
from pyro_dgp import Settings, sweep
from pyro_dgp.data.dataset import Dataset


def inputs(ranges, rows=50):
    low, high = np.array(list(ranges.values()), dtype=float).T
    return low + (high - low) * np.random.RandomState(3).uniform(size=(rows, len(low)))


def test_water_through_a_perfect_conductor_is_held_back_by_the_aquifers_alone():
    x = inputs(BOREHOLE)
    rw, r, tu, hu, tl, hl, _, _ = x.T
    x[:, 7] = 1e15
    np.testing.assert_allclose(
        borehole(x), 2 * np.pi * (hu - hl) / (np.log(r / rw) * (1 / tu + 1 / tl)), rtol=1e-6
    )  # resistances in a row


def test_a_circuit_of_infinite_gain_follows_its_base_voltage():
    x = inputs(OTL)
    b1, b2, f, c1, _, _ = x.T
    x[:, 5] = 1e12
    np.testing.assert_allclose(otl_circuit(x), 12 * b2 / (b1 + b2) + 0.74 + 0.74 * f / c1, rtol=1e-6)


def test_the_piston_rests_where_forces_balance():
    x = inputs(PISTON)
    for row, cycle in zip(x, piston(x), strict=True):
        weight, s, v0, k, p0, ta, t0 = row
        heat = p0 * v0 * ta / t0
        roots = np.roots([k / s**2, (p0 * s + 19.62 * weight - k * v0 / s) / s, -heat])  # of k V2/S2 + A V/S = heat
        (v,) = roots[roots > 0]
        assert cycle == pytest.approx(2 * np.pi * (weight / (k + s**2 * heat / v**2)) ** 0.5)


def test_the_weight_of_a_wing_is_the_product_of_its_powers_and_the_paint():
    x = inputs(WING)
    bare, painted = x.copy(), x.copy()
    bare[:, 9], painted[:, 9] = 0, 2
    np.testing.assert_allclose(wing_weight(painted) - wing_weight(bare), 2 * x[:, 0])
    powers = [0.758, 0.0035, 0.6, None, 0.006, 0.04, -0.3, 0.49, 0.49]
    for column, power in enumerate(powers):
        if power is not None:
            twice = bare.copy()
            twice[:, column] *= 2
            np.testing.assert_allclose(wing_weight(twice) / wing_weight(bare), 2**power)
    level = np.array([[174.0, 252.0, 7.52, 60.0, 34.0, 0.672, 0.12, 3.8, 2000.0, 0.0]])
    cosine_of_60 = 0.5  # (A / cos^2)^0.6 (100 t / cos)^-0.3 has cos^(-1.2 + 0.3)
    flat = level * np.array([1.0, 1, 1, 0, 1, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(wing_weight(level) / wing_weight(flat), cosine_of_60**-0.9)
    by_hand = 0.036 * 174**0.758 * 252**0.0035 * 7.52**0.6 * 34**0.006 * 0.672**0.04 * 12**-0.3 * 7600**0.49
    np.testing.assert_allclose(wing_weight(flat), by_hand)


def test_an_arm_reaches_as_far_as_its_parts_where_they_are_in_line_and_turns_about_its_shoulder():
    x = inputs(ARM)
    turned, straight = x + np.eye(8)[0], x.copy()
    straight[:, 1:4] = 0
    np.testing.assert_allclose(robot_arm(turned), robot_arm(x))
    np.testing.assert_allclose(robot_arm(straight), x[:, 4:].sum(1))
    square = np.array([[0.3, np.pi / 2, np.pi / 2, np.pi / 2, 1.0, 1.0, 1.0, 0.5]])
    np.testing.assert_allclose(robot_arm(square), 0.5)


def test_the_moments_of_three_angles_are_the_known_ones():
    y = ishigami(inputs(ANGLES, rows=200_000))
    variance = 0.5 + 7**2 / 8 + 0.1 * np.pi**4 / 5 + 0.01 * np.pi**8 / 18  # Ishigami and Homma 1990
    assert y.mean() == pytest.approx(3.5, abs=0.03) and y.var() == pytest.approx(variance, rel=0.01)


def test_twenty_inputs_have_the_slopes_of_the_paper_at_the_middle():
    at = np.zeros((21, 20))
    at[1:] += 1e-6 * np.eye(20)
    slopes = (screening(at)[1:] - screening(at)[0]) / 1e-6
    expected = [0, 0.05, 0.08, 0, 1, -0.03, 0.03, 0, -0.09, -0.01, -0.07, 5, 0, -0.04, 0.06, 0, -0.01, -0.03, -5, 0]
    np.testing.assert_allclose(slopes, expected, atol=1e-4)
    ends = np.array([[0.5] * 20, [-0.5] * 20])
    linear = 0.5 * sum(slope for slope, number in zip(expected, range(20), strict=True) if number not in (11,))
    np.testing.assert_allclose(screening(ends), [2.5 / 1.5 + linear + 5 + 1 / 16, -2.5 / 0.5 - linear - 5 + 1 / 16])
    assert len(SCREENED) == 20


def test_a_second_spill_at_the_place_and_time_of_the_first_doubles_it():
    x = inputs(SPILL)
    x[:, 2], x[:, 3] = 0.0, 0.0
    mass, rate = x[:, 0], x[:, 1]
    one = (
        mass / np.sqrt(4 * np.pi * rate * 40.1) * np.exp(-1 / (4 * rate * 40.1))
    )  # of mass M, by diffusion in a channel
    np.testing.assert_allclose(spill(x), 2 * np.sqrt(4 * np.pi) * one)
    far = x.copy()
    far[:, 2] = 1e6
    np.testing.assert_allclose(spill(far), np.sqrt(4 * np.pi) * one)


def test_gramacy_and_lee_add_noise_of_their_scale():
    data = simulated("gramacy-lee", 2000)
    first, second, third, fourth, _, _ = data.x.T
    noise = data.y - np.exp(np.sin((0.9 * (first + 0.48)) ** 10)) - second * third - fourth
    assert noise.std() == pytest.approx(0.05, rel=0.05) and abs(noise.mean()) < 0.005


def test_functions_of_the_second_group_have_the_values_that_are_published_or_found_by_hand():
    (least,) = hartmann(np.array([[0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]]))
    assert least == pytest.approx(-3.32237, abs=1e-5)
    assert currin(np.array([[0.216667, 0.0228407]])) == pytest.approx(13.7987, abs=1e-4)  # its largest value
    assert park(np.ones((1, 4))) == pytest.approx(25.5893, abs=1e-4)  # its largest value
    assert dette_pepelyshev(np.zeros((1, 8))) == pytest.approx(4 * 4 + 9 + 16)
    ones = 4 * (1 - 2) ** 2 + (3 - 4) ** 2 + 16 * 2**0.5 + sum(i * np.log(i - 1) for i in range(4, 9))
    assert dette_pepelyshev(np.ones((1, 8))) == pytest.approx(ones)
    assert sobol_g(np.full((1, 6), 0.5)) == pytest.approx(1 / 7)  # 1/2 2/3 ... 6/7
    assert sobol_g(np.random.RandomState(0).uniform(size=(200_000, 6))).mean() == pytest.approx(1, abs=0.005)
    bump = 0.75 + 0.75 * np.exp(-9 / 49 - 3 / 10) + 0.5 * np.exp(-25 / 4 - 1 / 4) - 0.2 * np.exp(-4 - 25)
    assert franke(np.full((1, 2), 2 / 9)) == pytest.approx(bump)


def test_functions_of_the_third_group_have_the_values_that_are_published_or_found_by_hand():
    low = goldstein_price(np.array([[0.5, 0.25]]))  # the minimum of 3, at (0, -1)
    assert low == pytest.approx((np.log(3) - 8.693) / 2.427)
    assert goldstein_price(np.array([[0.5, 0.5]])) == pytest.approx((np.log(20 * 30) - 8.693) / 2.427)
    assert roos_arnold(np.array([[0.0, 0.25, 1.0, 0.75]])) == pytest.approx(2 * 1 * 2 * 1)
    assert roos_arnold(np.random.RandomState(0).uniform(size=(200_000, 4))).mean() == pytest.approx(1, abs=0.02)
    assert zhou(np.random.RandomState(0).uniform(size=(400_000, 3))).mean() == pytest.approx(
        1, abs=0.03
    )  # two densities
    assert cheng_sandu(np.array([[0.3, 0.8]])) == pytest.approx(np.cos(1.1) * np.exp(0.24))
    assert yuan_wahba(np.array([[0.25], [1.0]])) == pytest.approx(
        [2 * (1 + np.sin(np.pi / 16)) - 2, 2 * np.exp(-30 * 0.75**2) - 2]
    )


def test_functions_of_the_fourth_group_have_the_values_of_their_formulas():
    assert lim(np.array([[0.0, 0.0], [1.0, 1.0]])) == pytest.approx(
        [(30 * 5 - 100) / 6, ((30 + 5 * np.sin(5)) * (4 + np.exp(-5)) - 100) / 6]
    )
    beam = np.array(
        [[2.0, 4.0, 29e6, 500.0, 1000.0]]
    )  # of [Wu et al. 2001]: 4 L^3 / (E w t) sqrt((Y / t^2)^2 + (X / w^2)^2)
    assert cantilever(beam) == pytest.approx(4e6 / (29e6 * 8) * np.sqrt((1000 / 16) ** 2 + (500 / 4) ** 2))
    assert cantilever(np.array([[2.35, 3.33, 29e6, 500.0, 1000.0]])) == pytest.approx(
        2.2535, rel=0.001
    )  # the limit there
    assert bump_in_a_corner(np.array([[np.sqrt(0.5), 0.0], [3.0, 4.0]])) == pytest.approx(
        [np.sqrt(0.5) * np.exp(-0.5), 3 * np.exp(-25)]
    )
    assert decreasing(np.eye(10)) == pytest.approx([*(0.2 * 0.5**k for k in range(8)), 0, 0])


def test_the_sets_of_the_textbook_are_read_from_its_package(monkeypatch, tmp_path):
    folder = tmp_path / "ISLP"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").touch()
    lines = [f"{20 + k},{k % 3},{k},car {k}" for k in range(40)]
    (folder / "data" / "Auto.csv").write_text("\n".join(["mpg,origin,weight,name", *lines]))
    monkeypatch.syspath_prepend(tmp_path)
    data = held_aside.dataset("isl-auto", None)
    assert data.name == "isl-auto" and data.target == "mpg" and data.columns == ("origin", "weight")
    assert data.y.tolist() == [20.0 + k for k in range(40)] and data.splits.sum(0).tolist() == [12] * 5
    assert not (data.splits[:, 0] & data.splits[:, 1]).all()


def test_a_set_of_the_textbook_without_its_package_is_refused(monkeypatch):
    monkeypatch.setattr("benchmarks.common.textbook_sets.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="isl-wage is a data set of the package ISLP: install it with pip"):
        held_aside.dataset("isl-wage", None)


def test_noise_has_the_scale_that_is_said():
    x, y = FOR_ADVICE["yuan-wahba"](20_000, 0)
    assert ((y - yuan_wahba(x)) / np.exp(np.sin(2 * np.pi * x[:, 0]))).std() == pytest.approx(1, rel=0.02)
    x, y = FOR_ADVICE["cheng-sandu"](20_000, 0)
    assert np.abs(y - cheng_sandu(x)).mean() == pytest.approx(0.05 * 1.1027, rel=0.03)  # of Student's t with 3 degrees
    x, y = FOR_ADVICE["franke"](20_000, 0)
    assert (y - franke(x)).std() == pytest.approx(0.1, rel=0.02)
    x, y = FOR_ADVICE["corner"](20_000, 0)
    assert (y - bump_in_a_corner(x)).std() == pytest.approx(0.001, rel=0.02) and x.min() < -1.9 and x.max() > 5.9
    x, y = FOR_ADVICE["linkletter"](20_000, 0)
    assert (y - decreasing(x)).std() == pytest.approx(0.05, rel=0.02)
    x, y = FOR_ADVICE["park"](20_000, 0)
    assert ((y - park(x)) / park(x)).std() == pytest.approx(0.1, rel=0.02)


def test_simulated_data_have_the_rows_that_their_name_says():
    kinds = (FORMULAS, FOR_CHOICES, FOR_ADVICE)
    assert len({name for kind in kinds for name in kind}) == sum(map(len, kinds))  # chosen on some, tested on others
    for name in FORMULAS:
        data = simulated(name, 300)
        assert data.name == f"{name}-300" == held_aside.dataset(f"{name}-300", None).name
        assert (~data.splits).sum(0).tolist() == [300] * 10 and len(data.y) == 1300
        assert np.isfinite(data.y).all() and not (data.splits[:, 0] & data.splits[:, 1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", STOCK)
def test_gpytorch_of_the_examples_learns_a_sine(name):
    random = np.random.RandomState(0)
    x = random.uniform(-2, 2, (200, 2))
    y = np.sin(2 * x[:, 0]) + 0.1 * random.randn(200)
    settings = Settings(epochs=150, batch_size=90, inducing=30, width=2, samples=5)
    (row,) = sweep([Dataset("sine", x, y)], [(name, STOCK[name])], settings=settings)
    noise = 0.1 / y.std()
    assert row["rmse"] < 3 * noise and row["n_train"] == 180 and row["steps"] == 300
    assert row["nll"] < 0.5


def test_sets_that_are_worse_beyond_two_errors_are_marked():
    random = np.random.RandomState(1)
    rows = []
    for dataset, loss, ratio in (("same", 0.0, 1.0), ("nll", 0.1, 1.0), ("rmse", 0.0, 1.1), ("noisy", 0.1, 1.0)):
        for split in range(5):
            spread = 0.5 if dataset == "noisy" else 0.001
            own = {"nll": 1 + loss + spread * random.randn(), "rmse": ratio * (1 + 0.001 * random.randn()), "crps": 0.5}
            rows += [{"dataset": dataset, "split": split, "method": "ours", **own}]
            rows += [{"dataset": dataset, "split": split, "method": "theirs", "nll": 1.0, "rmse": 1.0, "crps": 0.5}]
    rows.append({"dataset": "alone", "split": 0, "method": "ours", "nll": 9.0, "rmse": 9.0, "crps": 9.0})
    table = held_aside.beside(pd.DataFrame(rows), "ours", "theirs")
    assert table["worse"].fillna("").to_dict() == {
        "same": "",
        "nll": "worse",
        "rmse": "worse",
        "noisy": "",
        "median": "",
    }
    assert table.loc["rmse", "rmse"] == pytest.approx(np.log(1.1), abs=2e-3) and table.loc["nll", "splits"] == 5


def test_the_study_goes_on_in_its_file_and_reports(tmp_path, monkeypatch, capsys):
    group = held_aside.Group(("svgp", "exact-gp"), {"friedman3-300": 0})
    monkeypatch.setattr(held_aside, "GROUPS", {"zoo": group})
    monkeypatch.setattr(held_aside, "SPLITS", 1)
    monkeypatch.setattr(held_aside, "SETTINGS", Settings(epochs=2, inducing=5))
    out = tmp_path / "runs.jsonl"
    command = ["held_aside", "--data", str(tmp_path), "--out", str(out), "--methods", "svgp"]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", command)
        held_aside.main()
    assert len(out.read_text().splitlines()) == 1
    assert "friedman3-300 svgp" in capsys.readouterr().out
