"""Fingerprints of code: what it reads by global names is part of it, and what it does not read is none."""

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from types import ModuleType

import pytest

from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.fingerprint import fingerprint
from pyro_dgp.comparison.own_model import own_model
from pyro_dgp.comparison.run import compare
from tests.comparison.test_own_model import TOY, data, quiet

READS = "def factory(x):\n    return DeepGP(x, layers=W)\n"
CALLS = "def factory(x):\n    return make(x)\n"

#: Code that reads a value, and what is another value in its place.
CHANGED = {
    "number": (READS, "W = 1", "W = 2"),
    "word": (READS, "W = 'a'", "W = 'b'"),
    "nothing": (READS, "W = None", "W = 'None.'"),
    "tuple": (READS, "W = (1, (2, 3))", "W = (1, (2, 4))"),
    "dictionary": (READS, "W = {'a': 1}", "W = {'a': 2}"),
    "set": (READS, "W = {'a', 'b'}", "W = {'a', 'c'}"),
    "tensor": (READS, "import torch\nW = torch.zeros(2)", "import torch\nW = torch.ones(2)"),
    "array": (READS, "import numpy\nW = numpy.zeros(2)", "import numpy\nW = numpy.ones(2)"),
    "whole number of numpy": (READS, "import numpy\nW = numpy.int64(1)", "import numpy\nW = numpy.int64(2)"),
    "dtype": (READS, "import torch\nW = torch.float32", "import torch\nW = torch.float64"),
    "path": (READS, "from pathlib import Path\nW = Path('a')", "from pathlib import Path\nW = Path('b')"),
    "class of the library": (
        READS,
        "from pyro_dgp import RBF as W",
        "from pyro_dgp import Matern52 as W",
    ),
    "function": (CALLS, "def make(x): return 1", "def make(x): return 2"),
    "function of a function": (CALLS, "def make(x): return W\nW = 1", "def make(x): return W\nW = 2"),
    "function that calls itself": (
        CALLS,
        "def make(x): return make(W)\nW = 1",
        "def make(x): return make(W)\nW = 2",
    ),
    "class": (
        CALLS,
        "class make:\n    def __init__(self, x): self.w = W\nW = 1",
        "class make:\n    def __init__(self, x): self.w = W\nW = 2",
    ),
    "inner function": ("def factory(x):\n    return [W for _ in x], lambda: W\n", "W = 1", "W = 2"),
    "function that is remembered": (
        CALLS,
        "import functools\n@functools.cache\ndef make(x): return 1",
        "import functools\n@functools.cache\ndef make(x): return 2",
    ),
    "record": (
        "def factory(x):\n    return W.width\n",
        "import types\nW = types.SimpleNamespace(width=1)",
        "import types\nW = types.SimpleNamespace(width=2)",
    ),
    "object": (
        "def factory(x):\n    return W.width\n",
        "class Sizes: pass\nW = Sizes(); W.width = 1",
        "class Sizes: pass\nW = Sizes(); W.width = 2",
    ),
    "member of a set that reads the set": (
        "def factory(x):\n    return SET\n",
        "W = 1\ndef one(x): return SET, W\nSET = {one}",
        "W = 2\ndef one(x): return SET, W\nSET = {one}",
    ),
}


def factory(code, before):
    scope = {"__name__": "mine"}
    exec(f"{before}\n{code}", scope)
    return scope["factory"]


def prints():
    return [fingerprint(factory(code, before)) for code, *both in CHANGED.values() for before in both]


@pytest.mark.parametrize("kind", CHANGED)
def test_a_value_behind_a_global_name_is_part_of_the_code(kind):
    code, before, after = CHANGED[kind]
    assert fingerprint(factory(code, before)) == fingerprint(factory(code, before))
    assert fingerprint(factory(code, before)) != fingerprint(factory(code, after))


def test_what_is_not_read_changes_nothing():
    for before in ("W = 1; V = 1", "W = 1; V = 2", "import torch, numpy; W = 1", "W = 1; x = 5"):
        assert fingerprint(factory(READS, before)) == fingerprint(factory(READS, "W = 1"))


def test_values_of_a_module_of_one_s_own_are_read(monkeypatch, tmp_path):
    sizes = ModuleType("sizes")
    sizes.__file__ = str(tmp_path / "sizes.py")
    monkeypatch.setitem(sys.modules, "sizes", sizes)
    found = []
    for width, other in ((1, 1), (2, 1), (1, 2)):
        sizes.width, sizes.other = width, other
        found.append(fingerprint(factory("def factory(x):\n    return sizes.width\n", "import sizes")))
    assert found[0] == found[2] != found[1]


def test_fingerprints_of_globals_are_the_same_in_every_process():
    program = (
        "import torch; torch.set_default_dtype(torch.float64); from tests.comparison.test_global_values import prints; "
        "print(*prints())"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert found == prints()


@dataclass
class Record:
    width: int

    def __call__(self, x):
        return x


def test_objects_that_are_called_are_told_apart():
    class Other(Record):
        def __call__(self, x):
            return 2 * x

    class Plain:
        def __init__(self, width):
            self.width = width

        def __call__(self, x):
            return x

    makers = [Record(1), Record(2), Other(1), Plain(1), Plain(2)]
    found = [own_model(make).identity()["model_code"] for make in makers]
    assert len(set(found)) == len(found)


def test_a_factory_that_reads_another_global_is_not_taken_for_the_old_one(tmp_path):
    x, y = data()
    before = "from pyro_dgp import DeepGP"

    def asked(layers):
        make = factory(READS, f"{before}\nW = {layers}")
        return compare(make, x, y, methods=["dsvi"], settings=TOY, output=tmp_path / "out", resume=True, say=quiet)

    assert asked(1).rows[0]["nll"] == asked(1).rows[0]["nll"]
    with pytest.raises(ValueError, match=r"made with other settings \(model_code"):
        asked(2)


def test_a_neighbour_of_the_model_s_file_is_part_of_the_model(tmp_path, capsys, monkeypatch):
    x, y = data()
    (tmp_path / "d.csv").write_text("a,y\n" + "".join(f"{a},{b}\n" for a, b in zip(x[:, 0], y, strict=True)))
    (tmp_path / "mine.py").write_text("from beside import make\n")
    asked = f"compare --data {tmp_path}/d.csv --model {tmp_path}/mine.py:make --methods dsvi --epochs 1 --inducing 5 --samples 2 --output {tmp_path}/out"
    for layers in (1, 2):
        monkeypatch.delitem(sys.modules, "beside", raising=False)
        for name in [name for name in sys.modules if name.startswith("mine_")]:
            monkeypatch.delitem(sys.modules, name)
        code = f"from pyro_dgp import DeepGP\nlayers = {layers}\n# {layers}{'.' * layers}\ndef make(x):\n    return DeepGP(x, layers)\n"
        (tmp_path / "beside.py").write_text(textwrap.dedent(code))
        status = main([*asked.split(), *(["--resume"] if layers == 2 else [])])
        assert status == (0 if layers == 1 else 2), capsys.readouterr()
    assert "made with other settings (model_code" in capsys.readouterr().err
