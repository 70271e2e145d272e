"""Files and values that were read as something else than they say."""

import numpy as np
import pytest
import torch

from pyro_dgp import Settings, Standardizer, compare
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.reading import load
from pyro_dgp.data.splitting import Scaler, held_out_rows, split


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        ("rows have more fields than the first line has names", "a,b\n" + "1,2,3\n4,5,7\n" * 9),
        ("its first line holds numbers, 0.5, 1.5, and no names", "0.5,1.5\n" + "1,2\n3,5\n" * 9),
        ("names the column 'y' twice", "a,y,y\n" + "1,2,3\n4,5,7\n" * 9),
        ("column 1 has no name; if it numbers the rows", ",a,y\n" + "0,2,3\n1,5,7\n" * 9),
    ],
)
def test_a_table_that_would_be_misread_is_refused(sentence, text, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        load(path)


def test_names_that_number_the_columns_are_names(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("0,1,2\n" + "".join(f"{k},{k * k},{k**3}\n" for k in range(12)))
    data = load(path)
    assert data.columns == ("0", "1")
    np.testing.assert_array_equal(data.y, np.arange(12.0) ** 3)


#: A row of the training part of split 1.
ROW = int(np.flatnonzero(~held_out_rows(Dataset("d", np.zeros((40, 2)), np.zeros(40)), 1))[0])


def table(rows=40):
    random = np.random.RandomState(0)
    x = random.randn(rows, 2)
    return x, np.sin(x[:, 0])


@pytest.mark.parametrize("value", [1e200, -1e300])
def test_a_value_that_makes_all_others_equal_is_refused(value):
    x, y = table()
    y[ROW] = value
    with pytest.raises(ValueError, match=r"the target 'y' of 'd' holds -?1e\+[23]00, so far .* of 36 stay apart"):
        split(Dataset("d", x, y), 1)
    x, y = table()
    x[ROW, 1] = value
    with pytest.raises(ValueError, match=r"input column 1 of 'd' holds -?1e\+[23]00"):
        split(Dataset("d", x, y), 1)
    with pytest.raises(ValueError, match="stay apart"):
        compare(None, x, y, methods=["svgp"], settings=Settings(split=1))
    with pytest.raises(ValueError, match="stay apart when it is standardised to float64"):
        Standardizer.fit(torch.as_tensor(x))


def test_single_precision_tells_less_apart():
    x, y = table()
    x[ROW, 0] = 1e10
    data = Dataset("d", x, y)
    assert len(split(data, 1).x_train[:, 0].unique()) == 36
    with pytest.raises(ValueError, match="standardised to float32"):
        split(data, 1, dtype=torch.float32)


def test_columns_of_few_values_and_large_ones_are_no_fault():
    x, y = table()
    x[:, 1] = np.arange(40) == 5  # one row of its kind
    assert split(Dataset("d", x * 1e6 + 1e9, y), 0, dtype=torch.float32).x_train.shape == (36, 2)


@pytest.mark.parametrize("size", [1e160, 1e300])
def test_a_column_of_large_values_is_standardised(size):
    values = np.random.RandomState(1).randn(30, 2)
    small, large = Scaler.fit(values), Scaler.fit(values * np.array([1.0, size]))
    np.testing.assert_allclose(large.scale, small.scale * [1.0, size], rtol=1e-12)
    np.testing.assert_allclose(large(values * [1.0, size]), small(values), rtol=1e-9, atol=1e-12)
