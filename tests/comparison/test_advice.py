"""Advice: what pilots say of full fits, which method is taken, what is said, and rows that are not looked at."""

import math
import re
import shlex
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dgp import Dataset, Settings, advise, compare, load_named
from pyro_dgp.comparison import pilots as pilots_module
from pyro_dgp.comparison.advice import OF_SIZES
from pyro_dgp.comparison.carrying_out import Workers
from pyro_dgp.comparison.cli import main, parser
from pyro_dgp.comparison.pilots import pilot_data, pilots, trained_rows
from pyro_dgp.comparison.standings import Trial
from pyro_dgp.comparison.sweep import Run
from pyro_dgp.data.reading import with_task
from pyro_dgp.zoo.methods import METHODS

SMALL = Settings(inducing=5, epochs=1, width=2, samples=2)


def waves(rows=300, inputs=3, seed=0):
    random = np.random.RandomState(seed)
    x = random.uniform(-1, 1, (rows, inputs))
    return Dataset("waves", x, np.sin(3 * x[:, 0]) + 0.1 * random.randn(rows))


class Planted:
    """Fits that are not made: the NLL of each pilot is given, with noise that is the same for all in a row.

    :param crps: CRPS of all rows by pilot, 0.5 where it is not given.
    :param spread: standard error, over the 90 rows of the fold, of noise that is a pilot's own.
    :param seconds: of a pilot by its name.
    """

    def __init__(self, nll, spread=None, failing=(), crps=None, seconds=lambda name: 20.0):
        self.nll, self.spread, self.failing, self.made = nll, spread or {}, failing, []
        self.crps, self.seconds, self.betas = crps or {}, seconds, {}

    def carry_out(self, made):
        for number in np.random.RandomState(0).permutation(len(made)):  # processes end in any order
            pilot = made[number]
            self.made.append(pilot.name)
            if pilot.name in self.failing:
                yield pilot.failed("it broke")
                continue
            random = np.random.RandomState(pilot.run.settings.split)
            rows = int(pilot.run.dataset.splits[:, pilot.run.settings.split].sum())
            fold = pilot.run.settings.split
            own = torch.as_tensor(np.random.RandomState(100 * len(pilot.name) + fold).randn(rows))
            own = (own - own.mean()) * self.spread.get(pilot.name, 0.0) * 90**0.5
            nll = self.nll.get(pilot.name, 9.0) + torch.as_tensor(random.randn(rows)) + own
            crps = torch.full((rows,), self.crps.get(pilot.name, 0.5), dtype=torch.float64)
            self.betas[pilot.name] = pilot.run.settings.beta
            seconds = self.seconds(pilot.name)
            yield {"name": pilot.name, "fold": fold, "nll": nll, "crps": crps, "left": 0.2, "seconds": seconds}


DEEP = "dsvi-collapsed"
FLAT = {"exact-gp": 0.5, "vecchia-gp": 0.5, "svgp": 0.5, "sgpr": 0.5, "dspp": 0.55, "gamma-dgp": 0.45, DEEP: 0.45}
OF_FEW, OF_MORE = {"exact-gp", "sgpr", DEEP, "dspp"}, {"vecchia-gp", "sgpr", DEEP, "dspp"}
OF_MANY = {"vecchia-gp", "sgpr", "gamma-dgp", "dspp"}


def planted(monkeypatch, nll, data=None, settings=SMALL, **options):
    workers = Planted(FLAT | nll, **options)
    monkeypatch.setattr(Workers, "carry_out", lambda self, made: workers.carry_out(made))
    return advise(waves(rows=500) if data is None else data, settings=settings), workers


def expected_of(advice):
    return {row["name"]: row["expected"] for row in advice.rows}


