"""Malformed files: what goes wrong on disks, and what someone may send who wishes a reader ill."""

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np

ROWS = 24


class Payload:
    """An object whose pickle makes a file when it is read: what a reader must never do."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (Path(self.marker),)


def pickled(marker):
    return pickle.dumps(Payload(marker))


def header(shape, dtype="<f8", fortran=False, version=(1, 0)):
    """The header of an array as a file claims it, true or not."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text


def member(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(compression=zipfile.ZIP_STORED, **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


X, Y = np.linspace(0, 1, 2 * ROWS).reshape(ROWS, 2) ** 2, np.sin(np.arange(float(ROWS)))
GOOD = {"X": member(X), "y": member(Y)}


def with_length(content, length):
    """An archive whose directory claims another length of its first member."""
    at = content.index(b"PK\x01\x02")
    return content[: at + 24] + struct.pack("<I", length) + content[at + 28 :]


def archives(marker):
    """Files for ``--data FILE.npz``, by name."""
    good = archive(**GOOD)
    objects = np.array([Payload(marker)] * ROWS, dtype=object)
    hole = archive(X=header((10**7, 10**7)) + b"\0" * 64, y=GOOD["y"])
    zeros = io.BytesIO()
    with zipfile.ZipFile(zeros, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        made.writestr("X.npy", header((64 * 2**13, 2)) + bytes(64 * 2**13 * 2))  # says 8 bytes a number, has 1
        made.writestr("y.npy", GOOD["y"])
    flipped = bytearray(good)
    flipped[200] ^= 0xFF
    encrypted = bytearray(good)
    for sign, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(sign) + offset] |= 1
    return {
        "pickle": pickled(marker),
        "object-array": archive(X=member(objects), y=GOOD["y"]),
        "pickle-inside": archive(X=pickled(marker), y=GOOD["y"]),
        "target-of-objects": archive(X=GOOD["X"], y=member(objects)),
        "splits-of-objects": archive(**GOOD, splits=member(objects)),
        "task-of-objects": archive(**GOOD, task=member(objects)),
        "claims-800-terabytes": hole,
        "claims-more-than-it-has": archive(X=header((10**6, 2)) + b"\0" * 64, y=GOOD["y"]),
        "claims-less-than-it-has": archive(X=header((2, 2)) + b"\0" * 640, y=GOOD["y"]),
        "bomb": zeros.getvalue(),
        "false-length": with_length(good, 2**31),
        "negative-shape": archive(X=header((-1, 2)) + X.tobytes(), y=GOOD["y"]),
        "overflowing-shape": archive(X=header((2**63, 2**63)) + X.tobytes(), y=GOOD["y"]),
        "shape-of-words": archive(X=header(("a", 2)) + X.tobytes(), y=GOOD["y"]),
        "shape-is-no-tuple": archive(X=header("5") + X.tobytes(), y=GOOD["y"]),
        "unknown-type": archive(X=header((ROWS, 2), "<q9") + X.tobytes(), y=GOOD["y"]),
        "code-in-header": archive(X=header(f"__import__('pathlib').Path({str(marker)!r}).touch()"), y=GOOD["y"]),
        "long-header": archive(X=header((1,) * 30_000, version=(2, 0)) + b"\0" * 8, y=GOOD["y"]),
        "nested-header": archive(X=header("(" * 900) + b"\0" * 8, y=GOOD["y"]),
        "header-cut-off": archive(X=b"\x93NUMPY\x01\x00\xff", y=GOOD["y"]),
        "newer-format": archive(X=header((ROWS, 2), version=(9, 0)) + X.tobytes(), y=GOOD["y"]),
        "empty-member": archive(X=b"", y=GOOD["y"]),
        "zero-dimensional": archive(X=member(np.array(3.0)), y=GOOD["y"]),
        "zero-dimensional-target": archive(X=GOOD["X"], y=member(np.array(3.0))),
        "three-dimensional": archive(X=member(np.ones((ROWS, 2, 2))), y=GOOD["y"]),
        "words": archive(X=member(np.array([["a", "b"]] * ROWS)), y=GOOD["y"]),
        "bytes": archive(X=member(np.array([[b"a", b"b"]] * ROWS)), y=GOOD["y"]),
        "records": archive(X=member(np.zeros((ROWS, 2), [("a", "f8"), ("b", "f8")])), y=GOOD["y"]),
        "dates": archive(X=member(np.zeros((ROWS, 2), "M8[s]")), y=GOOD["y"]),
        "durations": archive(X=member(np.zeros((ROWS, 2), "m8[s]")), y=GOOD["y"]),
        "complex": archive(X=member(X.astype(complex)), y=GOOD["y"]),
        "splits-of-words": archive(**GOOD, splits=member(np.array([["1"]] * ROWS))),
        "splits-of-other-rows": archive(**GOOD, splits=member(np.ones((3, 1)))),
        "no-rows": archive(X=member(np.ones((0, 2))), y=member(np.ones(0))),
        "no-columns": archive(X=member(np.ones((ROWS, 0))), y=GOOD["y"]),
        "cut-off": good[: len(good) // 2],
        "end-cut-off": good[:-30],
        "flipped-bit": bytes(flipped),
        "encrypted": bytes(encrypted),
        "lzma": archive(zipfile.ZIP_LZMA, **GOOD),
        "nothing": b"",
        "zeros": bytes(4096),
        "other-names": archive(a=GOOD["X"]),
        "no-members": archive(),
    }


def tables():
    """Files for ``--data``, by name with the ending."""
    good = "a,b\n" + "".join(f"{a},{b}\n" for a, b in zip(X[:, 0], Y, strict=True))
    return {
        "rubbish.csv": np.random.RandomState(0).bytes(4096),
        "only-nul.csv": bytes(4096),
        "nul-in-cells.csv": good.replace("0.0,", "\0,", 1).encode(),
        "one-line.csv": b"a,b\n",
        "no-lines.csv": b"",
        "newlines.csv": b"\n" * 1000,
        "utf-16.csv": good.encode("utf-16"),
        "latin-1.csv": ("größe,b\n" + good.partition("\n")[2]).encode("latin-1"),
        "open-quote.csv": b'a,b\n"1,2\n' + b"3,4\n" * 12,
        "huge-field.csv": b"a,b\n" + b"1" * 1_000_000 + b",2\n" + b"3,4\n" * 12,
        "mixed.csv": b"a,b\n" + b"1,2\nred,3\n,4\n2.5,5\n" * 6,
        "huge-number.csv": b"a,b\n" + b"1e999,2\n3,4\n" * 12,
        "uneven.csv": b"a,b\n1,2\n3,4,5\n" * 12,
        "lines-in-names.csv": b'"a\nb\nc",d\n' + b"1,x y\n2,\n" * 12,
        "many-columns.csv": ",".join(f"c{k}" for k in range(500)).encode() + b"\n",
        "rubbish.parquet": np.random.RandomState(0).bytes(4096),
        "nothing.parquet": b"",
        "only-signs.parquet": b"PAR1" * 8,
        "length-of-footer.parquet": b"PAR1" + bytes(64) + struct.pack("<I", 2**31 - 1) + b"PAR1",
        "cut-off.parquet": _parquet()[:-200],
        "flipped.parquet": _flipped(_parquet()),
        "words.txt": b"hello",
        "no-ending": b"a,b\n1,2\n",
    }


def _parquet():
    import pandas as pd

    file = io.BytesIO()
    pd.DataFrame({"a": X[:, 0], "b": Y}).to_parquet(file)
    return file.getvalue()


def _flipped(content):
    content = bytearray(content)
    for at in range(4, len(content) - 8, 7):
        content[at] ^= 0xFF
    return bytes(content)


def paths(folder):
    """Paths for ``--data`` that lead to no plain file."""
    (folder / "folder.csv").mkdir()
    os.mkfifo(folder / "pipe.csv")
    os.mkfifo(folder / "pipe.npz")
    (folder / "loop.npz").symlink_to(folder / "loop.npz")
    (folder / "nowhere.npz").symlink_to(folder / "gone.npz")
    (folder / "plain").write_text("")
    names = ["folder.csv", "pipe.csv", "pipe.npz", "loop.npz", "nowhere.npz", "gone.npz", "plain/below.npz"]
    return [*(folder / name for name in names), folder / f"{'n' * 300}.npz", Path("/dev/zero")]


def _changed(row, **changes):
    return {key: value for key, value in (row | changes).items() if value is not ...}


def _json(value):
    return json.dumps(value).encode()


def result_tables(rows, marker):
    """Contents of ``results.json`` that are no results, by name; ``rows`` are one that is, of one method."""
    (row,) = rows
    changes = {
        "later-version": {"version": 2},
        "version-of-words": {"version": "new"},
        "no-method": {"method": ...},
        "method-of-numbers": {"method": 3},
        "method-elsewhere": {"method": "../elsewhere"},
        "method-of-300-letters": {"method": "m" * 300},
        "no-config": {"config": ...},
        "config-is-a-list": {"config": [1]},
        "no-scores": {"nll": ...},
        "score-of-words": {"nll": "low"},
        "score-is-nothing": {"rmse": None},
        "score-is-a-list": {"crps": [1.0]},
        "seconds-of-words": {"train_seconds": "long"},
        "r-hat-of-words": {"r_hat_max": "1.0"},
        "fold-scores-of-words": {"nll_per_fold": ["a"]},
        "fold-scores-are-one": {"nll_per_fold": 3},
    }
    return {
        "pickle": pickled(marker),
        "nothing": b"",
        "rubbish": np.random.RandomState(0).bytes(512),
        "cut-off": _json(rows)[:-40],
        "a-dictionary": _json(row),
        "a-number": b"3",
        "null": b"null",
        "list-of-lists": b"[[1]]",
        "list-of-nothing": b"[null]",
        "nested": b"[" * 100_000,
        "long-number": b"[" + b"9" * 10_000 + b"]",
        "utf-16-rubbish": b"\xff\xfe" + b"\xd8" * 31,
        "twice": _json(rows * 2),
        **{name: _json([_changed(row, **change)]) for name, change in changes.items()},
    }


def sweep_files(line, marker):
    """Contents of the file of a sweep that are none; ``line`` is one that is."""
    row = json.loads(line)
    changes = {
        "later-version": {"version": 2},
        "no-dataset": {"dataset": ...},
        "dataset-is-a-list": {"dataset": ["waves"]},
        "no-score": {"nll": ...},
        "score-of-words": {"nll": "low"},
        "no-settings": {"settings": ...},
        "settings-are-words": {"settings": "small"},
        "split-is-a-fraction": {"split": 0.5},
    }
    return {
        "pickle": pickled(marker) + b"\n",
        "rubbish": np.random.RandomState(0).bytes(512),
        "text-without-end": b"dear diary,\ntoday",
        "one-word": b"precious",
        "numbers": b"[1, 2]\n",
        "nested": b"[" * 100_000 + b"\n",
        **{name: _json(_changed(row, **change)) + b"\n" for name, change in changes.items()},
    }


def kept_facts(facts, marker):
    """Contents of ``fits/METHOD.json`` that are no fit; ``facts`` are one that is."""
    settings = facts["settings"]
    changes = {
        "later-version": {"version": 2},
        "of-another-method": {"method": "dsvi"},
        "no-settings": {"settings": ...},
        "settings-of-a-later-program": {"settings": settings | {"warp": 9}},
        "setting-of-words": {"settings": settings | {"inducing": "many"}},
        "kernel-of-numbers": {"settings": settings | {"kernel": 3}},
        "unknown-kernel": {"settings": settings | {"kernel": "os.system"}},
        "unknown-preset": {"settings": settings | {"preset": "none2030"}},
        "type-is-a-function": {"dtype": "load"},
        "model-is-words": {"model": "os.system"},
        "columns-of-numbers": {"columns": [1]},
        "no-means": {"inputs": {"scale": [1.0]}},
        "means-of-other-columns": {"inputs": {"mean": [0.0], "scale": [1.0]}},
        "no-predictor": {"predictor": ...},
        "predictor-of-rubbish": {"predictor": {"dict": [[{"set": [{"dict": []}]}, 1]]}},
        "predictor-of-two-kinds": {"predictor": {"dict": [], "set": []}},
    }
    return {
        "pickle": pickled(marker),
        "nothing": b"",
        "list": b"[]",
        "nested": b'{"a":' * 50_000,
        **{name: _json(_changed(facts, **change)) for name, change in changes.items()},
    }


def kept_arrays(arrays, marker):
    """Contents of ``fits/METHOD.npz`` that are no fit; ``arrays`` are one that is."""
    good = {name: member(values) for name, values in arrays.items()}
    objects = member(np.array([Payload(marker)], dtype=object))
    first = next(name for name in arrays if name.startswith("predictor."))
    return {
        "pickle": pickled(marker),
        "objects": archive(**good | {first: objects}),
        "no-rows": archive(**{name: content for name, content in good.items() if name != "x_train"}),
        "no-probe": archive(**{name: content for name, content in good.items() if name != "probe"}),
        "rows-elsewhere": archive(**good | {"given": member(np.array([10**9]))}),
        "rows-of-fractions": archive(**good | {"given": member(np.array([0.5]))}),
        "flat-inputs": archive(**good | {"x_train": member(np.ones(3))}),
        "other-inputs": archive(**good | {"x_train": member(arrays["x_train"][:, :1])}),
        "other-shape": archive(**good | {first: member(np.ones((7, 5, 3)))}),
        "words": archive(**good | {first: member(np.array(["a"]))}),
        "probe-of-other-rows": archive(**good | {"probe": member(np.ones((9, 9)))}),
        "claims-800-terabytes": archive(**good | {"draws.f": header((10**7, 10**7)) + bytes(64)}),
        "cut-off": archive(**good)[:-100],
    }


def states(good, marker):
    """Contents of a checkpoint that are none; ``good`` is one that is."""
    length = struct.unpack("<Q", good[:8])[0]
    facts = json.loads(good[8 : 8 + length])

    def made(**metadata):
        words = _json(facts | {"__metadata__": facts["__metadata__"] | metadata})
        return struct.pack("<Q", len(words)) + words + good[8 + length :]

    tensor = next(name for name in facts if name != "__metadata__")
    outside = _json(facts | {tensor: facts[tensor] | {"data_offsets": [0, 2**40]}})
    return {
        "pickle": pickled(marker),
        "nothing": b"",
        "header-of-exabytes": struct.pack("<Q", 2**60) + good[8:],
        "tensor-outside": struct.pack("<Q", len(outside)) + outside + good[8 + length :],
        "cut-off": good[:-50],
        "later-version": made(version="2"),
        "version-of-words": made(version="new"),
        "state-is-no-json": made(state="{"),
        "state-is-nested": made(state="[" * 50_000),
        "state-is-a-list": made(state="[1]"),
        "state-is-empty": made(state="{}"),
        "unknown-tensor": made(state='{"facts": {"tensor of the file": "900"}}'),
        "tensor-of-numbers": made(state='{"facts": {"tensor of the file": 3}}'),
        "facts-are-words": made(state='{"facts": "steps", "first": 1.0}'),
        "loss-of-words": made(state='{"facts": {}, "first": "low"}'),
    }
