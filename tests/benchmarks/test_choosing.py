"""The study of regrets: groups, the table of the page, and the properties that it states of the data."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.common.records import read
from benchmarks.common.simulators import FORMULAS, simulated
from benchmarks.studies import advice, choosing
from pyro_dgp import load_named

ROOT = Path(__file__).parents[2]


@pytest.fixture
def four(monkeypatch):
    """A table of four methods."""
    monkeypatch.setattr(choosing, "METHODS", ("svgp", "ppgpr", "dsvi", "dspp"))


def runs(**nll):
    """Runs of two sets: an NLL of each method, a CRPS of one more, and some noise."""
    return [
        {"dataset": name, "split": 0, "method": method, "nll": value, "crps": 1 + value, "rmse": 0.3, "seconds": 2.0}
        | {"n_train": 270}
        for name in ("friedman1-300", "boston")
        for method, value in nll.items()
    ]


@pytest.mark.usefixtures("four")
def test_regret_is_the_distance_from_the_best_method_of_the_set():
    rows = runs(svgp=0.5, ppgpr=0.25, dsvi=0.0, dspp=1.0)
    rows[4]["nll"] = -0.5  # svgp on boston
    table = choosing.properties(pd.DataFrame(rows))
    assert table.loc[("friedman1-300", 0), "nll svgp"] == 0.5 and table.loc[("boston", 0), "nll svgp"] == 0.0
    assert table.loc[("boston", 0), "nll dspp"] == 1.5 and table.loc[("friedman1-300", 0), "crps dspp"] == 1.0
    assert table["noise"].tolist() == pytest.approx([0.09, 0.09]) and table["inputs"].tolist() == [13, 10]
    groups = choosing.grouped(table)
    assert set(groups) == {"all", "up to 600 rows", "7 inputs or more", "1 to 20 % noise"}
    lines = choosing.markdown(table).splitlines()
    assert lines[2] == "| all | 2 | 0.25, 50% | 0.50, 25% | 0.25, 0% | 1.25, 100% |"
    assert "| mean rank | | 2.0 | 2.5 | 1.5 | 4.0 |" in lines


@pytest.mark.usefixtures("four")
def test_sets_that_a_method_has_not_run_on_are_left_out():
    rows = runs(svgp=0.5, ppgpr=0.25, dsvi=0.0, dspp=1.0)
    table = choosing.properties(pd.DataFrame(rows[:-1]))
    assert table.index.tolist() == [("friedman1-300", 0)]


def test_the_number_of_inputs_is_that_of_the_data():
    assert load_named("diabetes").x.shape[1] == choosing.INPUTS["diabetes"]
    for name in FORMULAS:
        assert simulated(name, 300).x.shape[1] == choosing.INPUTS[name]


def test_the_page_has_the_table_of_the_runs(tmp_path):
    rows = [row for row in read(ROOT / "benchmarks/results/held_aside.jsonl", "method") if "error" not in row]
    table = choosing.properties(pd.DataFrame(rows))
    assert choosing.markdown(table) in (ROOT / "docs/choosing.md").read_text()
    choosing.draw(table, tmp_path / "regret.png")
    assert (tmp_path / "regret.png").stat().st_size > 20_000


def test_the_regret_of_advice_is_that_of_the_fit_that_it_names():
    fits = [
        {"dataset": "a", "split": 3, "method": name, "nll": nll, "seconds": seconds}
        for name, nll, seconds in (("svgp", 0.4, 10.0), ("dsvi", 0.1, 30.0), ("gpytorch-dsvi", -9.0, 1.0))
    ]
    fits.append({"dataset": "a", "split": 3, "method": "dspp", "error": "it broke"})
    said = {"dataset": "a", "split": 3, "advised": "svgp", "options": "--methods svgp", "seconds": 8.0}
    table = advice.regrets([said], fits)
    row = table.loc["a"]
    assert row["regret"] == pytest.approx(0.3) and row["best"] == "dsvi" and row["methods"] == 2
    assert row["cost"] == pytest.approx(0.2) and row["always svgp"] == pytest.approx(0.3) and row["advised"] == "svgp"
    assert advice.regrets([said | {"advised": "exact-gp"}], fits).empty
