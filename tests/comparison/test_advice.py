"""Advice: what short fits say of full ones, which form is taken, what is said, and rows that are not looked at."""

import math
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch

from pyro_dgp import Dataset, Settings, advise, compare, load_named
from pyro_dgp.comparison.advice import FALLBACKS
from pyro_dgp.comparison.carrying_out import Workers
from pyro_dgp.comparison.cli import main, parser
from pyro_dgp.comparison.pilots import Candidate, pilot_data, pilots, trained_rows
from pyro_dgp.data.reading import with_task
from pyro_dgp.zoo.by_guide import PILOT_BETAS
from pyro_dgp.zoo.methods import METHODS

SMALL = Settings(inducing=5, epochs=1, width=2, samples=2)


def waves(rows=300, inputs=3, seed=0):
    random = np.random.RandomState(seed)
    x = random.uniform(-1, 1, (rows, inputs))
    return Dataset("waves", x, np.sin(3 * x[:, 0]) + 0.1 * random.randn(rows))


class Planted:
    """Fits that are not made: the NLL of each pilot is given, with noise that is the same for all in a row.

    :param crps: CRPS of all rows by pilot, 0.5 where it is not given.
    :param spread: standard error, over the 180 rows of the fold, of noise that is a pilot's own.
    :param chosen: beta that each pilot chooses where it is given none.
    """

    def __init__(self, nll, spread=None, failing=(), crps=None, chosen=0.05):
        self.nll, self.spread, self.failing, self.made = nll, spread or {}, failing, []
        self.crps, self.chosen, self.betas = crps or {}, chosen, {}

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
            own = (own - own.mean()) * self.spread.get(pilot.name, 0.0) * 180**0.5
            nll = self.nll.get(pilot.name, 9.0) + torch.as_tensor(random.randn(rows)) + own
            crps = torch.full((rows,), self.crps.get(pilot.name, 0.5), dtype=torch.float64)
            row = {"name": pilot.name, "fold": fold, "nll": nll, "crps": crps, "left": 0.2, "seconds": 20.0}
            beta = pilot.run.settings.beta
            self.betas[pilot.name] = beta
            yield row | {"beta": self.chosen if beta is None else beta}


FLAT = {"exact-gp": 0.5, "svgp": 0.5, "ppgpr": 0.4, "ppgpr, short": 0.5, "dsvi": 0.45, "dspp, short": 0.52}
FLAT |= {"dsvi, short": 0.55, "gamma-dgp, short": 0.57, "aep, short": 0.6}
ALL = {"exact-gp", "svgp", "ppgpr", "dsvi", "gamma-dgp", "aep", "dspp"}


def planted(monkeypatch, nll, data=None, settings=SMALL, **options):
    workers = Planted(FLAT | nll, **options)
    monkeypatch.setattr(Workers, "carry_out", lambda self, made: workers.carry_out(made))
    return advise(waves(rows=1000) if data is None else data, settings=settings), workers


def expected_of(advice):
    return {row["name"]: row["expected"] for row in advice.rows}


def test_a_short_fit_gains_what_the_rest_of_the_steps_brings_one_layer(monkeypatch):
    found, _ = planted(monkeypatch, {"svgp, inducing 10, short": 1.0, "ppgpr, inducing 10, short": 1.0})
    values = expected_of(found)
    base = values["ppgpr"] - 0.4  # the mean of the noise that all share
    assert values == pytest.approx(
        {"exact-gp": 0.5 + base, "svgp": 0.5 + base, "ppgpr": 0.4 + base, "dsvi": 0.45 + base, "dspp": 0.42 + base}
        | {"gamma-dgp": 0.47 + base, "aep": 0.5 + base}  # what the other steps bring dsvi, the best of the three
    )
    by_name = {row["name"]: row for row in found.rows}
    assert (
        by_name["ppgpr"].keys()
        == {"name", "expected", "seconds", "left"}
        == {*by_name["dsvi"], "left"} - {"behind", "error"}
    )
    assert [row["expected"] for row in found.rows] == sorted(values.values())
    (dspp,) = [row for row in found.rows if row["name"] == "dspp"]
    assert dspp["behind"] == pytest.approx(0.02) and dspp["error"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("gain", "spread", "is_taken"),
    [(0.3, 0.0, True), (0.101, 0.0, True), (0.099, 0.0, False), (0.3, 0.12, True), (0.3, 0.18, False)],
)
def test_a_larger_form_must_be_ahead_by_more_than_its_error(monkeypatch, gain, spread, is_taken):
    deep = {"dsvi": 0.1, "dsvi, short": 0.5, "dsvi, layers 3, short": 0.5 - gain, "dsvi, width 4, short": 0.6}
    deep["dsvi, inducing 10, short"] = 0.5
    found, workers = planted(monkeypatch, deep, spread={"dsvi, layers 3, short": spread})
    assert {"dsvi, layers 3, short", "dsvi, width 4, short", "dsvi, inducing 10, short"} <= set(workers.made)
    assert found.method == "dsvi" and found.settings == replace(SMALL, layers=3 if is_taken else 2)
    assert found.options == "--methods dsvi" + (" --layers 3" if is_taken else "")
    (sentence,) = [each for each in found.reasons if each.startswith("layers 3")]
    error = re.search(r"\+- ([\d.]+)\)", sentence).group(1)
    assert sentence.startswith(f"layers 3: ahead by {gain:.3f} nats a row")
    assert float(error) == pytest.approx(spread, rel=0.2)
    assert sentence.endswith("it is taken" if is_taken else "it is not taken")


