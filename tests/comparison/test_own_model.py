"""A user's own model through the comparison: every kind of method, refusals, the command line."""

import math
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from pyro_dgp import ELBO, RBF, EllipticalSlice, FunctionMean, InducingPoints, MonteCarlo
from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.keep import load_fit
from pyro_dgp.comparison.own_model import own_model
from pyro_dgp.comparison.request import Request
from pyro_dgp.comparison.run import compare, run
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.by_mcmc import ByMCMC
from pyro_dgp.zoo.settings import Settings
from tests.comparison import own_models
from tests.comparison.own_models import Breaks, Classes, Heavy, Skip, Switch, WithMovingEnd
from tests.examples import OneLayer, TwoLayers

TOY = Settings(inducing=6, row_inducing=2, samples=2, epochs=1, mcmc_points=10, mcmc_samples=8, warmup=2)


def data(rows=30):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 100, size=(rows, 1))
    return x, 50 + 10 * np.sin(x[:, 0] / 20) + rng.normal(size=rows)


def quiet(sentence):
    del sentence


def test_skip_connection_second_likelihood_and_hyperprior_go_through_every_kind_of_method(tmp_path):
    x, y = data()
    said = []
    result = compare(
        Skip, x, y, methods=["svgp", "dspp", "nuts", "ess"], settings=TOY, output=tmp_path / "out", say=said.append
    )
    assert [row["method"] for row in result.rows] == list(result) == ["svgp", "dspp", "nuts", "ess"]
    for row in result.rows:
        assert (row["layers"], row["width"]) == (2, 2) and math.isfinite(row["nll"])
        assert row["nll_original"] == pytest.approx(row["nll"] + math.log(y_scale(x, y)))
    assert {path.name for path in (tmp_path / "out").glob("*.nc")} == {f"{name}.nc" for name in result}
    assert "top.kernel.lengthscale" in result["ess"].draws and result["svgp"].guide.hidden == ["latent"]
    for name in ("nuts", "ess"):
        assert any(s.startswith(f"{name}: no prior stands on hidden.kernel.lengthscale") for s in said)
    assert "NLL" in str(result).splitlines()[0] and len(str(result).splitlines()) == 8
    new = x[:4]
    for name in result:
        fit, loaded = result[name], load_fit(tmp_path / "out", name, model=Skip)
        assert fit.remarks == loaded.remarks and all(f"{name}: {each}" in said for each in fit.remarks)
        kept, again = fit.predict(new), loaded.predict(new)
        assert torch.equal(kept.mean, again.mean) and torch.equal(kept.quantile(0.9), again.quantile(0.9))
        assert (kept.mean > 20).all() and (kept.mean < 80).all()
    assert any(result[name].remarks for name in result)
    with pytest.raises(ValueError, match="the model of this fit was given from Python as .*Skip, which is not saved"):
        load_fit(tmp_path / "out", "svgp")
    with pytest.raises(ValueError, match="there is no fit of 'dsvi' in .*: it has dspp, ess, nuts, svgp"):
        load_fit(tmp_path / "out", "dsvi")