def test_the_methods_have_the_scores_of_their_pilots(monkeypatch):
    found, workers = planted(monkeypatch, {})
    values = expected_of(found)
    noise = values["exact-gp"] - 0.5  # the mean of the noise that all share
    given = {"exact-gp": 0.5, "sgpr": 0.5, DEEP: 0.45, "dspp": 0.55}
    assert values == pytest.approx({name: value + noise for name, value in given.items()})
    assert sorted(workers.made) == sorted(OF_FEW) and found.method == DEEP and found.settings == SMALL
    assert found.options == f"--methods {DEEP}" and OF_SIZES in found.reasons
    by_name = {row["name"]: row for row in found.rows}
    assert {*by_name[DEEP]} == {"name", "expected", "seconds", "left"} == {*by_name["exact-gp"]} - {"behind", "error"}
    assert [row["expected"] for row in found.rows] == sorted(values.values())
    assert by_name["exact-gp"]["behind"] == pytest.approx(0.05)
    assert by_name["exact-gp"]["error"] == pytest.approx(0, abs=1e-12)


def test_a_pilot_of_a_predictive_loss_has_one_beta(monkeypatch):
    for settings, beta in ((SMALL, 0.05), (replace(SMALL, beta=0.5), 0.5)):
        found, workers = planted(monkeypatch, {}, settings=settings)
        assert workers.betas["dspp"] == beta and found.settings.beta == settings.beta
    (pilot,) = pilots(pilot_data(waves(), 0), ["ppgpr"], Settings())
    trial, whole = pilot.run.method.inference, METHODS["ppgpr"].inference
    assert trial.fallback is None and trial.validation.folds == 1 and pilot.work == Settings().num_steps(216, 100)
    assert (
        whole.cost(Settings(), 240) == 3 * 2.75 + 1
        and METHODS["svgp"].inference.for_pilot() is METHODS["svgp"].inference
    )


def test_exact_gps_are_for_few_rows_and_neighbours_and_steps_of_some_rows_for_many(monkeypatch):
    few, more = waves(rows=2222), waves(rows=2223)  # 2,000 and 2,001 training rows
    found, workers = planted(monkeypatch, {"exact-gp": -1.0}, few)
    assert sorted(workers.made) == sorted(OF_FEW) and found.method == "exact-gp" and OF_SIZES not in found.reasons
    _, workers = planted(monkeypatch, {}, more)
    assert sorted(workers.made) == sorted(OF_MORE)
    _, workers = planted(monkeypatch, {}, waves(rows=5555))  # 5,000 training rows
    assert sorted(workers.made) == sorted(OF_MORE)
    found, workers = planted(monkeypatch, {"vecchia-gp": -1.0}, waves(rows=5556))
    assert sorted(workers.made) == sorted(OF_MANY) and found.method == "vecchia-gp"
    _, workers = planted(monkeypatch, {}, waves(rows=22_222))  # 20,000 training rows
    assert sorted(workers.made) == sorted(OF_MANY)
    _, workers = planted(monkeypatch, {}, waves(rows=22_223))
    assert sorted(workers.made) == sorted(OF_MANY - {"sgpr"} | {"svgp"})


def test_a_given_number_of_rows_of_a_step_leaves_out_methods_whose_steps_have_all(monkeypatch):
    _, workers = planted(monkeypatch, {}, settings=replace(SMALL, batch_size=20))
    assert sorted(workers.made) == sorted({"exact-gp", "svgp", "gamma-dgp", "dspp"})


