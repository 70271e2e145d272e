"""Data of several targets: read, fitted, scored, drawn, kept and predicted."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dgp import Settings, Task, compare, load_fit
from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.one_method import _SCORES, pooled_scores
from pyro_dgp.comparison.request import OTHER_METHODS, default_methods
from pyro_dgp.data.dataset import by_output
from pyro_dgp.data.reading import load
from pyro_dgp.diagnosis.subject import Rows, subject_of
from pyro_dgp.zoo.recipes import shallow

QUICK = Settings(epochs=40, inducing=10, width=2)


def table(rows: int = 60) -> pd.DataFrame:
    random = np.random.RandomState(0)
    x = random.randn(rows, 2)
    heating = 10 * np.sin(x[:, 0]) + random.randn(rows)
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "heating": heating, "cooling": 50 * x[:, 1] + 7 * heating + 300})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "house.csv"
    table().to_csv(path, index=False)
    return path


def test_columns_are_targets_by_name(file, tmp_path):
    data = load(file, "heating, cooling")
    assert data.y.shape == (60, 2) and data.outputs == ("heating", "cooling") and data.columns == ("a", "b")
    assert data.task == Task(outputs=2) and str(data.task) == "2 real numbers a row"
    with pytest.raises(ValueError, match="no column 'warming'"):
        load(file, "heating,warming")
    with pytest.raises(ValueError, match="names a column twice"):
        load(file, "heating,heating")
    with pytest.raises(ValueError, match="2 targets, which are real numbers"):
        load(file, "heating,cooling", "counts")
    archive = tmp_path / "house.npz"
    np.savez(archive, X=data.x, y=data.y)
    assert load(archive).outputs == ("y0", "y1")
    bad = table()
    bad.loc[3, "cooling"] = np.nan
    bad.to_csv(file, index=False)
    with pytest.raises(ValueError, match="the target 'cooling', row 3"):
        load(file, "heating,cooling")


def test_the_zoo_mixes_outputs_that_start_apart():
    model = shallow(torch.randn(5, 2), Settings(outputs=3))
    assert model.top.num_outputs == 3
    assert torch.equal(model.likelihood.mixing.detach(), torch.eye(3))


def test_scores_are_those_of_predictions_in_units_of_the_data(tmp_path):
    data = table()
    x, y = data[["a", "b"]], data[["heating", "cooling"]]
    said: list[str] = []
    result = compare(None, x, y, methods=["svgp", "dsvi"], settings=QUICK, output=tmp_path / "out", say=said.append)
    assert any("the targets are heating, cooling" in line for line in said)
    row, test = result.rows[0], np.random.RandomState(0).permutation(60)[:6]
    rows = np.isin(np.arange(60), test)
    for fit in (result["svgp"], load_fit(tmp_path / "out", "svgp")):
        prediction = fit.predict(x[rows])
        log_density = prediction.log_prob(y[rows].to_numpy())
        assert log_density.shape == (6,)
        assert float(-log_density.mean()) == pytest.approx(row["nll_original"])
        truth = torch.tensor(y[rows].to_numpy())
        errors = (prediction.mean - truth).square().mean(0).sqrt()
        scale = torch.tensor(y[~rows].to_numpy().std(0))
        assert float(errors.mean()) == pytest.approx(row["rmse_original"])
        assert float((errors / scale).mean()) == pytest.approx(row["rmse"])
        assert float(prediction.crps(truth).mean(0).mean()) == pytest.approx(row["crps_original"])
        assert prediction.quantile([0.05, 0.95]).shape == (2, 6, 2) and prediction.sample((3,)).shape == (3, 6, 2)
        assert float(prediction.variance[0, 1]) > 100 * 0.0001
    assert row["nll_original"] == pytest.approx(row["nll"] + float(scale.log().sum()))
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 10_000


def test_folds_pool_the_scores_of_rows():
    data = table()
    result = compare(None, data[["a", "b"]], data[["heating", "cooling"]], methods=["svgp"], folds=3, settings=QUICK)
    row = result.rows[0]
    assert row["nll"] == pytest.approx(np.mean(row["nll_per_fold"]))
    assert row["rmse"] >= np.sqrt(np.mean(np.square(row["rmse_per_fold"])))


@pytest.mark.usefixtures("unannotated")
def test_rmse_over_folds_is_that_of_each_output_over_all_rows():
    """Outputs that are hard in different folds: the root of the mean over outputs and folds together is lower."""
    errors = [torch.tensor([[3.0, 1.0], [3.0, 1.0]]), torch.tensor([[0.0, 2.0]])]
    scales = [torch.tensor([10.0, 1.0]), torch.tensor([20.0, 1.0])]
    folds = [
        SimpleNamespace(
            prediction=SimpleNamespace(mean=own),
            part=SimpleNamespace(x_test=own, y_test=torch.zeros_like(own), target_scale=scale),
            figures=dict.fromkeys(_SCORES, 1.0),
        )
        for own, scale in zip(errors, scales, strict=True)
    ]
    pooled = pooled_scores(folds, [fold.part for fold in folds])
    assert pooled["rmse"] == pytest.approx((math.sqrt(18 / 3) + math.sqrt(6 / 3)) / 2)
    assert pooled["rmse_original"] == pytest.approx((math.sqrt(1800 / 3) + math.sqrt(6 / 3)) / 2)
    assert pooled["nll"] == pooled["crps"] == 1.0


def test_methods_that_nobody_named_are_those_of_several_outputs():
    """The default was refused for its exact-gp."""
    assert default_methods(None, Task(outputs=2)) == OTHER_METHODS
    assert "exact-gp" in default_methods(None, Task())


def test_methods_of_one_output_are_refused_before_training():
    data = table()
    for method in ("exact-gp", "sgpr", "dsvi-collapsed", "vff-collapsed"):
        sentence = f"{method} cannot fit the target 'heating, cooling', which holds 2 real numbers a row: take svgp, ppgpr, dsvi or dspp"
        with pytest.raises(ValueError, match=sentence):
            compare(None, data[["a", "b"]], data[["heating", "cooling"]], methods=[method], settings=QUICK)
    with pytest.raises(ValueError, match=r"\(N, 2\)"):
        compare(
            None,
            data[["a", "b"]],
            data[["heating", "cooling"]],
            test=(data[["a", "b"]], data["heating"]),
            methods=["svgp"],
            settings=QUICK,
        )
    with pytest.raises(ValueError, match="output 'cooling' of 'data' is constant"):
        compare(None, data[["a", "b"]], data[["heating", "cooling"]].assign(cooling=1.0), methods=["svgp"])
    with pytest.raises(ValueError, match=r"they must be \(N, D\) and \(N,\), or \(N, P\)"):
        compare(None, data[["a", "b"]], data[["heating"]], methods=["svgp"])


def test_new_rows_are_predicted_by_the_command(file, tmp_path, capsys):
    out, new = tmp_path / "out", tmp_path / "new.csv"
    options = ["--data", str(file), "--target", "heating,cooling", "--methods", "svgp", "--epochs", "40"]
    main(["compare", *options, "--output", str(out)])
    table(5).to_csv(new, index=False)
    main(["predict", "--fit", str(out), "--method", "svgp", "--data", str(new), "--output", str(tmp_path / "p.csv")])
    found = pd.read_csv(tmp_path / "p.csv")
    assert {"mean(heating)", "sd(cooling)", "quantile_05(cooling)", "log_density"} <= set(found.columns)
    fit = load_fit(out, "svgp")
    prediction = fit.predict(table(5)[["a", "b"]])
    np.testing.assert_allclose(found["mean(cooling)"], prediction.mean[:, 1])
    np.testing.assert_allclose(found["log_density"], prediction.log_prob(table(5)[["heating", "cooling"]].to_numpy()))
    table(5)[["a", "b"]].to_csv(new, index=False)
    main(["predict", "--fit", str(out), "--method", "svgp", "--data", str(new), "--output", str(tmp_path / "q.csv")])
    assert "log_density" not in pd.read_csv(tmp_path / "q.csv").columns
    capsys.readouterr()
    assert main(["predict", "--fit", str(out), "--method", "svgp", "--data", str(new), "--target", "a"]) != 0
    assert "leave --target out" in capsys.readouterr().err


def test_tables_of_targets_are_taken_by_name_wherever_they_come():
    data = table()
    x, y = data[["a", "b"]], data[["heating", "cooling"]]
    turned = y[["cooling", "heating"]]
    scores = []
    for test in (y, turned):
        result = compare(None, x[:50], y[:50], test=(x[50:], test[50:]), methods=["svgp"], settings=QUICK, say=len)
        scores.append(result.rows[0]["nll"])
    assert scores[0] == scores[1]
    fit = result["svgp"]
    expected = fit.predict(x).log_prob(y.to_numpy())
    torch.testing.assert_close(fit.predict(x).log_prob(turned), expected)
    torch.testing.assert_close(fit.predict(x).log_prob(turned.to_numpy()[:, ::-1]), expected)
    torch.testing.assert_close(subject_of(fit, Rows(x, turned)).y, subject_of(fit, Rows(x, y)).y)
    other = turned.rename(columns={"cooling": "warming"})
    with pytest.raises(ValueError, match="the targets have no column 'cooling': give the columns heating, cooling"):
        fit.predict(x).crps(other)
    with pytest.raises(ValueError, match="the targets have no column 'cooling'"):
        compare(None, x, y, test=(x, other), methods=["svgp"], settings=QUICK)
    with pytest.raises(ValueError, match="the targets have the column 'warming', which is no output"):
        compare(None, x, y, test=(x, y.assign(warming=1.0)), methods=["svgp"], settings=QUICK)


def test_blanks_around_the_names_of_targets_are_no_part_of_them():
    y = table()[["heating", "cooling"]]
    for given, outputs in (
        ((" heating", "cooling "), ("heating", "cooling")),
        (("heating", "cooling"), (" heating", "cooling\t")),
        (("heating\t", "cooling"), (" heating", "cooling")),
    ):
        turned = y.set_axis(list(given), axis=1).iloc[:, ::-1]
        np.testing.assert_array_equal(by_output(turned, outputs), y)
    both = y.set_axis(["a", " a"], axis=1)
    np.testing.assert_array_equal(by_output(both[[" a", "a"]], ("a", " a")), y)  # which are two
    with pytest.raises(ValueError, match="the targets have no column 'a ': give the columns a , b"):
        by_output(both, ("a ", "b"))
    with pytest.raises(ValueError, match="the targets have the column ' a', which is no output"):
        by_output(both.assign(b=1.0), ("a", "b"))
