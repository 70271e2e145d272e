"""Targets that are no real numbers, or keep their units: what is standardised, and what is said of it."""

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist

from pyro_dgp import METHODS, DeepGP, EllipticalSlice, Standardizer
from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.run import compare
from pyro_dgp.zoo.by_mcmc import ByMCMC
from pyro_dgp.zoo.settings import Settings
from tests.comparison import own_models
from tests.comparison.test_own_model import COMMAND, FILE, TOY, data, quiet, write_csv
from tests.examples import OneLayer


class Positive(OneLayer):
    """One layer under a log-normal likelihood."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x)).squeeze(-1)
        return pyro.sample("y", dist.LogNormal(f, 0.3).to_event(1), obs=y)


class Observed(OneLayer):
    """Function values that are observed without noise."""

    def forward(self, x, y=None):
        return pyro.sample("f", self.gp(x), obs=None if y is None else y[:, None])


def two_values():
    x, y = data(40)
    return x, (y > 50).astype(float)


def said_of(model, x, y, **options):
    said: list[str] = []
    result = compare(model, x, y, methods=["svgp"], settings=TOY, say=said.append, **options)
    return result, " | ".join(said)


def test_few_values_are_remarked_on_since_densities_may_put_spikes_on_them():
    random = np.random.RandomState(0)
    x = random.randn(300, 2)
    few = np.round(x[:, 0]).clip(-2, 2)
    assert "the target has 5 values in 300 rows" in said_of(None, x, few)[1]
    assert "values in" not in said_of(None, x, x[:, 0])[1]


def test_two_values_are_remarked_on_where_they_are_treated_as_numbers():
    x, y = two_values()
    sentence = "the target has two values and is treated as a number"
    assert sentence in said_of(None, x, y)[1] and sentence in said_of(lambda x: OneLayer(), x, y)[1]
    assert sentence not in said_of(own_models.Classes, x, y)[1]
    assert sentence not in said_of(None, *data(40))[1]


def test_positive_targets_are_left_as_they_are():
    x, y = data()
    result, said = said_of(lambda x: Positive(), x, np.exp(y / 50))
    assert "of classes, counts or positive numbers: the target is left as it is" in said
    assert result["svgp"].target.scale == 1.0 and "scores on the target as it is" in str(result)
    assert (result["svgp"].predict(x).sample((100,)) > 0).all()


def test_the_units_of_the_scores_are_named():
    x, y = data()
    result, said = said_of(None, x / 50, y / 50, standardize=False)
    assert "scores on the target in its own units" in str(result) and "in squared units of the target" in said
    result, said = said_of(None, x, y)
    assert "scores on the standardised target" in str(result) and "of the standardised target's" in said


def test_a_model_object_is_told_that_it_gets_standardised_rows():
    x, y = data()
    sentence = "the model gets standardised inputs and targets: say standardize=False"
    x, y = x / 50, y / 50
    test = (x[24:], y[24:])
    assert sentence in said_of(OneLayer(), x[:24], y[:24], test=test)[1]
    assert sentence not in said_of(OneLayer(), x[:24], y[:24], test=test, standardize=False)[1]


def test_a_model_that_standardises_targets_itself_is_refused_unless_nothing_else_does():
    x, y = data()
    units = Standardizer.fit(torch.as_tensor(x), torch.as_tensor(y))
    carrying = lambda x: DeepGP(x, layers=1, standardizer=units)
    with pytest.raises(ValueError, match="a comparison standardises inputs and targets by itself: leave it out of the"):
        compare(carrying, x, y, methods=["svgp"], settings=TOY, say=quiet)
    own = compare(carrying, x, y, methods=["svgp"], settings=TOY, say=quiet, standardize=False)["svgp"].predict(x)
    assert abs(float(own.mean.mean()) - y.mean()) < y.std()
    unfitted = lambda x: DeepGP(x, layers=1, standardizer=Standardizer(x.shape[1], 1))  # which changes nothing
    assert compare(unfitted, x, y, methods=["svgp"], settings=TOY, say=quiet).rows[0]["nll"] is not None
    inputs = lambda x: DeepGP(x, layers=1, standardizer=Standardizer.fit(x))  # of standardised inputs: next to nothing
    assert compare(inputs, x, y, methods=["svgp"], settings=TOY, say=quiet).rows[0]["nll"] is not None


def test_observed_function_values_are_refused_with_the_remedy():
    x, y = data()
    with pytest.raises(ValueError, match="observes y as values of the Gaussian process 'f' without noise: put a like"):
        compare(lambda x: Observed(), x, y, methods=["svgp"], settings=TOY, say=quiet)


def test_a_sampler_made_by_hand_says_what_it_holds_and_counts_the_seconds_of_learning():
    x, y = data(15)
    said: list[str] = []
    slices = ("slices", ByMCMC(EllipticalSlice))
    compare(None, x, y, methods=[slices], settings=TOY, say=said.append)
    assert any(sentence.startswith("slices: no prior stands on ") and "dsvi learns" in sentence for sentence in said)
    learner = ByMCMC(EllipticalSlice, learner=ByMCMC(EllipticalSlice))
    assert "that ByMCMC learns" in learner.remarks_on(_anatomy(x, y))[0]


def _anatomy(x, y):
    from pyro_dgp.zoo.anatomy import anatomy_of

    return anatomy_of(OneLayer(), torch.tensor(x), torch.tensor(y))


def test_new_rows_may_hold_text_beside_the_inputs_and_likelihoods_need_no_cdf(tmp_path, capsys):
    x, y = data()
    table, out = write_csv(tmp_path / "wells.csv", x, y), tmp_path / "out"
    command = ["compare", "--model", f"{FILE}:Heavy", "--data", str(table), *COMMAND, "--output", str(out)]
    assert main([*command, "--methods", "svgp"]) == 0, capsys.readouterr().err
    new = tmp_path / "new.csv"
    new.write_text("name,depth\nfirst,10.0\nsecond,20.0\n")
    given = ["predict", "--fit", str(out), "--method", "svgp", "--output", str(tmp_path / "predicted.csv"), "--data"]
    assert main([*given, str(new)]) == 0, capsys.readouterr().err
    rows = np.genfromtxt(tmp_path / "predicted.csv", delimiter=",", names=True)
    assert len(rows) == 2 and (rows["quantile_05"] < rows["quantile_95"]).all()
    (tmp_path / "predicted.csv").unlink()
    new.write_text("name,depth\nfirst,deep\nsecond,20.0\n")
    assert main([*given, str(new)]) == 2
    assert "column 'depth' of the new rows does not hold numbers" in capsys.readouterr().err


def test_methods_that_are_one_inference_on_an_own_model_are_named():
    x, y = data()
    said: list[str] = []
    same = ("again", METHODS["svgp"].inference)
    result = compare(lambda x: OneLayer(), x, y, methods=["svgp", same], settings=TOY, say=said.append)
    assert "again and svgp are the same inference on this model and give the same figures" in said
    assert result.rows[0]["nll"] == result.rows[1]["nll"]
    said.clear()
    compare(None, x, y, methods=["svgp", same], settings=TOY, say=said.append)
    assert not [sentence for sentence in said if "same inference" in sentence]


def test_options_of_the_library_s_model_are_refused_beside_another_and_not_recorded(tmp_path, capsys):
    x, y = data()
    table = write_csv(tmp_path / "wells.csv", x, y)
    command = ["compare", "--model", f"{FILE}:Skip", "--data", str(table), "--output", str(tmp_path / "out")]
    assert main([*command, "--width", "7"]) == 2
    assert "--width describes the library's own model, and --model brings another" in capsys.readouterr().err
    result = compare(lambda x: OneLayer(), x, y, methods=["svgp"], settings=TOY, say=quiet)
    assert not {"layers", "width", "kernel"} & result.rows[0]["config"].keys()


@pytest.mark.parametrize(
    ("sentence", "change"),
    [
        ("methods is a list of names: write methods=.'dsvi'.|parameter '?methods'?", {"methods": "dsvi"}),
        (
            "settings is a Settings object, such as Settings.epochs=50.|parameter '?settings'?",
            {"settings": {"epochs": 3}},
        ),
        ("progress is a function from the name of a method|parameter '?progress'?", {"progress": False}),
        (r"one input is x\[:, None\]", {"x": np.arange(30.0)}),
        (r"one target is y\[:, 0\]", {"y": np.ones((30, 1))}),
        ("the targets of 'data' are all of one class: there is nothing to learn", {"y": np.array(["a"] * 30)}),
        ("inputs and targets are numbers: .* give each class a number", {"x": np.array([["a"]] * 30)}),
        ("mcmc_samples must be at least 8, got 2", {"settings": Settings(mcmc_samples=2)}),
    ],
)
def test_what_is_given_wrongly_is_one_sentence_with_the_remedy(sentence, change):
    x, y = data()
    given = {"x": x, "y": y, "methods": ["svgp"], "settings": TOY} | change
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        compare(None, say=quiet, **given)
    assert "\n" not in str(caught.value) or "typechecking" in str(caught.value)  # the tests check types as well


def test_one_reason_is_said_once_for_all_methods():
    class NeedsTargets(OneLayer):
        def forward(self, x, y):
            return super().forward(x, y)

    x, y = data()
    with pytest.raises(
        ValueError, match="svgp, ppgpr cannot fit this model: .*write forward.self, x, y=None."
    ) as caught:
        compare(lambda x: NeedsTargets(), x, y, methods=["svgp", "ppgpr"], settings=TOY, say=quiet)
    assert "\n" not in str(caught.value)


def test_a_file_with_semicolons_is_named(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a;b\n1;2\n3;4\n")
    assert main(["compare", "--data", str(tmp_path / "t.csv"), "--output", str(tmp_path / "out")]) == 2
    sentence = (
        "'t.csv' separates columns by semicolons ('a;b'): separate columns by commas, and write decimals with a point"
    )
    assert sentence in capsys.readouterr().err