@pytest.mark.parametrize(("rows", "deep"), [(500, DEEP), (5600, "gamma-dgp")])
def test_a_predictive_loss_that_is_not_clearly_ahead_is_not_taken(monkeypatch, rows, deep):
    data, ahead = waves(rows=rows), {"dspp": 0.25}  # 0.2 ahead of two layers by the ELBO
    spread_of_more = 0.14 * (int(pilot_data(data, 0).splits[:, 0].sum()) / 90) ** 0.5  # less than two standard errors
    found, _ = planted(monkeypatch, ahead, data, spread={"dspp": 0.08})  # more than two standard errors
    values = expected_of(found)
    assert values["dspp"] - values[deep] == pytest.approx(-0.2) and found.method == "dspp"
    for lead, spread, crps in ((0.25, spread_of_more, 0.5), (0.25, 0.0, 0.6), (0.5, 0.0, 0.5)):
        found, _ = planted(monkeypatch, {"dspp": lead}, data, spread={"dspp": spread}, crps={"dspp": crps})
        values = expected_of(found)
        assert values["dspp"] - values[deep] == pytest.approx(lead - 0.45) and found.method == deep
        assert found.rows[0]["name"] == deep and found.rows[-1]["name"] == "dspp"
        lowest = "the lowest of the others" if lead < 0.45 else "the lowest"
        assert found.reasons[0] == f"{deep} is taken: its expected NLL is {lowest}"
        assert any(each.startswith(f"dspp is not clearly ahead of {deep} and is not taken") for each in found.reasons)
    found, _ = planted(monkeypatch, {}, data, seconds=lambda name: 1.0 if name == "dspp" else 20.0)
    assert found.method == deep  # though a full fit of dspp were quicker


def test_a_predictive_loss_of_a_given_beta_has_no_fallback(monkeypatch):
    found, _ = planted(monkeypatch, {"dspp": 0.4}, spread={"dspp": 0.2}, settings=replace(SMALL, beta=0.5))
    values = expected_of(found)
    assert values["dspp"] - values[DEEP] == pytest.approx(-0.05) and found.method == "dspp"


def test_a_predictive_loss_stands_alone_where_the_other_two_layers_fail(monkeypatch):
    found, _ = planted(monkeypatch, {"dspp": 0.49}, failing=(DEEP,))
    assert found.method == "dspp" and expected_of(found).keys() == {"exact-gp", "sgpr", "dspp"}
    found, _ = planted(monkeypatch, {}, failing=("dspp",))
    assert found.method == DEEP and not any("clearly ahead" in each for each in found.reasons)


def test_the_quickest_of_the_best_is_taken_and_what_is_close_is_said(monkeypatch):
    deep = {"dspp": 1.6, DEEP: 0.1}
    slow = lambda name: 60.0 if name in (DEEP, "dspp") else 20.0
    found, _ = planted(monkeypatch, deep | {"exact-gp": 0.11}, spread={"exact-gp": 0.1}, seconds=slow)
    assert [row["name"] for row in found.rows] == [DEEP, "exact-gp", "sgpr", "dspp"] and found.method == "exact-gp"
    assert re.match(
        r"exact-gp is taken: it is 0\.010 nats a row \(\+- 0\.(09|10|11)\d\) behind dsvi-collapsed, and is fitted in \d+\.\d s in the place of \d+\.\d$",
        found.reasons[0],
    ), found.reasons[0]
    assert "90 held-out rows cannot tell dsvi-collapsed from it" in found.reasons
    assert found.reasons[-1].startswith("all fits had one epoch as given, and so has the fit that is advised")
    further, _ = planted(monkeypatch, deep | {"exact-gp": 0.13}, spread={"exact-gp": 0.1}, seconds=slow)
    assert further.method == DEEP
    assert further.reasons[0] == "dsvi-collapsed is taken: its expected NLL is the lowest"
    exact, _ = planted(
        monkeypatch, deep | {"exact-gp": 0.11}, seconds=slow
    )  # behind by more than its error, which is 0
    assert exact.method == DEEP and not any("cannot tell" in each for each in exact.reasons)