def y_scale(x, y):
    train = np.random.RandomState(0).permutation(len(x))[len(x) // 10 :]
    return y[train].std()


def test_names_and_inferences_made_by_hand_are_mixed():
    x, y = data()
    by_hand = ("by-hand", ByGuide(InducingPoints(6), MonteCarlo(2), ELBO))
    slices = ("slices", ByMCMC(EllipticalSlice))
    result = compare(lambda x: TwoLayers(x), x, y, methods=["dsvi", by_hand, slices], settings=TOY, say=quiet)
    first, second, third = result.rows
    assert first["nll"] == second["nll"] and third["n_train"] == 10  # the same fit under two names
    with pytest.raises(TypeError, match="a method is a name of the table or a pair|parameter '?methods'?"):
        compare(TwoLayers, x, y, methods=cast(Any, [by_hand[1]]), settings=TOY, say=quiet)
    with pytest.raises(KeyError, match="there is no fit of 'nuts'"):
        result["nuts"]


def test_predictions_are_in_the_target_s_own_units():
    """A model that is given standardised rows by hand predicts the same, mapped back by hand."""
    x, y = data()
    result = compare(Skip, x[:25], y[:25], methods=["svgp"], test=(x[25:], y[25:]), settings=TOY, say=quiet)
    centre, scale = y[:25].mean(), y[:25].std()
    ready = (x - x[:25].mean(0)) / x[:25].std(0)
    z = (y - centre) / scale
    plain = compare(
        Skip,
        ready[:25],
        z[:25],
        methods=["svgp"],
        test=(ready[25:], z[25:]),
        settings=TOY,
        standardize=False,
        say=quiet,
    )
    own, base = result["svgp"].predict(x[25:]), plain["svgp"].predict(ready[25:])
    np.testing.assert_allclose(own.mean, centre + scale * base.mean)
    np.testing.assert_allclose(own.variance, scale**2 * base.variance)
    np.testing.assert_allclose(own.quantile([0.1, 0.9]), centre + scale * base.quantile([0.1, 0.9]))
    np.testing.assert_allclose(own.log_prob(y[25:]), base.log_prob(z[25:]) - np.log(scale))
    np.testing.assert_allclose(own.cdf(y[25:]), base.cdf(z[25:]))
    assert result.rows[0]["nll_original"] == pytest.approx(-float(own.log_prob(y[25:]).mean()))
    assert plain.rows[0]["nll"] == pytest.approx(result.rows[0]["nll"])
    draws = own.sample((4000,))
    assert float((draws.mean(0) - own.mean).abs().max()) < 5 * float(own.variance.max().sqrt()) / 4000**0.5
    with pytest.raises(ValueError, match="of 1 columns and the new ones have shape"):
        result["svgp"].predict(np.ones((3, 2)))


def test_the_density_in_own_units_integrates_to_one_and_is_normal_where_the_prediction_is():
    x, y = data()
    fit = compare(lambda x: OneLayer(), x, y, methods=["exact-gp"], settings=TOY, say=quiet)["exact-gp"]
    prediction = fit.predict(x[:1])
    mean, sd = float(prediction.mean), float(prediction.variance.sqrt())
    grid = torch.linspace(mean - 8 * sd, mean + 8 * sd, 2001)
    density = torch.stack([prediction.log_prob([value]) for value in grid.tolist()]).exp()[:, 0]
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(density, norm(mean, sd).pdf(grid.numpy()), rtol=1e-8)


@pytest.mark.parametrize(
    ("model", "methods", "sentences"),
    [
        (Skip, ["exact-gp"], ["exact-gp cannot fit this model: it needs a model whose only site is observed; yours has latent, "]),
        (Switch, ["svgp", "ess"], ["svgp, ess cannot fit this model: the latent site 'z' is discrete"]),
        (Skip, ["dkl-svgp"], ["dkl-svgp puts a network of its own in front of the zoo's model and fits no other: .* take svgp"]),
        (Breaks, ["svgp"], ["Breaks raised RuntimeError: no such thing .*, line [0-9]+. when it was called with training inputs of shape"]),
        (lambda x: 3, ["svgp"], ["returned int, not a model"]),
        (lambda x: torch.nn.Linear(1, 1), ["svgp"], ["raised TypeError: .* when it was called as model.x, y."]),
        (own_models.constant, ["svgp"], ["the model is int: give a factory"]),
        (OneLayer(), ["svgp"], ["a model object was made for certain training rows"]),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_said_before_anything_runs(tmp_path, model, methods, sentences):
    x, y = data()
    with pytest.raises((ValueError, TypeError)) as caught:
        compare(model, x, y, methods=methods, settings=TOY, output=tmp_path / "out", say=quiet)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(sentences)
    for line, sentence in zip(lines, sentences, strict=True):
        assert re.search(sentence, line), line
    assert not (tmp_path / "out").exists()


def test_a_method_that_nobody_named_is_left_out_where_it_cannot_fit_a_model():
    x, y = data()
    said = []
    result = compare(WithMovingEnd, x, y, settings=TOY, say=said.append)
    assert [row["method"] for row in result.rows] == ["dsvi", "dspp"]
    assert any(
        re.fullmatch("nuts cannot fit this model: the support of .* depends on .*; the others are compared", sentence)
        for sentence in said
    )
    with pytest.raises(ValueError, match="nuts cannot fit this model: the support of"):
        compare(WithMovingEnd, x, y, methods=["dsvi", "nuts"], settings=TOY, say=quiet)


def test_a_grid_over_two_hidden_layers_is_refused():
    from pyro_dgp.models.deep_gp import DeepGP

    x, y = data()
    with pytest.raises(
        ValueError, match="dspp-gh cannot fit this model: rule 'gauss-hermite' is a grid over one hidden"
    ):
        compare(lambda x: DeepGP(x, 3, 2), x, y, methods=["dsvi", "dspp-gh"], settings=TOY, say=quiet)


def test_classes_keep_their_target_and_a_student_likelihood_gets_quantiles_of_draws():
    x, y = data(40)
    said = []
    result = compare(Classes, x, (y > 50).astype(float), methods=["svgp", "ess"], settings=TOY, say=said.append)
    assert any("the target is left as it is" in sentence for sentence in said)
    mean = result["svgp"].predict(x).mean
    assert float(mean.min()) > 0 and float(mean.max()) < 1
    heavy = compare(Heavy, x, y, methods=["svgp"], settings=TOY, say=quiet)
    curves = heavy.curves["svgp"]
    assert (curves["low"] < curves["mean"]).all() and (curves["mean"] < curves["high"]).all()
    assert (np.diff(curves["coverage"]) >= 0).all()


def test_a_model_object_comes_with_its_test_rows_and_is_left_as_it_was():
    x, y = data()
    model = OneLayer().float()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = compare(
        model, x[:24], y[:24], methods=["svgp", "exact-gp"], test=(x[24:], y[24:]), settings=TOY, say=quiet
    )
    assert [row["n_test"] for row in result.rows] == [6, 6]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.dtype == torch.float32 for value in model.state_dict().values())
    assert result["svgp"].model is not result["exact-gp"].model


def test_the_gap_of_an_own_model_is_measured_at_hyperparameters_that_dsvi_learns(tmp_path):
    x, y = data(15)
    settings = Settings(inducing=5, samples=2, epochs=1, mcmc_points=8, mcmc_samples=8, warmup=2)
    result = compare(TwoLayers, x, y, methods=["dsvi"], settings=settings, say=quiet)
    gap = result.gap("ess")
    assert [(row["method"], row["hyperparameters"]) for row in gap.rows] == [("ess again", "fixed"), ("dsvi", "fixed")]
    assert all(row["gap_wasserstein"] > 0 for row in gap.rows) and "distance from ess" in str(gap)
    priors = compare(Heavy, x, y, methods=["svgp"], settings=settings, say=quiet)
    with pytest.raises(ValueError, match="likelihood is given sampled values"):
        priors.gap("ess")
    gap.write(tmp_path)
    assert (tmp_path / "gap.json").exists() and (tmp_path / "gap-fixed.png").stat().st_size > 5_000


FILE = Path(own_models.__file__)
COMMAND = [
    "--inducing",
    "6",
    "--samples",
    "2",
    "--epochs",
    "1",
    "--mcmc-points",
    "10",
    "--mcmc-samples",
    "8",
    "--warmup",
    "2",
]


def write_csv(path, x, y, names=("depth", "porosity")):
    rows = [",".join(names), *(f"{a!r},{b!r}" for a, b in zip(x[:, 0].tolist(), y.tolist(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_the_command_line_fits_keeps_and_predicts_a_model_from_a_file(tmp_path, capsys):
    x, y = data()
    table, out = write_csv(tmp_path / "wells.csv", x, y), tmp_path / "out"
    source = tmp_path / "mine.py"
    source.write_text(FILE.read_text())
    command = ["compare", "--model", f"{source}:Skip", "--data", str(table), *COMMAND, "--output", str(out)]
    assert main([*command, "--methods", "svgp,ess"]) == 0, capsys.readouterr().err
    assert "svgp" in capsys.readouterr().out
    assert main([*command, "--methods", "svgp,ess", "--resume"]) == 0
    assert "ess: finished before" in capsys.readouterr().err
    source.write_text(FILE.read_text() + "\n# changed\n")
    assert main([*command, "--methods", "svgp,ess", "--resume"]) == 2
    assert "made with other settings (model_source" in capsys.readouterr().err
    source.unlink()  # the copy in the folder is enough
    new = write_csv(tmp_path / "new.csv", x[:5], y[:5])
    for name in ("svgp", "ess"):
        predicted = tmp_path / f"{name}.csv"
        assert (
            main(["predict", "--fit", str(out), "--method", name, "--data", str(new), "--output", str(predicted)]) == 0
        )
        assert capsys.readouterr().out.strip() == f"5 predictions by {name} in {predicted}"
        rows = np.genfromtxt(predicted, delimiter=",", names=True)
        assert rows.dtype.names == ("mean", "sd", "quantile_05", "quantile_95", "log_density")
        expected = load_fit(out, name).predict(x[:5])
        np.testing.assert_allclose(rows["mean"], expected.mean, rtol=1e-12)
        np.testing.assert_allclose(rows["log_density"], expected.log_prob(y[:5]), rtol=1e-12)
        assert (rows["quantile_05"] < rows["mean"]).all() and (rows["mean"] < rows["quantile_95"]).all()
    other = write_csv(tmp_path / "other.csv", x[:5], y[:5], ("length", "y"))
    for sentence, arguments in {
        "the new rows have no column 'depth', which the fit takes: its inputs are depth": ["--data", str(other)],
        "there is no file": ["--data", "absent.csv"],
        "exists: name another --output": ["--data", str(new), "--output", str(predicted)],
        "have no column 'price'": ["--data", str(new), "--target", "price"],
        "there is no fit of 'nuts'": ["--data", str(new), "--method", "nuts"],
    }.items():
        given = ["--fit", str(out), "--method", "svgp", "--output", str(tmp_path / "none.csv"), *arguments]
        assert main(["predict", *given]) == 2
        error = capsys.readouterr().err
        assert sentence in error and error.count("\n") == 1, error


def test_a_model_that_cannot_be_read_is_one_sentence_and_exit_status_2(tmp_path, capsys):
    x, y = data()
    table = write_csv(tmp_path / "wells.csv", x, y)
    (tmp_path / "broken.py").write_text("import no_such_module_anywhere\n")
    for sentence, model in {
        "--model is FILE.py:NAME": "Skip",
        "there is no file 'absent.py'": "absent.py:Skip",
        "has no 'Skipp': it has": f"{FILE}:Skipp",
        "which cannot be called with the training inputs": f"{FILE}:constant",
        f"Breaks raised RuntimeError: no such thing ({Path(FILE).name}, line ": f"{FILE}:Breaks",
        "cannot be run as a module: it raised ModuleNotFoundError": f"{tmp_path / 'broken.py'}:Skip",
    }.items():
        command = [
            "compare",
            "--model",
            model,
            "--data",
            str(table),
            "--methods",
            "svgp",
            "--output",
            str(tmp_path / "out"),
        ]
        assert main(command) == 2
        error = capsys.readouterr().err
        assert sentence in error and error.count("\n") == 1 and "Traceback" not in error, error
    assert not (tmp_path / "out").exists()


def test_a_gap_on_a_likelihood_of_sampled_values_is_refused_before_anything_runs(tmp_path):
    x, y = data()
    request = Request(
        output=tmp_path / "out",
        dataset=Dataset("d", x, y),
        methods=("svgp",),
        settings=TOY,
        model=own_model(Heavy),
        gap="ess",
    )
    with pytest.raises(
        ValueError, match="the gap compares function values under a likelihood, and the site 'y' has none"
    ):
        run(request, say=quiet)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["", "a/b", ".hidden"])
def test_names_that_cannot_be_files_are_refused(name):
    x, y = data()
    with pytest.raises(ValueError, match="cannot name the files of a method"):
        compare(None, x, y, methods=[(name, ByMCMC(EllipticalSlice))], settings=TOY, say=quiet)


def test_a_table_s_columns_are_taken_by_name(tmp_path):
    x, y = data()
    columns = [f"column-{number}" for number in range(x.shape[1])]
    table = pd.DataFrame(x, columns=columns)
    result = compare(TwoLayers, table, y, methods=["svgp"], settings=TOY, output=tmp_path / "out", say=quiet)
    expected = result["svgp"].predict(x[:4]).mean
    for fit in (result["svgp"], load_fit(tmp_path / "out", "svgp", model=TwoLayers)):
        assert fit.columns == tuple(columns)
        torch.testing.assert_close(fit.predict(table[columns[::-1]][:4]).mean, expected)
        with pytest.raises(ValueError, match="the inputs have no column 'column-0'"):
            fit.predict(table.rename(columns={"column-0": "other"}))


def test_a_fit_that_predicts_otherwise_when_it_is_restored_is_refused(tmp_path):
    def sloped(factor):
        def build(x):
            model = OneLayer()
            model.gp.mean = FunctionMean(lambda z: factor * z[..., :1])
            return model

        return build

    x, y = data()
    compare(sloped(1.0), x, y, methods=["svgp"], settings=TOY, output=tmp_path / "out", say=quiet)
    load_fit(tmp_path / "out", "svgp", model=sloped(1.0))
    with pytest.raises(ValueError, match="the fit of 'svgp' predicts other values than it did when it was saved"):
        load_fit(tmp_path / "out", "svgp", model=sloped(2.0))
    with pytest.raises(ValueError, match="the fit of 'svgp' does not fit its model"):
        load_fit(tmp_path / "out", "svgp", model=OneLayer_of(RBF))


def test_a_fit_with_numbers_outside_its_parameters_is_not_kept(tmp_path):
    class Drawn(OneLayer):
        def __init__(self, x):
            super().__init__()
            self.shift = float(np.random.default_rng().uniform(0.5, 1.5))

        def forward(self, x, y=None):
            return super().forward(x * self.shift, y)

    said: list[str] = []
    x, y = data()
    compare(Drawn, x, y, methods=["svgp"], settings=TOY, output=tmp_path / "out", say=said.append)
    assert any("svgp: its fit is not kept: it cannot be restored" in sentence for sentence in said)
    assert not list((tmp_path / "out" / "fits").glob("svgp.*"))


def test_the_gap_leaves_an_object_that_the_factory_returns_twice_alone():
    x, y = data()
    shared = TwoLayers(torch.zeros(3, x.shape[1], dtype=torch.float64))
    before = {name: value.clone() for name, value in shared.state_dict().items() if isinstance(value, torch.Tensor)}
    result = compare(lambda x: shared, x, y, methods=["dsvi"], settings=TOY, say=quiet)
    result.gap("ess")
    assert all(parameter.requires_grad for parameter in shared.parameters())
    assert all(torch.equal(shared.state_dict()[name], value) for name, value in before.items())


def test_large_targets_keep_their_digits_in_float32():
    x, y = data()
    low = compare(TwoLayers, x, y, methods=["svgp"], settings=TOY, dtype="float32", say=quiet)
    high = compare(TwoLayers, x, y + 1e7, methods=["svgp"], settings=TOY, dtype="float32", say=quiet)
    difference = high["svgp"].predict(x[:5]).mean - 1e7 - low["svgp"].predict(x[:5]).mean
    assert difference.dtype == torch.float64 and float(difference.abs().max()) < 1e-3 * float(y.std())


def OneLayer_of(kernel):  # noqa: N802
    """A factory of models of one layer with this kernel."""
    return lambda x: OneLayer(kernel(ard=x.shape[-1]))
