"""Values that would be taken for others on their way into a comparison: masked entries, parts of complex numbers, rows of no use."""

import datetime
from dataclasses import replace

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule

from pyro_dgp import RBF, GaussianProcess, Ordinal, Settings, advise, sweep, to_arviz
from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.predict_command import carried_columns, predicted, spare_columns
from pyro_dgp.comparison.run import compare
from pyro_dgp.data.arrays import as_array, numbered, of_arrays
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.reading import load
from pyro_dgp.data.streams import Stream
from tests.comparison.test_own_model import TOY, data, quiet

SMALL = Settings(inducing=5, epochs=1, samples=2)
MASKED = r"hold masked entries \(1\): drop or fill such rows"
COMPLEX = "hold complex numbers: give real and imaginary parts as columns of their own"


def masked(values):
    found = np.ma.array(values, mask=np.zeros(np.shape(values), dtype=bool))
    found[3] = np.ma.masked
    return found


def test_masked_entries_are_refused_wherever_values_enter():
    x, y = data()
    for given in ((x, masked(y)), (masked(x), y)):
        for ask in (
            lambda x, y: compare(None, x, y, methods=["svgp"], settings=TOY, say=quiet),
            lambda x, y: compare(None, *data(), methods=["svgp"], settings=TOY, test=(x, y), say=quiet),
            lambda x, y: advise(Dataset("d", x, y), settings=SMALL),
            lambda x, y: sweep([Dataset("d", x, y)], ["svgp"], settings=SMALL),
        ):
            with pytest.raises(ValueError, match=MASKED):
                ask(*given)
    fit = compare(None, x, np.ma.array(y), methods=["svgp"], settings=TOY, say=quiet)["svgp"]
    with pytest.raises(ValueError, match=MASKED):
        fit.predict(masked(x))


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, list])
def test_complex_numbers_are_refused(kind):
    with pytest.raises(ValueError, match=COMPLEX):
        as_array(kind(np.array([1.0 + 2.0j, 3.0])))


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, list])
def test_complex_numbers_that_are_real_have_their_remedy(kind):
    with pytest.raises(ValueError, match=r"hold complex numbers: give their \.real, which is all of them"):
        as_array(kind(np.array([1.0 + 0.0j, 3.0])))


DAYS = ["2020-01-01", "2021-01-01"] * 3
TIMES = {
    "Series": pd.Series(pd.to_datetime([*DAYS[:5], None])),
    "of a time zone": pd.Series(pd.to_datetime([*DAYS[:5], None], utc=True)),
    "datetime64": np.array([*DAYS[:5], "NaT"], dtype="datetime64[D]"),
    "timedelta64": np.array(range(6), dtype="timedelta64[h]"),
    "objects": np.array([np.datetime64("2020-01-01"), np.datetime64("NaT")] * 3, dtype=object),
    "dates": [datetime.date(2020, 1, day) for day in range(1, 7)],
    "a table": pd.DataFrame({"day": pd.to_datetime(DAYS)}),
    "a table of both": pd.DataFrame({"day": pd.to_datetime(DAYS), "v": range(6)}),
}


@pytest.mark.parametrize("values", TIMES.values(), ids=TIMES)
def test_dates_are_refused_with_what_to_do(values):
    """Their numbers would be those of a unit, and a missing date a number far below all others."""
    message = r"inputs and targets hold dates or spans of time: give them as numbers, such as days"
    for given in ((values, np.arange(6.0)), (np.zeros((6, 1)), values)):
        with pytest.raises(ValueError, match=message):
            of_arrays("d", *given)


def test_the_remedy_for_dates_gives_days():
    for dates in (np.array(["2020-01-01", "2020-01-03"], dtype="datetime64[s]"), TIMES["Series"]):
        with pytest.raises(ValueError, match="such as days") as caught:
            as_array(dates)
        days = as_array(eval(str(caught.value).partition("such as days, ")[2], {"dates": dates, "numpy": np}))
        assert days[1] - days[0] == (2 if len(dates) == 2 else 366)
        assert np.isnan(days).sum() == (len(dates) == 6)  # a missing date is a missing number


