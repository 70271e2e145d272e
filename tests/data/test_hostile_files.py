"""Data files that are malformed: one sentence that names the file, no code that runs, no memory that is not there."""

import gzip
import io
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.predict_command import read_rows
from pyro_dgp.data.named import find
from pyro_dgp.data.published import load_mnist
from pyro_dgp.data.reading import load
from pyro_dgp.data.streams import NumpyStream, ParquetStream
from pyro_dgp.internal.untrusted_files import UnreadableError, read_npz
from tests import hostile

NAMES = [*(f"{name}.npz" for name in hostile.archives("")), *hostile.tables()]


def one_sentence(call, *arguments):
    with pytest.raises(ValueError) as caught:
        call(*arguments)
    sentence = str(caught.value)
    assert "TypeCheckError" not in sentence  # no call of ours with wrong types is taken for a bad file
    assert "\n" not in sentence and "\0" not in sentence and len(sentence) < 600
    return sentence


@pytest.mark.parametrize("name", NAMES)
def test_a_malformed_file_is_one_sentence_that_names_it(name, tmp_path):
    marker = tmp_path / "marker"
    contents = hostile.archives(marker)
    path = tmp_path / name
    path.write_bytes(contents[path.stem] if path.suffix == ".npz" else hostile.tables()[name])
    assert path.stem in one_sentence(load, path)
    try:
        read_rows(path)
    except ValueError as error:
        assert path.stem in str(error) and "\n" not in str(error)
    assert not marker.exists()


def test_a_path_to_no_plain_file_is_one_sentence_and_never_waits(tmp_path):
    for path in hostile.paths(tmp_path):
        for read in (load, read_rows, find):
            assert path.name[:40] in one_sentence(read, path)


def test_the_command_ends_with_2_and_one_line(tmp_path, capsys):
    path = tmp_path / "objects.npz"
    path.write_bytes(hostile.archives(tmp_path / "marker")["object-array"])
    bad = [path, *hostile.paths(tmp_path)]
    for command in (["compare", "--output", str(tmp_path / "out")], ["sweep", "--methods", "svgp"]):
        for each in bad:
            assert main([*command, "--data", str(each)]) == 2
            error = capsys.readouterr().err
            assert error.startswith("pyro-dgp: ") and error.count("\n") == 1
    assert not (tmp_path / "marker").exists() and not (tmp_path / "out").exists()


def test_a_file_that_may_not_be_read_is_said(tmp_path, monkeypatch):
    path = tmp_path / "secret.npz"
    np.savez(path, X=hostile.X, y=hostile.Y)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "it may not be read" in one_sentence(load, path)


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_a_file_that_is_gone_after_the_check_is_one_sentence(ending, tmp_path, monkeypatch):
    path = tmp_path / f"d.{ending}"
    frame = pd.DataFrame({"a": hostile.X[:, 0], "b": hostile.Y})
    write = {"npz": lambda: np.savez(path, X=hostile.X, y=hostile.Y), "csv": lambda: frame.to_csv(path)}
    write.get(ending, lambda: frame.to_parquet(path))()
    monkeypatch.setattr("pyro_dgp.data.reading.require_file", lambda path: path.unlink())
    assert f"d.{ending}" in one_sentence(load, path)


def test_arrays_are_read_in_any_order_and_type_of_numbers(tmp_path):
    x, y = hostile.X, hostile.Y
    for change in (np.asfortranarray, lambda a: a.astype(">f8"), lambda a: np.ascontiguousarray(a[::-1])[::-1]):
        np.savez_compressed(tmp_path / "d.npz", X=change(x), y=change(y), splits=(y > 0)[:, None].astype(">i4"))
        data = load(tmp_path / "d.npz")
        np.testing.assert_array_equal(data.x, x)
        np.testing.assert_array_equal(data.y, y)
        np.testing.assert_array_equal(data.splits[:, 0], y > 0)
        np.testing.assert_array_equal(read_rows(tmp_path / "d.npz")[[0, 1]].to_numpy(), x)
    for kind in ("f4", "i8", "u1", "f2", "?"):
        np.savez(tmp_path / "d.npz", X=x, y=(np.arange(24) % 7).astype(kind))
        np.testing.assert_array_equal(load(tmp_path / "d.npz").y, (np.arange(24) % 7).astype(kind).astype(float))


def test_a_table_with_a_mark_of_its_byte_order_is_read(tmp_path):
    text = "a,b\n" + "".join(f"{k},{k * k}\n" for k in range(12))
    (tmp_path / "t.csv").write_bytes(text.encode("utf-8-sig"))
    assert load(tmp_path / "t.csv").columns == ("a",)


