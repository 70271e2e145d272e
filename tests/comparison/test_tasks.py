"""Classes and counts in the comparison, from a table to a prediction."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import nbinom

from pyro_dgp import Bernoulli, LinearMean, Softmax, compare, load, load_fit, scores, sweep
from pyro_dgp.__main__ import main
from pyro_dgp.comparison.plan import plan_of
from pyro_dgp.comparison.request import Request
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.zoo.presets import PRESETS
from pyro_dgp.zoo.settings import Settings
from tests.comparison import own_models

TOY = Settings(inducing=10, samples=2, epochs=40, batch_size=60, width=2)
OPTIONS = ["--inducing", "10", "--samples", "2", "--epochs", "40", "--batch-size", "60", "--width", "2"]


@pytest.fixture
def tables(tmp_path):
    rng = np.random.RandomState(0)
    x = rng.randn(120, 2)
    kind = np.where(x[:, 0] > 0.5, "high", np.where(x[:, 0] > -0.5, "mid", "low"))
    found = {"words": kind, "binary": (x[:, 0] > 0).astype(int), "counts": rng.poisson(np.exp(x[:, 0]))}
    for name, y in found.items():
        colour = rng.choice(["red", "green"], 120)
        pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "colour": colour, "y": y}).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    return tmp_path


CLASS_SCORES = {"nll", "accuracy", "brier", "ece"}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("words", [], "holds words, which are 3 classes: high, low, mid"),
        ("binary", [], "taken for two classes"),
        ("counts", ["--task", "counts"], "holds counts, and is left as it is"),
    ],
)
def test_a_table_is_compared_kept_and_predicted(tables, capsys, name, options, said):
    out, data = tables / "out", tables / f"{name}.csv"
    arguments = ["compare", "--data", str(data), "--methods", "svgp,dsvi,aep", "--output", str(out)]
    assert main([*arguments, *OPTIONS, *options]) == 0
    text = capsys.readouterr()
    assert said in text.out + text.err
    rows = json.loads((out / "results.json").read_text())
    for row in rows:
        if name == "counts":
            assert {"nll", "rmse", "crps"} <= row.keys() and "accuracy" not in row
        else:
            assert row.keys() >= CLASS_SCORES and "rmse" not in row
            assert row["accuracy"] > 0.6 and 0 <= row["ece"] < 0.5
    assert (out / "comparison.png").stat().st_size > 20_000
    for method in ("dsvi", "aep"):
        table = tables / f"{method}.csv"
        assert (
            main(["predict", "--fit", str(out), "--method", method, "--data", str(data), "--output", str(table)]) == 0
        )
        predicted = pd.read_csv(table)
        if name == "counts":
            assert {"mean", "quantile_05", "log_density"} <= set(predicted)
        else:
            names = ["high", "low", "mid"] if name == "words" else ["0", "1"]
            probs = predicted[[f"p({each})" for each in names]]
            np.testing.assert_allclose(probs.to_numpy().sum(1), 1.0, atol=1e-6)
            y = pd.read_csv(data)["y"].astype(str)
            assert (predicted["class"].astype(str) == y).mean() > 0.7
            own = probs.to_numpy()[np.arange(120), [names.index(each) for each in y]]
            np.testing.assert_allclose(predicted["log_density"], np.log(own), atol=1e-6)
    blank = pd.read_csv(data).assign(y=np.nan)
    for column, code in ((blank["y"], 0), (pd.read_csv(data)["y"].where(blank.index > 2), 2)):
        blank.assign(y=column).to_csv(tables / "blank.csv", index=False)
        arguments = ["predict", "--fit", str(out), "--method", "dsvi", "--data", str(tables / "blank.csv")]
        assert main([*arguments, "--output", str(tables / f"filled{code}.csv")]) == code
    assert "log_density" not in pd.read_csv(tables / "filled0.csv")
    assert "drop the column or fill it" in capsys.readouterr().err
    fit = load_fit(out, "dsvi")
    assert fit.labels == (("high", "low", "mid") if name == "words" else ())


def test_folds_are_pooled_over_rows(tables):
    out = tables / "out"
    arguments = [
        "compare",
        "--data",
        str(tables / "words.csv"),
        "--methods",
        "svgp",
        "--folds",
        "3",
        "--output",
        str(out),
    ]
    assert main([*arguments, *OPTIONS]) == 0
    (row,) = json.loads((out / "results.json").read_text())
    assert row["folds"] == 3 and len(row["accuracy_per_fold"]) == 3
    assert row["accuracy"] == pytest.approx(np.mean(row["accuracy_per_fold"]))  # folds of 40 rows each
    assert row["ece"] < max(row["ece_per_fold"])


def test_methods_that_cannot_have_classes_are_refused_before_anything_runs(tables, capsys):
    arguments = [
        "compare",
        "--data",
        str(tables / "binary.csv"),
        "--methods",
        "exact-gp,svgp,sgpr,dsvi-collapsed,vff-collapsed",
    ]
    assert main([*arguments, "--output", str(tables / "out"), *OPTIONS]) != 0
    text = capsys.readouterr().err
    wanted = "exact-gp, sgpr, dsvi-collapsed, vff-collapsed cannot fit the target 'y', which holds two classes: take svgp, ppgpr, dsvi or dspp"
    assert wanted in text
    assert not (tables / "out").exists()


def test_a_model_of_ones_own_with_classes_is_compared():
    rng = np.random.RandomState(0)
    x = rng.randn(80, 2)
    y = (x[:, 0] > 0).astype(float) + (x[:, 1] > 0.5)
    factory = lambda x: DeepGP(x, 2, 2, likelihood=Softmax(3), outputs=3)
    result = compare(
        factory, x, y, methods=["svgp", "ppgpr"], settings=replace(TOY, epochs=5, beta=1.0), say=lambda sentence: None
    )
    assert all(row.keys() >= CLASS_SCORES for row in result.rows)
    assert result["svgp"].predict(x[:4]).probs.shape == (4, 3)
    assert "accuracy higher" in str(result)


def test_a_sweep_takes_the_task_of_the_data(tables):
    data = load(tables / "words.csv")
    (row,) = sweep([data], ["dsvi"], settings=TOY)
    assert row.keys() >= CLASS_SCORES and row["settings"]["task"] == "multiclass" and row["settings"]["classes"] == 3


def test_a_sweep_says_what_it_takes_targets_for(tables, capsys):
    options = ["sweep", "--methods", "svgp", "--epochs", "1", "--inducing", "5", "--output", str(tables / "runs.jsonl")]
    assert main([*options, "--data", f"{tables / 'counts.csv'},{tables / 'binary.csv'}"]) == 0
    said = capsys.readouterr().err
    assert "counts: the target 'y' is taken for real numbers, and holds whole numbers" in said
    assert "binary: the target 'y' is taken for two classes, by its values" in said
    (tables / "runs.jsonl").unlink()
    assert main([*options, "--data", str(tables / "counts.csv"), "--task", "counts"]) == 0
    assert "counts: the target 'y' holds counts" in capsys.readouterr().err
    assert json.loads((tables / "runs.jsonl").read_text())["settings"]["task"] == "counts"


def test_an_option_that_is_given_twice_is_refused(tables, capsys):
    for command in ("compare", "advise"):
        with pytest.raises(SystemExit):
            main([command, "--data", str(tables / "counts.csv"), "--target", "y", "--target", "a"])
        assert "--target is given twice: give it once, several names with commas between" in capsys.readouterr().err


def test_arguments_that_a_comparison_does_not_pass_are_named(tables, capsys):
    own = str(Path(own_models.__file__))
    arguments = [
        "compare",
        "--data",
        str(tables / "counts.csv"),
        "--methods",
        "svgp",
        "--inducing",
        "5",
        "--epochs",
        "1",
    ]
    assert main([*arguments, "--model", f"{own}:Counts", "--output", str(tables / "out")]) == 0
    assert "the model is called as model(x, y), without area: where rows have such values" in "".join(
        capsys.readouterr()
    )
    assert main([*arguments, "--model", f"{own}:Required", "--output", str(tables / "other")]) != 0
    assert "a comparison passes nothing else, so give further arguments defaults" in capsys.readouterr().err


def test_settings_that_are_not_those_of_a_preset_are_said(tables):
    def said(settings):
        lines = []
        request = Request(dataset=load(tables / "counts.csv", task="regression"), methods=("svgp",), settings=settings)
        plan_of(request, request.dataset, finished=[], say=lines.append)
        return [line for line in lines if "preset" in line]

    own = PRESETS["ashman2020"].settings
    assert said(replace(own, split=1, seed=3)) == []
    (line,) = said(Settings(preset="ashman2020", inducing=5, epochs=1))
    assert "which are PRESETS['ashman2020'].settings: inducing=5 (its own: 100)" in line
    assert "epochs=1 (its own: None), steps=None (its own: 20000)" in line


def test_presets_are_of_real_numbers(tables, capsys):
    arguments = ["compare", "--data", str(tables / "binary.csv"), "--preset", "ashman2020", "--methods", "svgp"]
    assert main([*arguments, "--output", str(tables / "out")]) != 0
    assert "preset ashman2020 has models of real numbers" in capsys.readouterr().err
    arguments = ["compare", "--data", str(tables / "counts.csv"), "--target", "a,b", "--preset", "ashman2020"]
    assert main([*arguments, "--output", str(tables / "out")]) != 0
    assert "preset ashman2020 has models of one target, and there are 2: name one" in capsys.readouterr().err


def test_task_needs_data(tables, capsys):
    assert main(["compare", "--task", "binary", "--output", str(tables / "out")]) != 0
    assert "--task is that of --data" in capsys.readouterr().err


def test_words_are_explained_to_an_own_model_of_classes_and_refused_by_one_of_real_numbers(tables, capsys):
    own = str(Path(own_models.__file__))
    table = pd.read_csv(tables / "words.csv")
    table[table["y"] != "mid"].to_csv(tables / "two.csv", index=False)
    arguments = ["compare", "--data", str(tables / "two.csv"), "--methods", "svgp", "--inducing", "5", "--epochs", "5"]
    assert main([*arguments, "--model", f"{own}:Classes", "--output", str(tables / "out")]) == 0
    assert "the target 'y' holds words, which are two classes: high, low" in "".join(capsys.readouterr())
    assert main([*arguments, "--model", f"{own}:Skip", "--output", str(tables / "other")]) != 0
    said = "the target 'y' holds the words high, low, and Skip observes real numbers: give it a likelihood of 2 classes, such as Bernoulli"
    assert said in capsys.readouterr().err
    arguments[2] = str(tables / "words.csv")
    for name, observed in (
        ("Classes", "two classes"),
        ("Counts", "counts or other numbers"),
        ("FourClasses", "4 classes"),
    ):
        assert main([*arguments, "--model", f"{own}:{name}", "--output", str(tables / name)]) != 0
        said = f"the words high, low, mid, and {name} observes {observed}: give it a likelihood of 3 classes, such as Softmax(3)"
        assert said in capsys.readouterr().err
    arguments[2] = str(tables / "counts.csv")
    assert main([*arguments, "--model", f"{own}:Counts", "--task", "regression", "--output", str(tables / "task")]) != 0
    assert "--task describes the library's own model, and --model brings another" in capsys.readouterr().err


def remarks_on(y, settings=TOY, **options):
    """What a comparison of arrays says of these targets, and its result."""
    said = []
    x = np.random.RandomState(1).randn(len(y), 2)
    few = replace(settings, epochs=1)
    return said, compare(None, x, y, methods=["svgp"], settings=few, say=said.append, threads=1, **options)


KINDS = np.arange(60) % 3


@pytest.mark.parametrize(
    ("y", "remark"),
    [
        (
            KINDS,
            "whole numbers from 0 to 2: say --task multiclass, Settings(task='multiclass'), if they are classes; say --task counts",
        ),
        (KINDS + 1, "whole numbers from 1 to 3: number classes 0, 1, ... and say --task multiclass"),
        (KINDS**5, "whole numbers from 0 to 32: say --task counts, Settings(task='counts'), if they are counts"),
    ],
)
def test_arrays_of_whole_numbers_are_said_to_be_taken_for_real_numbers(y, remark):
    said, _ = remarks_on(y)
    assert any("the target 'y' is taken for real numbers" in sentence and remark in sentence for sentence in said)


@pytest.mark.parametrize(("y", "task"), [(KINDS + 0.5, "regression"), (KINDS, "multiclass")])
def test_other_targets_and_tasks_that_are_named_are_not_doubted(y, task):
    said, _ = remarks_on(y, replace(TOY, task=task))
    assert said and not any("taken for" in sentence for sentence in said)


def test_a_guess_at_a_table_names_the_other_tasks(tables, capsys):
    table = pd.read_csv(tables / "counts.csv").assign(y=KINDS[np.arange(120) % 60])
    table.to_csv(tables / "small.csv", index=False)
    arguments = [
        "compare",
        "--data",
        str(tables / "small.csv"),
        "--methods",
        "svgp",
        "--epochs",
        "1",
        "--inducing",
        "5",
    ]
    assert main([*arguments, "--output", str(tables / "one")]) == 0
    text = capsys.readouterr()
    assert (
        "taken for 3 classes, by its values: say --task counts if they are counts, and --task regression"
        in text.out + text.err
    )
    assert main([*arguments, "--task", "multiclass", "--output", str(tables / "two")]) == 0
    text = capsys.readouterr()
    assert "taken for" not in text.out + text.err


@pytest.mark.parametrize(
    "kind", [np.array, list, pd.Series, pd.Categorical, lambda words: pd.Series(words).astype("category")]
)
def test_words_and_kinds_of_arrays_are_classes(kind):
    words = [("low", "mid", "top")[number] for number in KINDS]
    said, result = remarks_on(kind(words))
    assert "the target 'y' holds words, which are 3 classes: low, mid, top" in said
    assert result["svgp"].labels == ("low", "mid", "top")
    test = np.random.RandomState(2).randn(6, 2), kind(words[:6])
    prediction = result["svgp"].predict(test[0])
    assert scores(prediction, test[1]) == scores(prediction, torch.tensor([float(n) for n in KINDS[:6]]))
    assert torch.equal(prediction.log_prob(test[1]), prediction.log_prob(KINDS[:6]))
    _, other = remarks_on(kind(words), test=test)
    assert other.rows[0]["n_test"] == 6
    with pytest.raises(ValueError, match="the target holds 'best', which training had not: it had low, mid, top"):
        remarks_on(kind(words), test=(test[0], kind(["best", *words[:5]])))


def test_columns_of_words_of_a_table_are_inputs_as_those_of_a_file_are(tables):
    table = pd.read_csv(tables / "counts.csv")
    x, y = table.drop(columns="y"), table["y"].astype(float)
    said, read = [], load(tables / "counts.csv", task="regression")
    result = compare(None, x, y, methods=["svgp"], settings=replace(TOY, epochs=1), say=said.append, threads=1)
    assert list(result["svgp"].columns) == list(read.columns) and any("colour=" in name for name in read.columns)
    again = result["svgp"].predict(x.sample(frac=1.0, random_state=0).sort_index()[list(x.columns[::-1])])
    assert torch.equal(again.mean, result["svgp"].predict(read.x).mean)
    with pytest.raises(ValueError, match="column 'colour' of the new rows holds 'blue', which training had not"):
        result["svgp"].predict(x.assign(colour="blue"))


def test_classes_of_the_test_rows_alone_are_refused_before_training():
    test = np.random.RandomState(2).randn(6, 2), np.array([0, 1, 2, 3, 0, 0])
    with pytest.raises(ValueError, match="test rows hold 3, and those of the training rows the classes 0 to 2"):
        remarks_on(KINDS, replace(TOY, task="multiclass"), test=test)


def test_test_rows_that_hold_no_counts_are_refused_before_training():
    test = np.random.RandomState(2).randn(2, 2), np.array([1, 0.5])
    with pytest.raises(ValueError, match="the targets of the test rows hold 0.5, which is no count"):
        remarks_on(KINDS, replace(TOY, task="counts"), test=test)


def test_the_task_of_the_settings_says_nothing_of_a_model_of_ones_own():
    """Classes of the settings made one-hot targets of a model of two classes, which torch refused."""
    x = np.random.RandomState(1).randn(60, 2)
    few = replace(TOY, epochs=1, task="multiclass")
    factory = lambda x: DeepGP(x, 2, 2, likelihood=Bernoulli(), mean=LinearMean.fit)
    result = compare(factory, x, (x[:, 0] > 0).astype(float), methods=["dsvi"], settings=few, say=lambda sentence: None)
    assert result["dsvi"].predict(x[:2]).probs.shape == (2, 2)


@pytest.mark.parametrize("method", ["svgp", "dsvi"])
def test_counts_of_tens_of_thousands_are_fitted(method):
    """The constant mean starts at the logarithm of their mean: functions that started at zero were 1.9 nats a row behind."""
    rng = np.random.RandomState(0)
    x = rng.uniform(-2, 2, (300, 2))
    mean = 50_000 * np.exp(np.sin(2 * x[:, 0]))
    y = rng.negative_binomial(10, 10 / (10 + mean))
    settings = Settings(task="counts", inducing=20, epochs=400, kernel="rbf")
    result = compare(None, x, y, methods=[method], settings=settings, say=lambda sentence: None, threads=1)
    best = -nbinom.logpmf(y, 10, 10 / (10 + mean)).mean()
    found = -float(result[method].predict(x).log_prob(torch.as_tensor(y, dtype=torch.float64)).mean())
    assert abs(found - best) < 0.1