def test_two_columns_of_one_name_are_refused():
    x, y = data()
    with pytest.raises(ValueError, match="the inputs have two columns 'a': give each a name of its own"):
        compare(None, pd.DataFrame(np.hstack([x, x]), columns=["a"] * (2 * x.shape[1])), y, methods=["svgp"], say=quiet)


def test_a_number_and_a_word_that_name_two_columns_alike_are_refused():
    """The second stood for both: inputs vanished, and predictions from a table were others than from its array."""
    x, y = data()
    table = pd.DataFrame(np.hstack([x, -x]), columns=[0, "0"])
    sentence = "the inputs have two columns '0': give each a name of its own"
    with pytest.raises(ValueError, match=sentence):
        compare(None, table, y, methods=["svgp"], say=quiet)
    with pytest.raises(ValueError, match=sentence):
        compare(None, table.assign(word=["a", "b"] * 15), y, methods=["svgp"], say=quiet)
    fit = compare(None, pd.DataFrame(x, columns=["0"]), y, methods=["svgp"], settings=TOY, say=quiet)["svgp"]
    with pytest.raises(ValueError, match=sentence):
        fit.predict(table)


def test_numbers_that_name_kinds_are_taken_by_name():
    """Names were sorted as text, 0, 1, 10, 2, and a number was taken for the place of a name there."""
    y = np.array([10, 9, 2, 2, 10, 9])
    kinds = of_arrays("d", np.zeros((6, 1)), pd.Series(pd.Categorical(y)))
    assert kinds.labels == ("2", "9", "10") and kinds.is_ordered and kinds.y.tolist() == [2, 1, 0, 0, 2, 1]
    for given in (y, y.astype(float), torch.as_tensor(y), list(y)):
        assert numbered(given, kinds.labels).tolist() == kinds.y.tolist()
    with pytest.raises(ValueError, match="the targets hold 3, which training had not: it had 2, 9, 10"):
        numbered(np.array([2, 3]), kinds.labels)
    assert numbered(np.array([0, 1]), ("007", "010")).tolist() == [0, 1]  # codes are words


