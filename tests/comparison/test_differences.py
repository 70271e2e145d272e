"""Differences in NLL between methods of a comparison, row by row, and the table that shows them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyro_dgp import Settings, compare
from pyro_dgp.comparison.differences import behind, shown
from pyro_dgp.comparison.files import ROW_NLL
from pyro_dgp.comparison.results import ComparisonResult

SMALL = Settings(inducing=6, epochs=4, width=1, samples=2)


def data(rows=60):
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, (rows, 2))
    return x, np.sin(3 * x[:, 0]) + 0.1 * random.randn(rows)


def compared(**options):
    x, y = data()
    return compare(None, x, y, methods=["svgp", "dsvi", "exact-gp"], settings=SMALL, say=lambda _: None, **options)


@pytest.mark.parametrize("folds", [None, 3])
def test_differences_are_those_of_the_scores_and_their_error_is_that_of_pairs(folds, tmp_path):
    result = compared(folds=folds, output=tmp_path)
    nll = {row["method"]: row["nll"] for row in result.rows}
    best = min(nll, key=nll.__getitem__)
    found = result.behind()
    assert set(found) == set(nll) - {best}
    for name, (difference, error) in found.items():
        assert difference == pytest.approx(nll[name] - nll[best], abs=1e-9)
        pairs = result.curves[name][ROW_NLL] - result.curves[best][ROW_NLL]
        assert len(pairs) == (60 if folds else 6)
        assert error == pytest.approx(np.sqrt(((pairs - pairs.mean()) ** 2).sum() / (len(pairs) - 1) / len(pairs)))
    other = next(name for name in nll if name != best)
    assert set(result.behind(other)) == set(nll) - {other}
    assert result.behind(other)[best] == pytest.approx((-found[other][0], found[other][1]))
    with pytest.raises(KeyError, match="there is no 'nuts': there are svgp, dsvi, exact-gp"):
        result.behind("nuts")
    lines = str(result).splitlines()
    assert ("6 test rows rank little: folds=5 (--folds 5) tests every row" in lines) == (folds is None)
    assert " ".join(lines[0].split()).find("NLL behind +- RMSE CRPS") > 0
    assert (
        lines[-2 if folds else -3]
        == "behind: NLL minus the lowest, row by row; +-: its standard error over the test rows"
    )
    again = compared(folds=folds, output=tmp_path, resume=True)
    assert again.behind() == found and str(again) == str(result)


def test_classes_have_differences_too():
    x, y = data()
    settings = Settings(inducing=6, epochs=4, task="binary")
    result = compare(None, x, (y > 0) * 1.0, methods=["svgp", "dsvi"], settings=settings, say=lambda _: None)
    ((difference, _),) = result.behind().values()
    low, high = sorted(row["nll"] for row in result.rows)
    assert difference == pytest.approx(high - low)


ROWS = [{"method": "a", "nll": 0.0}, {"method": "b", "nll": 1.0}]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0.0, 1.0], None),  # files of an earlier version
        ([0.0, 1.0], [1.0, math.inf]),
        ([0.0, 1.0], [1.0, 2.0, 3.0]),  # other rows
        ([0.0], [1.0]),  # one row has no spread
    ],
)
def test_what_has_no_pairs_has_no_difference(first, second):
    curves = {"a": {ROW_NLL: np.array(first)}} | ({} if second is None else {"b": {ROW_NLL: np.array(second)}})
    assert behind(ROWS, curves) == {}
    assert shown(ROWS, curves) == ROWS
    assert "behind" not in str(ComparisonResult(ROWS, curves, "d"))


def test_there_is_no_difference_from_a_lowest_without_scores_of_each_row():
    """A folder of an earlier version, to which methods were added."""
    rows = [{"method": "old", "nll": -1.0}, *ROWS]
    curves = {"old": {}, "a": {ROW_NLL: np.zeros(5)}, "b": {ROW_NLL: np.ones(5)}}
    assert behind(rows, curves) == {} and shown(rows, curves) == rows
    assert [row.get("behind") for row in shown(ROWS, curves)] == [0.0, 1.0]


def test_the_error_is_small_where_rows_are_hard_for_both():
    hard = np.random.RandomState(0).randn(50) * 10
    found = behind(ROWS, {"a": {ROW_NLL: hard}, "b": {ROW_NLL: hard + 0.1}})
    assert found["b"] == pytest.approx((0.1, 0.0), abs=1e-12) and "a" not in found


def test_a_predictive_method_that_fell_back_says_so_in_the_place_of_beta():
    rows = [ROWS[0] | {"beta": None}, ROWS[1] | {"beta": 0.05}, {"method": "c", "nll": 2.0}]
    assert [row.get("beta") for row in shown(rows, {})] == ["fallback", 0.05, None]
    lines = str(ComparisonResult(rows, {}, "d")).splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["beta", "fallback", "0.05", "-"]