def test_the_best_of_several_larger_forms_is_taken(monkeypatch):
    deep = {"dspp, short": 0.0, "dspp, layers 3, short": -0.1, "dspp, width 4, short": -0.4}
    deep["dspp, inducing 10, short"] = -0.2
    found, _ = planted(monkeypatch, deep)
    assert found.options == "--methods dspp --width 4" and found.settings.width == 4 and found.settings.layers == 2
    assert sum(each.endswith("it is taken") for each in found.reasons) == 1


def test_larger_forms_have_the_beta_that_their_base_chose(monkeypatch):
    deep = {"dspp, short": 0.0} | {f"dspp, {form}, short": 9.0 for form in ("layers 3", "width 4", "inducing 10")}
    _, workers = planted(monkeypatch, deep, chosen=0.05)
    assert workers.betas["dspp, layers 3, short"] == workers.betas["dspp, inducing 10, short"] == 0.05
    assert workers.betas["dspp, short"] is None and workers.betas["ppgpr"] is None
    _, workers = planted(monkeypatch, {"dsvi": 0.0}, chosen=None)
    assert workers.betas["dsvi, layers 3, short"] is None


def test_the_best_of_a_race_is_fitted_with_all_steps(monkeypatch):
    found, workers = planted(monkeypatch, {"aep, short": 0.5, "aep": -0.2, "exact-gp": 9.0})
    assert {"dsvi", "gamma-dgp"}.isdisjoint(workers.made) and found.method == "aep"
    values = expected_of(found)
    assert values["aep"] - values["dsvi"] == pytest.approx(-0.05)  # as after a quarter of the steps
    assert {"aep, layers 3, short", "aep, inducing 10, short"} <= set(workers.made)
    close = {"aep, short": 0.539, "aep": 0.1}  # dsvi is behind by 0.011, and is no more than its error behind
    found, workers = planted(monkeypatch, close, spread={"dsvi, short": 0.02}, settings=replace(SMALL, width=3))
    assert found.method in ("aep", "dsvi") and f"{found.method}, layers 3, short" in workers.made
    found, workers = planted(monkeypatch, {"aep, short": 0.5, "exact-gp": 9.0}, failing=("aep",))
    assert "dsvi" in workers.made and "aep failed: it broke" in found.reasons
    assert set(expected_of(found)) == ALL  # aep after a quarter of the steps is judged as it was


def test_forms_that_cannot_serve_the_data_are_not_tried(monkeypatch):
    deep = {"dsvi": 0.0, "dsvi, short": 0.3, "dsvi, layers 3, short": 0.5}
    found, workers = planted(monkeypatch, deep, waves(rows=1000, inputs=2), replace(SMALL, inducing=180))
    assert set(workers.made) == set(FLAT)  # 720 rows
    assert "no larger form of dsvi was tried: the data are too few to tell sizes apart" in found.reasons
    _, workers = planted(monkeypatch, deep, waves(rows=1000, inputs=2), replace(SMALL, inducing=60))
    assert set(workers.made) == {*FLAT, "dsvi, layers 3, short", "dsvi, inducing 120, short"}


def test_the_exact_gp_has_no_larger_form_and_is_for_few_rows(monkeypatch):
    found, workers = planted(monkeypatch, {"exact-gp": -1.0})
    assert (found.method, set(workers.made)) == ("exact-gp", set(FLAT))
    many = {"ppgpr, inducing 10, short": 0.0}
    found, workers = planted(monkeypatch, many, waves(rows=2000))
    assert not {"exact-gp", "aep", "aep, short"} & set(workers.made)
    assert found.options == "--methods ppgpr --inducing 10"