def test_classes_whose_names_are_numbers_have_their_own_log_density_in_files_and_draws():
    """Their places were taken for names once more, of other classes."""
    x, y = data()
    kinds = pd.Series(pd.Categorical(1 + np.argsort(np.argsort(y)) // 10))
    fit = compare(None, x, kinds, methods=["svgp"], settings=TOY, say=quiet)["svgp"]
    assert fit.labels == ("1", "2", "3")
    rows = pd.DataFrame({"0": x[:4, 0], "y": [2, 3, 2, 3]})
    found = predicted(replace(fit, columns=("0",)), rows)
    np.testing.assert_allclose(
        np.exp(found["log_density"]), [found[f"p({each})"][at] for at, each in enumerate(rows["y"])], rtol=1e-6
    )
    prediction = fit.predict(x[:4])
    draws = prediction.sample((50,))
    assert set(draws.unique().tolist()) <= {1.0, 2.0, 3.0}
    one = torch.full((4,), 3.0).double()
    torch.testing.assert_close(prediction.log_prob(one), prediction.probs[:, 2].log())
    assert numbered(np.array([0.2, 0.1], dtype="float32"), ("0.1", "0.2")).tolist() == [1, 0]


def test_names_of_columns_that_a_fit_does_not_take_and_two_words_need_no_order(unannotated):
    x, y = data()
    fit = compare(None, pd.DataFrame({"a": x[:, 0]}), y, methods=["svgp"], settings=TOY, say=quiet)["svgp"]
    twice = pd.DataFrame(np.hstack([x, x, x]), columns=["id", "id", "a"])
    assert torch.equal(fit.predict(twice).mean, fit.predict(x).mean)
    words = np.where(y > np.median(y), "yes", "no")
    assert len(compare(Pair, x, words, methods=["svgp"], settings=TOY, say=quiet).rows) == 1


class Pair(PyroModule):
    def __init__(self, x):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Ordinal(2)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


class Ranks(PyroModule):
    def __init__(self, x):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Ordinal(3)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


def test_classes_in_an_order_are_those_that_the_data_declare():
    x, y = data()
    words = np.array(["low", "medium", "high"])[(np.argsort(np.argsort(y)) // 10)]
    declared = pd.Categorical(words, categories=["low", "medium", "high"], ordered=True)
    found = of_arrays("d", x, pd.Series(declared))
    assert found.labels == ("low", "medium", "high") and found.is_ordered
    with pytest.raises(ValueError, match=r"and the words high, low, medium of 'y' have none: number them 0, 1, \.\.\."):
        compare(Ranks, x, words, methods=["svgp"], settings=TOY, say=quiet)
    by_words, by_numbers = (
        compare(Ranks, x, target, methods=["svgp"], settings=TOY, say=quiet).rows[0]["nll"]
        for target in (pd.Series(declared), found.y)
    )
    assert by_words == by_numbers


def test_masks_of_splits_hold_nothing_else(tmp_path):
    x, y = data()
    for masks in (np.arange(30) % 5, np.where(np.arange(30) < 5, np.nan, 0), np.where(np.arange(30) < 5, -1, 1)):
        np.savez(tmp_path / "d.npz", X=x, y=y, splits=masks[:, None])
        with pytest.raises(ValueError, match="'splits' in 'd.npz' hold other numbers than 0 and 1"):
            load(tmp_path / "d.npz")


@pytest.mark.parametrize("name", ["Series", "timedelta64", "dates"])
def test_dates_in_a_file_are_refused(name, tmp_path):
    """They became columns of zeros."""
    pytest.importorskip("pyarrow")
    pd.DataFrame({"d": list(pd.Series(TIMES[name]))[:5] * 4, "y": range(20)}).to_parquet(tmp_path / "d.parquet")
    with pytest.raises(ValueError, match="column 'd' of 'd.parquet' holds dates or spans of time: write it as numbers"):
        load(tmp_path / "d.parquet")


@pytest.mark.usefixtures("unannotated")
def test_small_whole_numbers_and_single_precision_are_scaled_in_double_precision():
    """The spread of bytes from -100 to 100 wrapped around, and targets far from zero were rounded."""
    x, y = data()
    far = (1e6 + y).astype("float32")
    tens = np.linspace(-100, 100, 30).round()[:, None]
    for given, same in (
        ((tens.astype("int8"), y), (tens, y)),
        ((x, far), (x, far.astype(float))),
        ((x > np.median(x), y), (1.0 * (x > np.median(x)), y)),
    ):
        few = replace(SMALL, inducing=2)  # a truth value has two
        rows = [sweep([Dataset("d", *values)], ["svgp"], settings=few)[0] for values in (given, same)]
        assert [row.get("error") for row in rows] == [None, None]
        assert rows[0]["rmse_original"] == rows[1]["rmse_original"]


def test_a_target_that_has_the_name_of_an_input_is_not_looked_for_in_new_rows(tmp_path):
    x, y = data()
    table = pd.DataFrame({"x": x[:, 0], "y": -(x[:, 0] ** 2)})
    fit = compare(None, table, y, methods=["svgp"], settings=TOY, say=quiet)["svgp"]
    assert fit.target_name == "y"
    np.testing.assert_allclose(predicted(fit, table[["y", "x"]])["mean"], fit.predict(table).mean)


def test_columns_that_are_no_inputs_stand_before_the_predictions():
    x, y = data()
    table = pd.DataFrame({"x": x[:, 0], "kind": ["a", "b"] * (len(x) // 2)})
    fit = compare(None, table, y, methods=["svgp"], settings=TOY, say=quiet)["svgp"]
    new = table[:4].assign(plot=["p7", "p2", "p9", "p1"], mean=3.0, day=[4, 1, 2, 2])[
        ["day", "kind", "mean", "x", "plot"]
    ]
    new.index = pd.Index([3, 3, 1, 0])
    found = predicted(fit, new.rename(columns={"kind": " kind"}))
    assert list(found) == ["day", "plot", "mean", "sd", "quantile_05", "quantile_95"]
    assert list(found["plot"]) == ["p7", "p2", "p9", "p1"] and list(found["day"]) == [4, 1, 2, 2]
    np.testing.assert_allclose(found["mean"], fit.predict(table[:4]).mean)
    with pytest.raises(
        ValueError,
        match="it had a, b; correct or drop the rows that hold it, 2 in all, the first of them row 1 counted from 0",
    ):
        predicted(fit, new.assign(kind=["a", "c", "b", "c"]))


def test_names_of_rows_are_written_as_they_were(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, y = data()
    compare(None, pd.DataFrame({"x": x[:, 0]}), y, methods=["svgp"], settings=TOY, say=quiet, output=tmp_path / "kept")
    new = "id,x,price,mean,tag\n007,0.5,0.10,8,1e5\n9007199254740993,-0.5,,9,b\n"
    (tmp_path / "new.csv").write_text(new)
    assert main(["predict", "--fit", "kept", "--method", "svgp", "--data", "new.csv", "--output", "out.csv"]) == 0
    lines = [line.split(",") for line in (tmp_path / "out.csv").read_text().splitlines()]
    assert lines[0] == ["id", "price", "tag", "mean", "sd", "quantile_05", "quantile_95"]
    assert [line[:3] for line in lines[1:]] == [["007", "0.10", "1e5"], ["9007199254740993", "", "b"]]
    assert "columns of new.csv that have names of figures are not in it: mean\n" in capsys.readouterr().out


def test_a_target_may_have_the_name_of_a_figure():
    x, y = data()
    fit = compare(None, pd.DataFrame({"x": x[:, 0]}), y, methods=["svgp"], settings=TOY, say=quiet)["svgp"]
    rows = pd.DataFrame({"class": y[:4], "x": x[:4, 0], "p": 1.0, "p(a)": 2.0})
    assert carried_columns(rows, fit, "class") == [False, False, True, False]
    assert spare_columns(rows, fit, "class") == [False, False, True, True]
    assert list(predicted(fit, rows, "class")) == ["p", "mean", "sd", "quantile_05", "quantile_95", "log_density"]


class Labels(PyroModule):
    def __init__(self, x):
        super().__init__()
        self.gp = GaussianProcess(RBF(), num_outputs=2)

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", dist.Bernoulli(logits=f).to_event(2), obs=y)


def test_a_table_of_several_classes_a_row_has_columns_for_each():
    x, _ = data()
    y = np.hstack([x > np.median(x), x > np.quantile(x, 0.7)]).astype(float)
    fit = compare(Labels, x, y, methods=["svgp"], settings=TOY, say=quiet)["svgp"]
    found = predicted(fit, pd.DataFrame(x[:4]))
    assert list(found) == ["class(y0)", "p(0)(y0)", "p(1)(y0)", "class(y1)", "p(0)(y1)", "p(1)(y1)"]
    np.testing.assert_allclose(found["p(1)(y1)"], fit.predict(x[:4]).probs[:, 1, 1])


@pytest.mark.usefixtures("unannotated")
def test_a_prediction_in_units_of_the_data_makes_no_object_of_arviz():
    x, y = data()
    fit = compare(None, x, y, methods=["svgp"], settings=TOY, say=quiet)["svgp"]
    with pytest.raises(TypeError, match="take prediction.standardised with targets standardised"):
        to_arviz(fit.predict(x), torch.as_tensor(x), torch.as_tensor(y))


def test_words_in_a_table_of_one_column_are_classes():
    table = of_arrays("d", np.zeros((4, 1)), pd.DataFrame({"kind": ["cat", "dog", "cat", "dog"]}))
    assert table.labels == ("cat", "dog") and table.y.tolist() == [0, 1, 0, 1]


def test_a_table_of_arrow_is_taken():
    arrow = pytest.importorskip("pyarrow")
    x, y = data()
    fit = compare(None, arrow.table({"a": x[:, 0]}), y, methods=["svgp"], settings=TOY, say=quiet)["svgp"]
    assert fit.columns == ("a",)
    assert torch.equal(fit.predict(arrow.table({"b": y, "a": x[:, 0]})).mean, fit.predict(x).mean)
    assert as_array(arrow.table({"a": [1.0, 2.0], "b": [3, 4]})).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    for days in ([datetime.date(2020, 1, 1), None], [datetime.datetime(2020, 1, 1), None]):
        with pytest.raises(ValueError, match="hold dates or spans of time"):
            as_array(arrow.table({"d": days, "b": [1.0, 2.0]}))


def test_new_rows_of_complex_numbers_are_refused(tmp_path, capsys):
    x, y = data()
    np.savez(tmp_path / "d.npz", X=x, y=y)
    np.savez(tmp_path / "new.npz", X=x + 1j)
    compared = f"compare --data {tmp_path}/d.npz --methods svgp --epochs 1 --inducing 5 --output {tmp_path}/out"
    assert main(compared.split()) == 0
    asked = f"predict --fit {tmp_path}/out --method svgp --data {tmp_path}/new.npz --output {tmp_path}/new.csv"
    assert main(asked.split()) == 2
    assert f"the values of 'X' in 'new.npz' {COMPLEX}" in capsys.readouterr().err


def test_a_stream_of_masked_blocks_is_refused():
    class Blocks(Stream):
        sizes = (5,)

        def read(self, block):
            return masked(np.ones((5, 2))), np.ones(5)

    with pytest.raises(ValueError, match=r"the values of an input of block 0 of the stream hold masked entries \(2\)"):
        next(Blocks().batches(2))


@pytest.mark.usefixtures("unannotated")
def test_a_sweep_checks_its_data_and_takes_tensors():
    x, y = data()
    for values, sentence in (
        ((np.where(x > 50, np.nan, x), y), "'d' has NaN or infinity in input column 0"),
        ((x, y[:-1]), r"'d' has inputs \(30, 1\) and targets \(29,\)"),
        ((x[:5], y[:5]), "'d' has 5 rows: at least 10 are needed"),
        ((x, [None] * 30), "NaN or infinity in the target"),
    ):
        with pytest.raises(ValueError, match=sentence):
            sweep([Dataset("d", *values)], ["svgp"], settings=SMALL)
    (of_tensors,) = sweep([Dataset("d", torch.as_tensor(x), torch.as_tensor(y))], ["svgp"], settings=SMALL)
    (of_arrays,) = sweep([Dataset("d", x, y)], ["svgp"], settings=SMALL)
    assert of_tensors["nll"] == of_arrays["nll"] and of_tensors["data"] == of_arrays["data"]
    with pytest.raises(TypeError, match="a sweep takes data sets, such as .* not str"):
        sweep(["d.csv"], ["svgp"], settings=SMALL)  # type: ignore[list-item]


@pytest.mark.usefixtures("unannotated")
def test_a_sweep_leaves_the_fingerprint_of_single_precision_as_it_is():
    x, y = data()
    single = Dataset("d", x.astype("float32"), y.astype("float32"))
    (row,) = sweep([single], ["svgp"], settings=SMALL)
    assert row["data"] == single.fingerprint()


@pytest.mark.parametrize(
    ("layers", "said"), [(3, ["one layer, whatever --layers says (3): svgp, sgpr"]), (2, []), (1, [])]
)
def test_a_method_of_one_layer_says_so_where_more_are_asked_for(layers, said):
    x, y = data()
    heard = []
    settings = replace(TOY, layers=layers, epochs=1)
    compare(None, x, y, methods=["svgp", "dsvi", "sgpr"], settings=settings, say=heard.append, threads=1)
    assert [line for line in heard if "whatever --layers" in line] == said
