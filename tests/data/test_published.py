"""Published formats, on small files written here."""

import gzip

import numpy as np
import pandas as pd
import pytest

from pyro_dgp.data.published import load_flights, load_mnist, load_rectangles, load_year
from pyro_dgp.data.splitting import split
from pyro_dgp.data.tasks import Task


def idx(values):
    values = np.asarray(values, dtype=np.uint8)
    head = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return head + values.tobytes()


@pytest.fixture
def mnist(tmp_path):
    images = np.arange(16 * 6).reshape(16, 2, 3) % 256
    images[:, 1, 1] = 7  # the same in all
    digits = np.arange(16) % 4
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images[:12]))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(digits[:12])))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[12:])))
    (tmp_path / "t10k-labels.idx1-ubyte").write_bytes(idx(digits[12:]))
    return tmp_path


def test_mnist_is_read_packed_or_not(mnist):
    data = load_mnist(mnist)
    assert data.x.shape == (16, 5) and data.x[13].tolist() == [78, 79, 80, 81, 83] and data.y[13] == 1
    assert data.columns == ("pixel 0", "pixel 1", "pixel 2", "pixel 3", "pixel 5")
    assert split(data, 0).x_train.shape == (12, 5)
    assert data.task == Task("multiclass", 4)
    assert data.splits[:, 0].tolist() == [False] * 12 + [True] * 4


def test_mnist_that_is_cut_off_or_missing_is_refused(mnist):
    path = mnist / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="'train-images-idx3-ubyte' is no idx file of bytes, or is cut off"):
        load_mnist(mnist)
    path.write_bytes(idx(np.zeros((11, 2, 3))))
    with pytest.raises(ValueError, match=r"images \(11, 2, 3\) and labels \(12,\)"):
        load_mnist(mnist)
    path.unlink()
    with pytest.raises(ValueError, match="there is no file 'train-images-idx3-ubyte'"):
        load_mnist(mnist)
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="cannot be read"):
        load_mnist(mnist)


def test_rectangles_are_rows_of_pixels_and_a_class(tmp_path):
    pixels, classes = np.random.RandomState(0).rand(14, 4), np.arange(14) % 2
    for name, rows in (("train.amat", slice(0, 8)), ("test.amat", slice(8, 14))):
        np.savetxt(tmp_path / name, np.c_[pixels[rows], classes[rows]])
    data = load_rectangles(tmp_path / "train.amat", tmp_path / "test.amat")
    np.testing.assert_allclose(data.x, pixels)
    assert data.y.tolist() == classes.tolist() and data.splits.sum() == 6 and data.task == Task("binary", 2)
    (tmp_path / "words.amat").write_text("a b c\n")
    with pytest.raises(ValueError, match=r"'words.amat' is no table of numbers"):
        load_rectangles(tmp_path / "words.amat", tmp_path / "test.amat")


def test_years_are_split_by_artists(tmp_path):
    rows = np.random.RandomState(0).randn(15, 4)
    rows[:, 0] = 1990 + np.arange(15)
    np.savetxt(tmp_path / "year.txt", rows, delimiter=",")
    data = load_year(tmp_path / "year.txt", training_rows=12)
    assert data.y.tolist() == rows[:, 0].tolist() and data.splits[:, 0].sum() == 3
    np.testing.assert_allclose(data.x, rows[:, 1:])
    with pytest.raises(ValueError, match="has 15 rows, no more than the 463715 of training"):
        load_year(tmp_path / "year.txt")


def test_flights_get_the_age_of_their_plane(tmp_path):
    count = 20
    flights = pd.DataFrame({"Year": 2008, "Month": [1] * 10 + [4] * 8 + [5] * 2, "DayofMonth": 3, "DayOfWeek": 4})
    for name in ("DepTime", "ArrTime", "AirTime", "Distance"):
        flights[name] = np.arange(count) + 100.0
    flights["TailNum"] = ["N1", "N2"] * 10
    flights["ArrDelay"] = np.arange(count) - 5.0
    flights.loc[3, "ArrDelay"] = np.nan  # cancelled
    flights.loc[5, "TailNum"] = "unknown"
    flights.to_csv(tmp_path / "2008.csv", index=False)
    for unknown in ("None", "0000", "2009"):
        pd.DataFrame({"tailnum": ["N1", "N2"], "year": ["2000", unknown]}).to_csv(tmp_path / "planes.csv", index=False)
        with pytest.raises(ValueError, match="has 9 rows"):
            load_flights(tmp_path / "2008.csv", tmp_path / "planes.csv", months=4)
    pd.DataFrame({"tailnum": ["N1", "N2"], "year": ["2000", "1998"]}).to_csv(tmp_path / "planes.csv", index=False)
    assert len(load_flights(tmp_path / "2008.csv", tmp_path / "planes.csv").x) == 18  # the whole year
    data = load_flights(tmp_path / "2008.csv", tmp_path / "planes.csv", months=4)
    assert len(data.x) == 16 and data.columns[-1] == "PlaneAge" and set(data.x[:, -1]) == {8.0, 10.0}
    assert data.y.tolist() == [d - 5.0 for d in range(18) if d not in (3, 5)]
    with pytest.raises(ValueError, match="the table of planes has no column 'tailnum'"):
        load_flights(tmp_path / "2008.csv", tmp_path / "2008.csv")