def test_long_names_are_names(tmp_path):
    long = "n" * 300
    path = tmp_path / f"{'d' * 240}.csv"
    pd.DataFrame({long: hostile.X[:, 0], "b": hostile.Y}).to_csv(path, index=False)
    data = load(path)
    assert data.columns == (long,) and data.name == "d" * 240
    assert len(one_sentence(load, path, "c")) < 600


def test_the_memory_of_a_bomb_is_not_taken(tmp_path):
    """An archive of a few kilobytes that makes 4 GB by its own account, and one whose header claims 800 TB."""
    size = 2**32 - 2**20
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("X.npy", hostile.header((size // 16, 2)) + bytes(4096))
        made.writestr("y.npy", hostile.GOOD["y"])
    content = bytearray(bomb.getvalue())
    for sign, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = content.index(sign)
        content[at + offset : at + offset + 4] = struct.pack("<I", size + 128)
    claims = {"which the file cannot hold": bytes(content)}
    claims["by its header"] = hostile.archives("")["claims-800-terabytes"]
    for reason, file in claims.items():
        (tmp_path / "d.npz").write_bytes(file)
        tracemalloc.start()
        try:
            assert reason in one_sentence(load, tmp_path / "d.npz")
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


def test_arrays_larger_than_the_memory_are_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "d.npz", X=np.zeros((10_000, 2)))
    monkeypatch.setattr("pyro_dgp.internal.untrusted_files.memory", lambda: 100_000.0)
    with pytest.raises(UnreadableError, match="more than the memory of this machine"):
        read_npz(tmp_path / "d.npz")
    pd.DataFrame({"a": np.zeros(10_000), "b": np.zeros(10_000)}).to_parquet(tmp_path / "d.parquet")
    monkeypatch.setattr("pyro_dgp.data.reading.memory", lambda: 100_000.0)
    assert "more than the memory of this machine" in one_sentence(load, tmp_path / "d.parquet")


def test_arrays_and_tables_that_are_streamed_are_one_sentence(tmp_path):
    marker = tmp_path / "marker"
    good = tmp_path / "y.npy"
    np.save(good, hostile.Y)
    contents = {
        "pickle": hostile.pickled(marker),
        "nothing": b"",
        "claims": hostile.header((10**7, 10**7)) + bytes(64),
        "objects": hostile.member(np.array([hostile.Payload(marker)], dtype=object)),
        "nested": hostile.header("(" * 900),
    }
    for name, content in contents.items():
        path = tmp_path / f"{name}.npy"
        path.write_bytes(content)
        assert path.name in one_sentence(NumpyStream, path, good)
        assert path.name in one_sentence(ParquetStream, path, "b")
    for path in hostile.paths(tmp_path):
        assert path.name[:40] in one_sentence(NumpyStream, path, good)
        assert path.name[:40] in one_sentence(ParquetStream, path, "b")
    assert not marker.exists()


def test_published_files_that_are_cut_off_or_pack_too_much_are_one_sentence(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    head = b"\x00\x00\x08\x03" + struct.pack(">III", 2, 2, 2)
    whole = gzip.compress(head + np.random.RandomState(0).bytes(8))
    bomb = gzip.compress(head + bytes(10**8), 9)
    contents = [
        whole[:-12],
        bomb,
        gzip.compress(head[:3] + b"\xff" * 999),
        b"\x1f\x8b rubbish",
        b"",
        gzip.compress(b""),
    ]
    contents += [gzip.compress(head[:4] + struct.pack(">III", 2**32 - 1, 2**32 - 1, 2**32 - 1))]
    for content in contents:
        path.write_bytes(content)
        tracemalloc.start()
        try:
            assert path.name in one_sentence(load_mnist, tmp_path)
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()


def test_a_working_folder_that_is_gone_is_one_sentence(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["compare", "--data", "diabetes", "--methods", "svgp", "--output", "out"]) == 2
    assert main(["compare", "--data", "d.csv", "--methods", "svgp", "--output", "out"]) == 2
    assert main(["sweep", "--data", "diabetes", "--methods", "svgp", "--output", "runs.jsonl"]) == 2
    assert main(["predict", "--fit", "out", "--method", "svgp", "--data", "d.csv"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 4 and all(line.startswith("pyro-dgp: ") for line in errors)
    os.chdir(Path(tmp_path))