@pytest.mark.parametrize(("quick", "slow", "taken"), [(20.0, 29.0, DEEP), (0.05, 0.9, DEEP), (20.0, 31.0, "exact-gp")])
def test_times_that_are_level_leave_the_choice_to_the_nll(monkeypatch, quick, slow, taken):
    work = {
        pilot.name: pilot.work
        for pilot in pilots(pilot_data(waves(rows=500), 0), ["exact-gp", "sgpr", DEEP, "dspp"], SMALL)
    }
    deep = {"dspp": 1.6, DEEP: 0.1, "exact-gp": 0.11}
    assert set(work) == OF_FEW
    seconds = lambda name: slow if name in (DEEP, "dspp") else quick
    monkeypatch.setattr(Trial, "work", lambda self, method: work.get(method, 1.0))
    found, _ = planted(monkeypatch, deep, spread={"exact-gp": 0.1}, seconds=seconds)
    assert [row["name"] for row in found.rows] == [DEEP, "exact-gp", "sgpr", "dspp"] and found.method == taken


def test_what_a_process_does_once_is_not_the_time_of_a_fit(monkeypatch):
    """The first fit of a process takes a second longer, whichever method it is of."""
    pilot = pilots(pilot_data(waves(rows=60), 0), ["svgp"], SMALL)[0]
    made, held_out = [], Run.held_out

    def slow_at_first(run):
        made.append(run)
        time.sleep(1.0 if len(made) == 1 else 0.0)
        return held_out(run)

    monkeypatch.setattr(Run, "held_out", slow_at_first)
    monkeypatch.setattr(pilots_module, "_FITTED", set(), raising=False)
    rows = [pilot.row(), pilot.row()]
    assert len(made) == 3 and all(row["seconds"] < 1.0 for row in rows)
    assert torch.equal(rows[0]["nll"], rows[1]["nll"])


@pytest.mark.parametrize("batch_size", [None, 20])
def test_the_first_short_fit_is_one_of_few_rows_and_steps(monkeypatch, batch_size):
    """It is as short for many rows, also of sorted ones and of inputs that seldom differ."""
    made, held_out = [], Run.held_out

    def seen(run):
        made.append((len(run.dataset.x), run.settings.num_steps(200, run.settings.batch_size or 500)))
        return held_out(run)

    rows = 2_000
    x = np.stack([np.arange(rows), np.arange(rows) == 1], axis=1).astype(float)
    data = pilot_data(Dataset("sorted", x, np.sin(x[:, 0])), 0)
    monkeypatch.setattr(Run, "held_out", seen)
    monkeypatch.setattr(pilots_module, "_FITTED", set())
    pilots_module._prepare(pilots(data, ["svgp"], replace(SMALL, batch_size=batch_size))[0].run)
    assert made == [(250, 1)]


def test_a_method_that_fails_is_named_and_the_others_go_on(monkeypatch):
    found, _ = planted(monkeypatch, {"exact-gp": -1.0}, failing=(DEEP, "dspp"))
    assert set(expected_of(found)) == {"exact-gp", "sgpr"}
    assert {f"{DEEP} failed: it broke", "dspp failed: it broke"} == set(found.reasons[-2:])
    with pytest.raises(ValueError, match="no method could be fitted to 'waves'; [a-z, -]+ ended with: it broke"):
        planted(monkeypatch, {}, failing=tuple(FLAT))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_density_that_is_no_number_is_a_failure(monkeypatch, value):
    found, _ = planted(monkeypatch, {"exact-gp": -1.0, "dspp": value})
    assert set(expected_of(found)) == {"exact-gp", "sgpr", DEEP}
    assert "dspp failed: its density at held-out rows is not finite" in found.reasons
    with pytest.raises(ValueError, match="no method could be fitted"):
        planted(monkeypatch, dict.fromkeys(FLAT, value))


def test_folds_share_no_row_and_leave_the_test_rows_out():
    few = pilot_data(waves(rows=100), 1)
    assert few.splits.shape == (90, 3) and few.splits.sum(0).tolist() == [18, 18, 18]
    assert few.splits.sum(1).max() == 1 and trained_rows(few) == 72
    data = waves(rows=300)
    held = pilot_data(data, 1)
    assert held.splits.sum(0).tolist() == [54] and trained_rows(held) == 216
    test = {tuple(row) for row in data.x} - {tuple(row) for row in held.x}
    order = np.random.RandomState(1).permutation(300)[:30]
    assert test == {tuple(row) for row in data.x[order]}
    for rows, count in ((28, 5), (1000, 180), (1500, 200), (3000, 300)):  # a fifth, 200, a ninth of the training rows
        assert pilot_data(waves(rows=rows), 0).splits.sum(0)[0] == count
    assert pilot_data(waves(rows=20_000), 0).splits.sum(0).tolist() == [1000]


