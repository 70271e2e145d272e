import tracemalloc

import numpy as np
import pytest
import torch

from pyro_dgp import ELBO, InducingPoints, MonteCarlo, Variational
from pyro_dgp.data.reading import load
from pyro_dgp.data.streams import POOL, NumpyStream, ParquetStream, Standardized, Stream
from pyro_dgp.training.loop import fit, fit_stream
from tests.examples import OneLayer, regression


def on_disk(folder, rows=100, block_rows=16, **batches):
    x = np.random.RandomState(0).randn(rows, 2)
    x[:, 1] = np.arange(rows)
    y = 3 * x[:, 0] + 7
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return NumpyStream(folder / "x.npy", folder / "y.npy", block_rows, **batches), x, y


def one_pass(stream, batch_size, seed=0):
    batches = stream.batches(batch_size, seed)
    count = -(-len(stream) // batch_size)
    return [next(batches) for _ in range(count)], [next(batches) for _ in range(count)]


def test_a_pass_visits_every_row_once_and_the_next_in_another_order(tmp_path):
    stream, x, y = on_disk(tmp_path)
    first, second = one_pass(stream, 12)
    assert [len(batch[0]) for batch in first] == [12] * 8 + [4]
    orders = []
    for batches in (first, second):
        inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
        order = inputs[:, 1].long()
        assert sorted(order.tolist()) == list(range(100))
        assert torch.equal(inputs, torch.as_tensor(x)[order]) and torch.equal(targets, torch.as_tensor(y)[order])
        orders.append(order.tolist())
    assert orders[0] != orders[1]
    again = torch.cat([batch[0] for batch in one_pass(stream, 12)[0]])[:, 1]
    other = torch.cat([batch[0] for batch in one_pass(stream, 12, seed=1)[0]])[:, 1]
    assert again.tolist() == orders[0] != other.tolist()


def test_rows_of_several_blocks_meet_in_a_batch(tmp_path):
    stream, _, _ = on_disk(tmp_path)
    blocks = {int(row) // 16 for row in next(stream.batches(12))[0][:, 1]}
    assert 2 <= len(blocks) <= POOL
    assert {int(row) // 16 for row in next(stream.batches(12, seed=1))[0][:, 1]} - blocks  # other blocks first


def test_no_more_blocks_are_in_memory_than_the_pool(tmp_path):
    class Counted(Stream):
        sizes = (1000,) * 50
        largest = asked = 0

        def read(self, block):
            self.asked += 1
            return np.full((1000, 1), float(block)), np.zeros(1000)

    stream = Counted()
    batches = stream.batches(100)
    for seen in range(1, 481):
        next(batches)
        ahead = 1000 * stream.asked - 100 * seen
        stream.largest = max(stream.largest, ahead)
    assert stream.largest == 1000 * POOL - 100


def test_memory_is_that_of_twice_the_pool(tmp_path):
    class Wide(Stream):
        sizes = (1000,) * 24

        def read(self, block):
            return np.full((1000, 100), float(block)), np.zeros(1000)

    batches = Wide().batches(100)
    tracemalloc.start()
    for _ in range(240):
        next(batches)
    peak = tracemalloc.get_traced_memory()[1] / (1000 * 101 * 8)
    tracemalloc.stop()
    assert peak < 2 * POOL + 1


def test_streams_without_rows_and_empty_blocks():
    class Sized(Stream):
        def __init__(self, *sizes):
            super().__init__()
            self.sizes = sizes

        def read(self, block):
            return np.random.RandomState(block).randn(self.sizes[block], 2), np.arange(float(self.sizes[block]))

    with pytest.raises(ValueError, match="the stream has no rows"):
        next(Sized().batches(3))
    gaps = Sized(0, 3, 0, 4)
    assert sum(len(batch[0]) for batch in one_pass(gaps, 3)[0]) == 7
    assert Standardized(gaps).target_mean == pytest.approx(9 / 7)


def test_parquet_gives_the_rows_that_numpy_gives(tmp_path):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    stream, x, y = on_disk(tmp_path)
    table = pandas.DataFrame({"a": x[:, 0], "target": y, "b": x[:, 1]})
    table.to_parquet(tmp_path / "t.parquet", row_group_size=16)
    other = ParquetStream(tmp_path / "t.parquet", "target")
    assert list(other.sizes) == list(stream.sizes) and len(other) == 100
    for ours, theirs in zip(one_pass(stream, 12)[0], one_pass(other, 12)[0], strict=True):
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    with pytest.raises(ValueError, match="no column 'y': its columns are a, target, b"):
        ParquetStream(tmp_path / "t.parquet", "y")
    table["b"] = "word"
    table.to_parquet(tmp_path / "words.parquet")
    with pytest.raises(ValueError, match="column 'b' of .* holds .*string, not numbers"):
        ParquetStream(tmp_path / "words.parquet", "target")


def test_standardised_by_all_rows(tmp_path):
    stream, x, y = on_disk(tmp_path)
    standard = Standardized(stream)
    inputs, targets = (torch.cat(parts).numpy() for parts in zip(*one_pass(standard, 7)[0], strict=True))
    assert np.allclose(inputs.mean(0), 0) and np.allclose(inputs.std(0), 1)
    assert np.allclose(targets.std(), 1)
    assert standard.target_scale == pytest.approx(y.std()) and standard.target_mean == pytest.approx(y.mean())
    order = np.argsort(inputs[:, 1])
    assert np.allclose(standard.target_mean + standard.target_scale * targets[order], y)


@pytest.mark.slow
def test_training_from_disk_is_training_in_memory(tmp_path):
    x, y = regression(40)
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())

    def objective():
        torch.manual_seed(0)
        guide = Variational(OneLayer(), InducingPoints(8), MonteCarlo(1))
        guide.initialize(x, y)
        return ELBO(num_data=40)(guide.model, guide)

    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy")
    whole = fit(
        objective(), x, y, steps=5, batch_size=40
    ).losses  # all rows in one batch: their order makes no difference
    assert fit_stream(objective(), stream, steps=5, batch_size=40).losses == pytest.approx(whole, rel=1e-10)
    losses = fit_stream(objective(), stream, steps=300, batch_size=10, learning_rate=0.05).losses
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 0.3
    with pytest.raises(ValueError, match="num_data=40 and there are 100 rows"):
        fit_stream(objective(), on_disk(tmp_path)[0], steps=1, batch_size=10)


def test_samples_and_dtypes(tmp_path):
    stream, _, _ = on_disk(tmp_path, dtype=torch.float32)
    x, y = stream.sample(20)
    assert x.shape == (20, 2) and y.shape == (20,) and x.dtype == y.dtype == torch.float32
    assert len(stream.sample(1000)[0]) == 100


def test_errors_name_the_row_and_the_files(tmp_path):
    stream, x, y = on_disk(tmp_path)
    x[37, 0] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(ValueError, match="an input of row 37 of the stream is NaN or infinity"):
        one_pass(stream, 10)
    np.save(tmp_path / "x.npy", x[:50])
    with pytest.raises(ValueError, match=r"shapes \(50, 2\) and \(100,\): they must be"):
        NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(ValueError, match="block_rows must be at least 1"):
        on_disk(tmp_path, block_rows=0)
    np.save(tmp_path / "x.npy", np.ones((100, 2)))
    for constant in (1.0, 0.1, 1e9 + 0.1):  # the variance of the last two is not zero in the sums
        np.save(tmp_path / "x.npy", np.full((100, 2), constant))
        with pytest.raises(ValueError, match="input 0 of the stream is constant"):
            Standardized(NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", block_rows=7))


def test_files_of_no_numbers_are_named(tmp_path):
    x, words, several = tmp_path / "x.npy", tmp_path / "words.npy", tmp_path / "several.npz"
    np.save(x, np.zeros((4, 2)))
    np.save(words, np.array(["a", "b", "c", "d"]))
    np.savez(several, y=np.zeros(4))
    (tmp_path / "text.npy").write_text("a,b")
    for file, found in (
        (words, "holds <U1"),
        (several, "holds several arrays"),
        (tmp_path / "text.npy", "write it by np.save"),
    ):
        with pytest.raises(ValueError, match=rf"{file.name} is no .npy file of numbers.*{found}"):
            NumpyStream(x, file)


def test_further_row_arguments_travel_with_their_rows(tmp_path):
    stream, x, _ = on_disk(tmp_path)
    np.save(tmp_path / "weight.npy", np.stack([x[:, 1], -x[:, 1]], -1))
    more = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", 16, rows=[tmp_path / "weight.npy"])
    for source in (more, Standardized(more)):
        for inputs, targets, weights in one_pass(source, 12)[0]:
            assert weights.shape == (len(inputs), 2) and len(targets) == len(inputs)
            order = weights[:, 0].long()
            torch.testing.assert_close(weights[:, 1], -weights[:, 0])
            if source is more:
                assert torch.equal(inputs[:, 1].long(), order)
    assert len(stream.sample(10)) == 2 and len(more.sample(10)) == 3
    np.save(tmp_path / "short.npy", np.zeros(99))
    with pytest.raises(ValueError, match=r"short.npy has shape \(99,\) and .* has 100 rows"):
        NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", rows=[tmp_path / "short.npy"])
    np.save(tmp_path / "bad.npy", np.full(100, np.nan))
    with pytest.raises(ValueError, match="row argument 1 of row .* is NaN or infinity"):
        next(NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", rows=[tmp_path / "bad.npy"]).batches(5))


@pytest.mark.parametrize("index", ["shuffled", "named", "words", "range", "two", "none"])
def test_an_index_that_pandas_wrote_is_no_column(index, tmp_path):
    pd, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    path, table = tmp_path / "t.parquet", pd.DataFrame({"a": np.arange(16.0), "y": np.ones(16), "b": np.zeros(16)})
    table = {
        "shuffled": lambda: table.sample(frac=1, random_state=0),
        "named": lambda: table.set_index(pd.Index(np.arange(16) ** 2, name="day")),
        "words": lambda: table.set_index(pd.Index(list("abcdefghijklmnop"))),
        "range": lambda: table,
        "two": lambda: table.set_index(pd.MultiIndex.from_product([range(4), range(4)], names=["c", None])),
        "none": lambda: table,
    }[index]()
    table.to_parquet(path, index=False if index == "none" else None)
    stream = ParquetStream(path, "y")
    assert tuple(stream.inputs) == load(path, "y").columns == ("a", "b")
    x, y = next(stream.in_order())
    assert x.tolist() == table[["a", "b"]].to_numpy().tolist() and torch.equal(y, torch.ones(16).double())
    if index == "named":
        with pytest.raises(ValueError, match="no column 'day': its columns are a, y, b"):
            ParquetStream(path, "y", rows=["day"])


def test_what_is_no_record_of_pandas_is_one_sentence(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"a": [1.0], "y": [2.0]})
    for record in (b"{", b"[1]", b'{"index_columns": 3}'):
        parquet.write_table(table.replace_schema_metadata({b"pandas": record}), tmp_path / "t.parquet")
        with pytest.raises(ValueError, match="cannot be read as Parquet") as caught:
            ParquetStream(tmp_path / "t.parquet", "y")
        assert "\n" not in str(caught.value)


def test_columns_of_parquet_may_be_row_arguments(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": np.arange(20.0), "exposure": 2 * np.arange(20.0), "y": np.zeros(20)})
    table.to_parquet(tmp_path / "rows.parquet")
    x, y, exposure = next(ParquetStream(tmp_path / "rows.parquet", "y", rows=["exposure"]).batches(8))
    assert x.shape == (8, 1) and y.shape == (8,) and torch.equal(exposure, 2 * x[:, 0])
    with pytest.raises(ValueError, match="has no column 'nope'"):
        ParquetStream(tmp_path / "rows.parquet", "y", rows=["nope"])


def test_a_model_is_trained_on_the_row_arguments_of_a_stream(tmp_path):
    class Shifted(OneLayer):
        def forward(self, x, y=None, offset=None, *, sign=1.0):
            assert len(offset) == len(x)
            torch.testing.assert_close(offset, 2 * x[:, 0])
            return super().forward(x, y)

    _, x, _ = on_disk(tmp_path)
    np.save(tmp_path / "offset.npy", 2 * x[:, 0])
    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", 16, rows=[tmp_path / "offset.npy"])
    guide = Variational(Shifted(), InducingPoints(5), MonteCarlo(1))
    with pytest.warns(UserWarning, match="standardise inputs"):
        guide.initialize(*stream.sample(30))
    result = fit_stream(ELBO(100)(guide.model, guide), stream, steps=3, batch_size=20, sign=-1.0)
    assert len(result.losses) == 3


@pytest.mark.parametrize("sizes", [(16, 16), (16, 12), (12, 16)])
def test_blocks_of_other_lengths_than_stated_are_refused(sizes):
    """Inputs and targets of one length that is not the stated one would be read by rows that are not there."""

    class Unequal(Stream):
        def __init__(self, *lengths):
            super().__init__()
            self.lengths, self.sizes = lengths, (14, 20)

        def read(self, block):
            lengths = (20, 20) if block else self.lengths
            return np.random.RandomState(block).randn(lengths[0], 2), np.arange(float(lengths[1]))

    stream = Unequal(*sizes)
    message = (
        f"block 0 of the stream has inputs, targets and row arguments of {sizes[0]}, {sizes[1]} rows and sizes says 14"
    )
    for use in (lambda: one_pass(stream, 5), lambda: list(stream.in_order()), lambda: Standardized(stream)):
        with pytest.raises(ValueError, match=message):
            use()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(50, 3), (50,), (50, 2, 4)])
def test_rows_are_read_from_either_order_of_storage(tmp_path, order, shape):
    values = np.arange(float(np.prod(shape))).reshape(shape).astype("f4")
    np.save(tmp_path / "e.npy", np.asarray(values, order=order))
    on_disk(tmp_path, rows=50)
    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", 16, rows=[tmp_path / "e.npy"])
    found = np.concatenate([stream.read(block)[2] for block in range(4)])
    assert np.array_equal(found, values) and found.dtype == np.float32


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("rows", [90, 110])
def test_a_file_of_another_length_than_at_opening_is_refused(tmp_path, name, rows):
    stream, x, y = on_disk(tmp_path)
    batches = stream.batches(12)
    next(batches)
    other = {"x": np.resize(x, (rows, 2)), "y": np.resize(y, rows)}
    np.save(tmp_path / f"{name}.npy", other[name])
    with pytest.raises(ValueError, match=rf"{name}.npy had shape \(100.* opened and has \({rows}"):
        list(zip(range(20), batches, strict=False))
    with pytest.raises(ValueError, match=r"must be \(N, D\) and \(N,\)"):
        NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy")


def test_a_file_that_is_cut_is_refused(tmp_path):
    stream, _, _ = on_disk(tmp_path)
    size = (tmp_path / "x.npy").stat().st_size
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(size - 400)
    for use in (lambda: one_pass(stream, 12), lambda: NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy")):
        with pytest.raises(ValueError, match=r"x.npy is no .npy file of numbers"):
            use()


def test_a_file_that_is_cut_between_its_head_and_its_rows_does_not_end_the_process(tmp_path, monkeypatch):
    stream, _, _ = on_disk(tmp_path)
    heads = dict(zip(stream.files, stream.arrays, strict=True))
    monkeypatch.setattr("pyro_dgp.data.streams._array_on_disk", heads.__getitem__)
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(400)
    with pytest.raises(ValueError, match="x.npy became shorter while it was read"):
        one_pass(stream, 12)


class Kinds(Stream):
    """Inputs and targets of whole numbers, and row arguments of several kinds whose values are those of the inputs."""

    sizes = (5, 3, 4)

    def read(self, block):
        numbers = np.arange(sum(self.sizes[:block]), sum(self.sizes[: block + 1]))
        kinds = (numbers + 2**25, numbers.astype("u2"), numbers.astype("u8"), numbers % 2 == 0, numbers / 2)
        return numbers[:, None], numbers, *kinds


def test_row_arguments_of_whole_numbers_and_truth_values_stay_what_they_are():
    stream = Kinds(dtype=torch.float32)
    for source in (stream, Standardized(stream)):
        for batch in (*one_pass(source, 5)[0], *source.in_order()):
            x, y, large, short, long, even, half = batch
            assert x.dtype == y.dtype == half.dtype == torch.float32 and even.dtype == torch.bool
            assert large.dtype == short.dtype == long.dtype == torch.int64
            assert torch.equal(large - 2**25, long) and torch.equal(short, long) and torch.equal(even, long % 2 == 0)
            assert torch.equal(half, long / 2)
            if source is stream:
                assert torch.equal(x[:, 0], y) and torch.equal(y, long.float())


def test_a_whole_number_beyond_int64_is_refused():
    class Hashes(Kinds):
        def read(self, block):
            x, y, *_ = super().read(block)
            return x, y, np.full(len(y), 2**63 + block, dtype=np.uint64)

    with pytest.raises(ValueError, match=r"row argument 1 of the stream holds 92233720368547758\d\d, .* anew"):
        next(Hashes().batches(4))


def test_truth_values_are_read_from_files(tmp_path):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    _, x, _ = on_disk(tmp_path, rows=20)
    mask = x[:, 0] > 0
    np.save(tmp_path / "mask.npy", mask)
    files = NumpyStream(tmp_path / "x.npy", tmp_path / "mask.npy", rows=[tmp_path / "mask.npy"])
    columns = {"a": mask, "b": x[:, 0], "y": mask, "mask": mask, "group": np.arange(20)}
    pandas.DataFrame(columns).to_parquet(tmp_path / "t.parquet")
    for stream in (files, ParquetStream(tmp_path / "t.parquet", "y", rows=["mask", "group"])):
        x, y, found, *group = stream.sample(8)
        assert x.dtype == y.dtype == torch.float64 and found.dtype == torch.bool and torch.equal(y, found.double())
        assert all(each.dtype == torch.int64 for each in group)
    pandas.DataFrame({**columns, "mask": [None, *mask[1:]]}).to_parquet(tmp_path / "gap.parquet")
    with pytest.raises(ValueError, match="row argument 1 of row 0 of the stream is NaN"):
        ParquetStream(tmp_path / "gap.parquet", "y", rows=["mask"]).sample(8)


def test_a_model_takes_indices_from_a_stream_as_from_memory():
    class Grouped(OneLayer):
        def __init__(self):
            super().__init__()
            self.shift = torch.nn.Parameter(torch.zeros(3))

        def forward(self, x, y=None, group=None):
            return super().forward(x + self.shift[group][:, None], y)

    x, y = regression(20)
    group = torch.arange(20) % 3

    class Rows(Stream):
        sizes = (20,)

        def read(self, block):
            return x.numpy(), y.numpy(), group.numpy()

    losses = []
    for run in (
        lambda loss: fit(loss, x, y, steps=3, batch_size=20, group=group),
        lambda loss: fit_stream(loss, Rows(), steps=3, batch_size=20),
    ):
        torch.manual_seed(0)
        guide = Variational(Grouped(), InducingPoints(5), MonteCarlo(1))
        guide.initialize(x, y, group)
        losses.append(run(ELBO(20)(guide.model, guide)).losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


@pytest.mark.parametrize(("mean", "scale"), [(1.6e7, 8.0), (2e9, 600.0)])
def test_targets_of_single_precision_far_from_zero_are_standardised_in_double(mean, scale, tmp_path):
    random = np.random.RandomState(0)
    y = (mean + scale * random.randn(400)).astype(np.float32)
    np.save(tmp_path / "x.npy", random.randn(400, 1))
    np.save(tmp_path / "y.npy", y)
    standard = Standardized(NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", dtype=torch.float64))
    targets = torch.cat([each for _, each in standard.in_order()])
    assert float(targets.mean()) == pytest.approx(0, abs=1e-8) and float(targets.std(correction=0)) == pytest.approx(1)
    assert (standard.target_mean + standard.target_scale * targets.numpy()).astype(np.float32).tolist() == y.tolist()