def test_with_many_rows_the_exact_gp_gives_way_to_its_approximation_by_neighbours(monkeypatch):
    few, many = waves(rows=1111), waves(rows=1112)  # 1,000 and 1,001 training rows
    _, workers = planted(monkeypatch, {"exact-gp": -1.0}, few)
    assert "exact-gp" in workers.made and "vecchia-gp" not in workers.made
    found, workers = planted(monkeypatch, {"vecchia-gp": -1.0}, many)
    assert set(workers.made) == {"vecchia-gp"} | set(FLAT) - {"exact-gp", "aep, short"}
    assert found.options == "--methods vecchia-gp"
    assert "no larger form of vecchia-gp was tried: it has neither layers nor inducing points" in found.reasons


def test_a_predictive_loss_that_is_not_clearly_ahead_falls_back(monkeypatch):
    clear = {"ppgpr": 0.3, "ppgpr, short": 0.5, "dspp, short": 0.51, "dsvi": 0.5}
    clear |= {f"dspp, {form}, short": 9.0 for form in ("layers 3", "width 4", "inducing 10")}
    found, _ = planted(monkeypatch, clear, spread={"ppgpr": 0.03})  # 0.2 ahead of svgp and of dsvi
    values = expected_of(found)
    assert found.method == "ppgpr" and values["dspp"] == pytest.approx(values["dsvi"] - 0.19)
    found, _ = planted(monkeypatch, clear, spread={"ppgpr": 0.1})  # two standard errors
    values = expected_of(found)
    assert values["ppgpr"] == values["svgp"] and values["dspp"] == values["dsvi"]
    assert {
        f"{name} is not clearly ahead of {elbo}, and would fall back on it" for name, elbo in FALLBACKS.items()
    } <= set(found.reasons)
    assert found.method in ("exact-gp", "svgp")


def test_a_predictive_loss_that_pays_for_its_density_by_the_crps_falls_back(monkeypatch):
    """As a full fit does: spikes of density on the few values of a target gain NLL and lose CRPS."""
    spiky = {"dspp, short": -3.0} | {f"dspp, {form}, short": 9.0 for form in ("layers 3", "width 4", "inducing 10")}
    found, _ = planted(monkeypatch, spiky, crps={"dspp, short": 0.5})
    assert found.method == "dspp"
    found, _ = planted(monkeypatch, spiky, crps={"dspp, short": 0.6})
    values = expected_of(found)
    assert found.method != "dspp" and values["dspp"] == values["dsvi"]
    shorter = {"dspp, short": 0.59, "ppgpr, short": 0.6}  # the other steps bring one layer a sixth, and so two layers
    found, _ = planted(monkeypatch, spiky, crps=shorter)
    assert found.method == "dspp"


def test_the_quickest_of_the_best_is_taken_and_what_is_close_is_said(monkeypatch):
    deep = {"dspp, short": 0.1, "dspp, layers 3, short": 1.0, "dspp, width 4, short": 1.0}
    deep |= {
        "dspp, inducing 10, short": 1.0,
        "ppgpr": 0.41,
        "ppgpr, short": 0.8,
        "svgp": 1.5,
        "dsvi": 2.2,
    }
    whole = replace(SMALL, batch_size=1000)  # one step, whatever the rows
    # dspp: 0.1 + 0.41 - 0.8 = -0.29, ahead of dsvi by 2.5
    found, _ = planted(monkeypatch, deep | {"exact-gp": -0.28}, spread={"exact-gp": 0.1}, settings=whole)
    ratio = METHODS["dspp"].inference.cost(whole, 900) / 2  # a pilot makes a run of each of two betas
    times = {row["name"]: row["seconds"] for row in found.rows}
    own = METHODS["ppgpr"].inference.cost(whole, 900) / 2
    assert times == dict.fromkeys(ALL, 20) | {"ppgpr": 20 * own, "dspp": 20 * ratio}  # one epoch is no quarter
    assert [row["name"] for row in found.rows[:2]] == ["dspp", "exact-gp"] and found.method == "exact-gp"
    place = f"exact-gp is taken: it is 0.010 nats a row (+- 0.1{{2}}) behind dspp, and is fitted in 20 s in the place of {20 * ratio:.0f}"
    assert re.match(re.escape(place).replace(re.escape("0.1{2}"), r"0\.(09|10|11)\d"), found.reasons[0]), found.reasons[
        0
    ]
    assert "180 held-out rows cannot tell dspp from it" in found.reasons
    assert found.reasons[2] == "no larger form of exact-gp was tried: it has neither layers nor inducing points"
    estimates = ("dspp", "gamma-dgp", "aep")
    assert found.reasons[3:6] == [
        f"the expected NLL of {name} is an estimate, from a quarter of the steps" for name in estimates
    ]
    assert found.reasons[6].startswith("all fits had 1 epochs as given, which may be fewer than they need")
    further, _ = planted(monkeypatch, deep | {"exact-gp": -0.26}, spread={"exact-gp": 0.1}, settings=whole)
    assert further.options == "--methods dspp" and further.reasons[0] == "dspp is taken: its expected NLL is the lowest"
    exact, _ = planted(
        monkeypatch, deep | {"exact-gp": -0.28}, settings=whole
    )  # behind by more than its error, which is 0
    assert exact.method == "dspp" and not any("cannot tell" in each for each in exact.reasons)