def test_inputs_that_are_constant_in_a_fold_are_left_out_of_pilots():
    data = waves(rows=100)
    rare = np.zeros(100)
    rare[np.flatnonzero(pilot_mask(data))[0]] = 1.0
    held = pilot_data(replace(data, x=np.column_stack([data.x, rare]), columns=("a", "b", "c", "rare")), 0)
    assert held.columns == ("a", "b", "c") and held.x.shape == (90, 3)
    with pytest.raises(ValueError, match="the inputs of 'waves' are constant in parts of the training rows"):
        pilot_data(replace(data, x=rare[:, None]), 0)
    few = np.ones((100, 1), dtype=bool)
    few[:5] = False
    with pytest.raises(ValueError, match="split 0 of 'waves' has 5 training rows: advice needs 9 at least"):
        advise(replace(data, splits=few))


def pilot_mask(data):
    """The rows of the first fold, among all rows."""
    train = np.setdiff1d(np.arange(100), np.random.RandomState(0).permutation(100)[:10])
    mask = np.zeros(100, dtype=bool)
    mask[train[pilot_data(data, 0).splits[:, 0]]] = True
    return mask


def test_processes_give_the_advice_of_one():
    one, two = (advise(waves(rows=60), settings=SMALL, jobs=jobs) for jobs in (1, 2))
    assert expected_of(one) == expected_of(two) and one.reasons == two.reasons


def test_targets_of_few_values_are_said(monkeypatch):
    data = waves(rows=300)
    found, _ = planted(monkeypatch, {"exact-gp": 0.0}, replace(data, y=np.round(2 * data.y)))
    assert any("a density can put a spike on each of them" in each for each in found.reasons)


def test_spikes_on_few_values_do_not_put_a_predictive_loss_ahead(monkeypatch):
    few = replace(waves(rows=500), y=np.round(2 * waves(rows=500).y))
    spikes = {"dspp": -1.0, DEEP: 0.25}
    for data, method in ((few, DEEP), (waves(rows=500), "dspp")):
        found, _ = planted(monkeypatch, spikes, data)
        assert found.method == method
    found, _ = planted(monkeypatch, spikes, few, crps={"dspp": 0.4})  # ahead by its CRPS too
    assert found.method == "dspp"


def test_test_rows_change_nothing():
    data = waves(rows=60)
    test = np.random.RandomState(0).permutation(60)[:6]
    other = replace(data, x=data.x.copy(), y=data.y.copy())
    other.x[test], other.y[test] = 7.0, -5.0
    first, second = (advise(each, settings=SMALL) for each in (data, other))
    assert expected_of(first) == expected_of(second) and first.reasons == second.reasons


@pytest.mark.parametrize("kind", ["binary", "multiclass", "counts", "regression of two"])
def test_every_task_has_advice(kind):
    x = np.random.RandomState(0).randn(60, 2)
    y = {
        "binary": (x[:, 0] > 0) * 1.0,
        "multiclass": (x[:, 0] > 0) + (x[:, 1] > 0) * 1.0,
        "counts": np.round(np.exp(x[:, 0])),
        "regression of two": np.stack([x[:, 0], x.sum(1)], 1),
    }[kind]
    data = with_task(Dataset("d", x, y, outputs=("a", "b") if y.ndim == 2 else ()), kind.split()[0])
    found = advise(data, settings=SMALL)
    assert {*expected_of(found)} == {"svgp", "dsvi", "dspp"}
    has_mean = kind != "multiclass"
    assert all(("left" in row) == has_mean for row in found.rows)
    expected = {"binary": ("binary", 2, 1), "multiclass": ("multiclass", 3, 1), "counts": ("counts", 0, 1)}
    chosen = found.settings
    assert (chosen.task, chosen.classes, chosen.outputs) == expected.get(kind, ("regression", 0, 2))
    assert all(math.isfinite(row["expected"]) for row in found.rows)


