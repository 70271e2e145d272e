"""Values that would be taken for others on their way into a comparison: masked entries, parts of complex numbers, rows of no use."""

import datetime

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dgp import Settings, advise, sweep
from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.run import compare
from pyro_dgp.data.arrays import as_array, of_arrays
from pyro_dgp.data.dataset import Dataset
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


def test_words_in_a_table_of_one_column_are_classes():
    table = of_arrays("d", np.zeros((4, 1)), pd.DataFrame({"kind": ["cat", "dog", "cat", "dog"]}))
    assert table.labels == ("cat", "dog") and table.y.tolist() == [0, 1, 0, 1]


def test_a_table_of_arrow_is_taken():
    arrow = pytest.importorskip("pyarrow")
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