def test_a_candidate_that_fails_is_named_and_the_others_go_on(monkeypatch):
    found, _ = planted(monkeypatch, {"exact-gp": -1.0}, failing=("dsvi, short", "svgp"))
    assert set(expected_of(found)) == ALL - {"dsvi", "svgp"}
    assert {"dsvi, short failed: it broke", "svgp failed: it broke"} == set(found.reasons[-2:])
    found, _ = planted(monkeypatch, {"exact-gp": -1.0}, failing=("ppgpr",))
    assert set(expected_of(found)) == ALL - {"ppgpr", "dspp"}
    assert found.reasons[-2:] == ["ppgpr failed: it broke", "dspp is not judged, since ppgpr failed"]
    with pytest.raises(ValueError, match="no method could be fitted to 'waves'; [a-z, -]+ ended with: it broke"):
        planted(monkeypatch, {}, failing=tuple(FLAT))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_density_that_is_no_number_is_a_failure(monkeypatch, value):
    found, _ = planted(monkeypatch, {"exact-gp": -1.0, "ppgpr": value, "dsvi, short": value})
    assert (
        set(expected_of(found)) == ALL - {"ppgpr", "dsvi", "dspp"}
        and "dspp is not judged, since ppgpr failed" in found.reasons
    )
    assert "ppgpr failed: its density at held-out rows is not finite" in found.reasons
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


def test_points_are_doubled_where_there_are_inputs_for_them(monkeypatch):
    data = waves(rows=1000)
    few, own = replace(data, x=np.round(data.x[:, :1])), {"svgp": 0.0, "svgp, short": 0.0}
    _, workers = planted(monkeypatch, own, few, replace(SMALL, inducing=128))
    assert set(workers.made) == set(FLAT) - {"aep"}
    found, _ = planted(monkeypatch, own | {"svgp, inducing 80, short": -9.0}, data, replace(SMALL, inducing=40))
    assert found.options == "--methods svgp --inducing 80"


def test_processes_give_the_advice_of_one():
    one, two = (advise(waves(rows=60), settings=SMALL, jobs=jobs) for jobs in (1, 2))
    assert expected_of(one) == expected_of(two) and one.reasons == two.reasons


def test_targets_of_few_values_are_said(monkeypatch):
    data = waves(rows=300)
    found, _ = planted(monkeypatch, {"exact-gp": 0.0}, replace(data, y=np.round(2 * data.y)))
    assert any("a density can put a spike on each of them" in each for each in found.reasons)


def test_test_rows_change_nothing():
    data = waves(rows=60)
    test = np.random.RandomState(0).permutation(60)[:6]
    other = replace(data, x=data.x.copy(), y=data.y.copy())
    other.x[test], other.y[test] = 7.0, -5.0
    first, second = (advise(each, settings=SMALL) for each in (data, other))
    assert expected_of(first) == expected_of(second) and first.reasons == second.reasons