def test_targets_that_nothing_explains_are_said():
    random = np.random.RandomState(0)
    data = Dataset("noise", random.randn(300, 2), random.randn(300))
    found = advise(data, settings=replace(SMALL, epochs=20))
    (sentence,) = [each for each in found.reasons if "of the variance of the target or more" in each]
    assert re.match(r"the methods leave (9\d|1\d\d)% of the variance of the target or more", sentence)


def test_the_command_prints_the_next_command(monkeypatch, capsys):
    workers = Planted(FLAT | {DEEP: 0.0})
    monkeypatch.setattr(Workers, "carry_out", lambda self, made: workers.carry_out(made))
    options = ["--split", "3", "--inducing", "40", "--dtype", "float32"]
    assert main(["advise", "--data", "diabetes", *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("'diabetes': 442 rows, 10 inputs, target 'progression', real numbers\n")
    command = printed.out.strip().splitlines()[-1]
    assert (
        command
        == "pyro-dgp compare --data diabetes --inducing 40 --split 3 --dtype float32 --methods dsvi-collapsed --output diabetes-dsvi-collapsed"
    )
    parsed = parser().parse_args(shlex.split(command)[1:])
    assert (parsed.methods, parsed.inducing, parsed.split) == (DEEP, 40, 3)
    assert "exact-gp, fold 0: NLL " in printed.err
    assert main(["advise", "--data", "nowhere.csv"]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_real_fits_find_what_one_layer_misses():
    """A step in one of two inputs, with little noise: two layers are expected to be ahead of one."""
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, (300, 1))
    data = Dataset("step", x, np.sign(x[:, 0]) + 0.05 * random.randn(300))
    found = advise(data, settings=Settings(inducing=15, width=1, samples=4, epochs=150))
    values = expected_of(found)
    deep = (DEEP, "dspp")
    assert min(values[name] for name in deep) < min(value for name, value in values.items() if name not in deep)
    assert found.method in deep


def test_the_next_command_can_be_pasted(monkeypatch, capsys, tmp_path):
    data = waves(rows=40)
    path = tmp_path / "house prices.csv"
    lines = ["a,b,c,Sale Price", *(",".join(map(str, (*x, y))) for x, y in zip(data.x, data.y, strict=True))]
    path.write_text("\n".join(lines))
    workers = Planted(FLAT | {"exact-gp": 0.0})
    monkeypatch.setattr(Workers, "carry_out", lambda self, made: workers.carry_out(made))
    assert main(["advise", "--data", str(path), "--target", "Sale Price", "--task", "regression"]) == 0
    command = capsys.readouterr().out.strip().splitlines()[-1]
    parsed = parser().parse_args(shlex.split(command)[1:])
    assert (parsed.data, parsed.target, parsed.task, parsed.methods) == (path, "Sale Price", "regression", "exact-gp")
    workers.nll |= {"gamma-dgp": -2.0, "exact-gp": 0.5}
    options = ["--layers", "4", "--inducing", "2", "--batch-size", "20", "--seed", "7", "--kernel", "rbf"]
    assert main(["advise", "--data", str(path), *options]) == 0
    command = capsys.readouterr().out.strip().splitlines()[-1]
    assert command.endswith(
        " --kernel rbf --batch-size 20 --seed 7 --methods gamma-dgp --output 'house prices-gamma-dgp'"
    )
    assert parser().parse_args(shlex.split(command)[1:]).layers == 4


def test_what_advice_is_not_for_is_refused_in_a_sentence():
    for settings, sentence in (
        (Settings(minutes=1.0), "the fits of advise have all steps: leave minutes out"),
        (Settings(preset="meng2024"), "advise tries the library's own models: leave the preset out"),
        (Settings(layers=0), "layers must be at least 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            advise(waves(), settings=settings)
    with pytest.raises(ValueError, match="at least 10 are needed"):
        advise(waves(rows=9))


def test_tensors_serve_and_two_values_are_said():
    x = torch.randn(40, 2)
    data = Dataset("d", x.numpy(), (x[:, 0] > 0).double().numpy())
    found = advise(data, settings=SMALL)
    assert any(each.startswith("the target has two values and is treated as a number") for each in found.reasons)
    constant = replace(data, y=np.zeros(40))
    said = []
    with pytest.raises(ValueError, match="the target of 'd' is constant in the training part"):
        advise(constant, settings=SMALL, say=said.append)
    assert said == []


def test_the_advised_settings_fit_the_task_in_a_comparison_of_arrays():
    x = np.random.RandomState(0).randn(60, 2)
    data = with_task(Dataset("d", x, (x[:, 0] > 0) * 1.0), "binary")
    found = advise(data, settings=SMALL)
    result = compare(None, data.x, data.y, methods=[found.method], settings=found.settings, say=lambda _: None)
    assert "accuracy" in result.rows[0] and "rmse" not in result.rows[0]


@pytest.mark.usefixtures("unannotated")
def test_arrays_of_torch_are_taken():
    x = torch.randn(40, 2)
    assert advise(Dataset("d", x, x[:, 0]), settings=SMALL).rows  # type: ignore[arg-type]


def test_a_path_is_no_data_set():
    with pytest.raises(
        TypeError, match=r"advise takes inputs and targets, advise\(x, y\), or a data set, .* not one str"
    ):
        advise("prices.csv")
    with pytest.raises(TypeError, match="a data set has its own targets: leave y out"):
        advise(waves(), waves().y)


@pytest.mark.parametrize("kind", ["array", "tensor", "table"])
def test_inputs_and_targets_are_fitted_as_their_data_set_is(monkeypatch, kind):
    data, made = waves(rows=60), []
    x, y = {
        "array": (data.x, data.y),
        "tensor": (torch.as_tensor(data.x), torch.as_tensor(data.y)),
        "table": (pd.DataFrame(data.x, columns=["a", "b", "c"]), pd.Series(data.y)),
    }[kind]
    workers = Planted(FLAT)

    def carry_out(self, pilots):
        made.append(pilots)
        return workers.carry_out(pilots)

    monkeypatch.setattr(Workers, "carry_out", carry_out)
    found = [advise(*given, settings=SMALL) for given in ((x, y), (data,))]
    assert expected_of(found[0]) == expected_of(found[1])
    (own, others) = ([pilot.run.dataset for pilot in pilots] for pilots in made)
    for one, other in zip(own, others, strict=True):
        assert np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)
        assert np.array_equal(one.splits, other.splits) and one.columns == (("a", "b", "c") if kind == "table" else ())


def test_the_task_of_inputs_and_targets_is_that_of_the_settings(monkeypatch):
    data, workers = waves(rows=60), Planted(FLAT | {"dsvi": 0.1})
    monkeypatch.setattr(Workers, "carry_out", lambda self, pilots: workers.carry_out(pilots))
    found = advise(data.x, data.y > 0, settings=replace(SMALL, task="binary"))
    assert {*expected_of(found)} == {"svgp", "dsvi", "dspp"} and found.settings.task == "binary"


def test_few_rows_have_advice_without_warnings():
    found = advise(waves(rows=12), settings=replace(SMALL, inducing=128))
    assert all(math.isfinite(row["expected"]) and math.isfinite(row.get("left", 0.0)) for row in found.rows)
    assert found.settings.inducing == 128


def test_data_sets_by_name_serve_too():
    assert advise(load_named("diabetes"), settings=SMALL).seconds > 0