def test_a_short_fit_has_a_quarter_of_the_steps_and_a_pilot_no_search():
    settings = Settings(epochs=40)
    assert Candidate("dsvi", changes={"layers": 3}).short(settings, 900) == replace(settings, epochs=10, layers=3)
    assert Candidate("dspp").short(Settings(), 900).steps(900, 100) == pytest.approx(500, abs=9)
    (pilot, *_) = pilots(pilot_data(waves(), 0), [Candidate("dspp")], settings, is_short=True)
    trial, whole = pilot.run.method.inference, METHODS["dspp"].inference
    assert trial.validation.betas == PILOT_BETAS and trial.fallback is None and trial.validation.folds == 1
    assert (trial.cost(settings, 1000), whole.cost(settings, 1000)) == (2.0, 3 * 2.75 + 1)
    assert whole.cost(settings, 890) == 1.0 and whole.cost(replace(settings, beta=0.1), 890) == 4.0
    amortized = METHODS["avdgp-ar2p"].inference.for_pilot()
    assert amortized.cost(settings, 240) == 1.0 and amortized.validation.betas == (1.0,)
    assert METHODS["svgp"].inference.for_pilot() is METHODS["svgp"].inference


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
    assert set(expected_of(found)) == {"svgp", "ppgpr", "dsvi"}
    has_mean = kind != "multiclass"
    assert all(("left" in row) == (has_mean and row["name"] in ("svgp", "ppgpr", "dsvi")) for row in found.rows)
    assert "dspp is not tried: a full fit to so few rows is that of dsvi" in found.reasons
    expected = {"binary": ("binary", 2, 1), "multiclass": ("multiclass", 3, 1), "counts": ("counts", 0, 1)}
    chosen = found.settings
    assert (chosen.task, chosen.classes, chosen.outputs) == expected.get(kind, ("regression", 0, 2))
    assert all(math.isfinite(row["expected"]) for row in found.rows)


def test_targets_that_nothing_explains_are_said():
    random = np.random.RandomState(0)
    data = Dataset("noise", random.randn(100, 2), random.randn(100))
    found = advise(data, settings=replace(SMALL, epochs=60))
    (sentence,) = [each for each in found.reasons if "of the variance of the target or more" in each]
    assert re.match(r"the methods leave (9\d|1\d\d)% of the variance of the target or more", sentence)


def test_the_command_prints_the_next_command(monkeypatch, capsys):
    workers = Planted(
        FLAT
        | {"dsvi": 0.0, "dsvi, short": 0.0}
        | {f"dsvi, {form}, short": -0.5 for form in ("layers 3", "width 10", "inducing 80")}
    )
    monkeypatch.setattr(Workers, "carry_out", lambda self, made: workers.carry_out(made))
    options = ["--split", "3", "--inducing", "40", "--dtype", "float32"]
    assert main(["advise", "--data", "diabetes", *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("'diabetes': 442 rows, 10 inputs, target 'progression', real numbers\n")
    command = printed.out.strip().splitlines()[-1]
    assert (
        command
        == "pyro-dgp compare --data diabetes --inducing 40 --split 3 --dtype float32 --methods dsvi --layers 3 --output diabetes-dsvi"
    )
    parsed = parser().parse_args(shlex.split(command)[1:])
    assert (parsed.methods, parsed.layers, parsed.split) == ("dsvi", 3, 3)
    assert "exact-gp, fold 0: NLL " in printed.err
    assert main(["advise", "--data", "nowhere.csv"]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_real_fits_find_what_one_layer_misses():
    """A step in one of two inputs, with little noise: two layers are expected to be ahead of one."""
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, (160, 1))
    data = Dataset("step", x, np.sign(x[:, 0]) + 0.05 * random.randn(160))
    found = advise(data, settings=Settings(inducing=15, width=1, epochs=800))
    values = expected_of(found)
    deep = ("dsvi", "gamma-dgp", "aep")
    assert min(values[name] for name in deep) < min(values["svgp"], values["ppgpr"], values["exact-gp"])
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
    workers.nll |= {"dsvi": -2.0, "dsvi, short": -2.0, "dsvi, layers 5, short": -3.0, "exact-gp": 0.5}
    options = ["--layers", "4", "--inducing", "2", "--batch-size", "20", "--seed", "7", "--kernel", "rbf"]
    assert main(["advise", "--data", str(path), *options]) == 0
    command = capsys.readouterr().out.strip().splitlines()[-1]
    assert command.endswith(
        " --kernel rbf --batch-size 20 --seed 7 --methods dsvi --layers 5 --output 'house prices-dsvi'"
    )
    assert parser().parse_args(shlex.split(command)[1:]).layers == 5


def test_what_advice_is_not_for_is_refused_in_a_sentence():
    for settings, sentence in (
        (Settings(minutes=1.0), "the fits of advise have shares of the steps: leave minutes out"),
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


@pytest.mark.usefixtures("unannotated")
def test_a_path_is_no_data_set():
    with pytest.raises(TypeError, match=r"advise takes a data set, such as load\('prices.csv'\)"):
        advise("prices.csv")


def test_few_rows_have_advice_without_warnings():
    found = advise(waves(rows=12), settings=replace(SMALL, inducing=128))
    assert all(math.isfinite(row["expected"]) and math.isfinite(row.get("left", 0.0)) for row in found.rows)
    assert found.settings.inducing == 128


def test_data_sets_by_name_serve_too():
    assert advise(load_named("diabetes"), settings=SMALL).seconds > 0
