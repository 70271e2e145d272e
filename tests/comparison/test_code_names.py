"""Records of which code reads a part, containers that it fills, and values that cannot be looked into."""

import json
import runpy
import subprocess
import sys
import warnings
from types import ModuleType

import numpy as np
import pytest
import torch

from pyro_dgp.comparison.code_names import changed_names
from pyro_dgp.comparison.fingerprint import fingerprint
from pyro_dgp.comparison.own_model import own_model
from pyro_dgp.comparison.run import compare
from tests.comparison.test_global_values import READS, factory
from tests.comparison.test_own_model import TOY, data, quiet

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that such tensors are in beta
    ROWS = torch.eye(2).to_sparse_csr()
    TWICE = (2 * torch.eye(2)).to_sparse_csr()

#: Ways to make a record whose width and whose other number are given.
RECORDS = {
    "argparse": "from argparse import Namespace\nW = Namespace(width={}, resume={})",
    "namespace": "from types import SimpleNamespace\nW = SimpleNamespace(width={}, resume={})",
    "dataclass": "from dataclasses import make_dataclass\nW = make_dataclass('D', ['width', 'resume'])({}, {})",
    "object": "class Plain: pass\nW = Plain(); W.width, W.resume = {}, {}",
    "slots": "class Slots: __slots__ = ('width', 'resume')\nW = Slots(); W.width, W.resume = {}, {}",
    "record in a record": "from types import SimpleNamespace as S\nV = S(W=S(width={}, resume={}), resume=5)\nW = V.W",
}


@pytest.mark.parametrize("kind", RECORDS)
def test_of_a_record_the_attribute_that_is_read_counts(kind):
    reads = "def factory(x):\n    return W.width\n"
    if kind == "record in a record":
        reads = "def factory(x):\n    return V.W.width\n"
    one, same, other = (
        fingerprint(factory(reads, RECORDS[kind].format(*both))) for both in ((1, False), (1, True), (2, False))
    )
    assert one == same != other


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_is_passed_on_counts_whole(kind):
    one, other = (fingerprint(factory(READS, RECORDS[kind].format(1, resume))) for resume in (1, 2))
    assert one != other


def test_a_property_of_a_record_counts_with_what_it_reads():
    code = "class P:\n    @property\n    def width(self): return self.half * 2\nW = P(); W.half = {0}; W.__dict__['width'] = 7"
    one, other = (fingerprint(factory("def factory(x):\n    return W.width\n", code.format(n))) for n in (1, 2))
    assert one != other


def test_a_script_whose_options_are_a_global_goes_on(tmp_path, monkeypatch):
    (tmp_path / "run.py").write_text(
        "import argparse, numpy as np\n"
        "from pyro_dgp import DeepGP, Settings, compare\n"
        "p = argparse.ArgumentParser()\n"
        "p.add_argument('--layers', type=int, default=1)\n"
        "p.add_argument('--resume', action='store_true')\n"
        "args = p.parse_args()\n"
        "def make(x):\n    return DeepGP(x, layers=args.layers)\n"
        "x = np.random.RandomState(0).randn(30, 2)\n"
        "compare(make, x, x[:, 0], methods=['svgp'], settings=Settings(epochs=1, inducing=5, samples=2), output='out', resume=args.resume)\n"
    )

    first = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", "--resume"])
    runpy.run_path("run.py", run_name="__main__")
    monkeypatch.setattr(sys, "argv", ["run.py", "--resume", "--layers", "2"])
    with pytest.raises(ValueError, match=r"the global 'args\.layers', or what it reads, has changed"):
        runpy.run_path("run.py", run_name="__main__")


def test_a_refusal_names_the_global_that_changed_where_the_folder_knows_it(tmp_path):
    x, y = data()

    def asked(layers):
        make = factory(READS, f"from pyro_dgp import DeepGP\nW = {layers}")
        return compare(make, x, y, methods=["dsvi"], settings=TOY, output=tmp_path, resume=True, say=quiet)

    asked(1)
    with pytest.raises(ValueError, match=r"\(model_code .*: the global 'W', or what it reads, has changed\)"):
        asked(2)
    table = tmp_path / "results.json"
    rows = json.loads(table.read_text())
    del rows[0]["config"]["model_globals"]
    table.write_text(json.dumps(rows))
    assert asked(1).rows
    with pytest.raises(ValueError, match=r"\(model_code '\w+' in dsvi, now '\w+'\)"):
        asked(2)


FILLED = {
    "key": "SEEN[len(x)] = x",
    "key of a call": "SEEN[max(len(x), 1)] = x",
    "counter": "SEEN['n'] = SEEN.get('n', 0) + 1",
    "counter in place": "SEEN['n'] += 1",
    "deletion": "del SEEN['n']",
    "method": "SEEN.setdefault(len(x), x)",
    "inner function": "(lambda: SEEN.update(a=x))()",
    "record": "STATE.seen[len(x)] = x",
}


@pytest.mark.parametrize("kind", FILLED)
def test_a_container_that_code_fills_is_no_part_of_it(kind):
    before = "from types import SimpleNamespace\nSEEN = {'n': 0}\nSTATE = SimpleNamespace(seen=SEEN)"
    make = factory(f"def factory(x):\n    {FILLED[kind]}\n    return x\n", before)
    found = fingerprint(make)
    make("abc")
    assert fingerprint(make) == found


def test_a_global_that_code_assigns_is_no_part_of_it():
    make = factory("def factory(x):\n    global W\n    W += 1\n", "W = 0")
    found = fingerprint(make)
    make(1)
    assert fingerprint(make) == found


@pytest.mark.parametrize(
    "line", ["OTHER[0] = W", "x[W['a']] = 1", "x[0] = W", "f(W)[0] = 1", "W.get('a')", "list(W).append(1)"]
)
def test_a_container_that_code_only_reads_is_part_of_it(line):
    code = f"def factory(x):\n    {line}\n"
    one, other = (fingerprint(factory(code, f"W = {{'a': {a}}}\nOTHER = [1]\nf = list")) for a in (1, 2))
    assert one != other


def test_methods_of_what_is_no_container_change_nothing():
    code = "def factory(x):\n    return W.add(x)\n"
    assert list(changed_names(factory(code, "").__code__)) == [("W",)]
    one, other = (fingerprint(factory(code, f"import torch\nW = torch.tensor({a}.0)")) for a in (1, 2))
    assert one != other


def test_the_name_of_the_module_is_no_part_of_the_code():
    code = "def factory(x):\n    class Inner:\n        width = 1\n    return Inner\n"
    found = []
    for name in ("mine", "yours"):
        scope = {"__name__": name}
        exec(code, scope)
        found.append(fingerprint(scope["factory"]))
    assert found[0] == found[1]


def test_an_attribute_with_a_high_number_is_read(monkeypatch, tmp_path):
    sizes = ModuleType("sizes")
    sizes.__file__ = str(tmp_path / "sizes.py")
    monkeypatch.setitem(sys.modules, "sizes", sizes)
    names = ", ".join(f"x.a{number}" for number in range(300))
    found = []
    for width in (1, 2):
        sizes.width = width
        found.append(fingerprint(factory(f"def factory(x):\n    {names}\n    return sizes.width\n", "import sizes")))
    assert found[0] != found[1]


class Lazy:
    def __getattr__(self, name):
        raise RuntimeError(f"{name} is not there yet")


class Hidden:
    @property  # type: ignore[misc]
    def __class__(self):
        raise RuntimeError("nothing is bound")


def chain(length):
    scope = {"__name__": "mine", "W": 1}
    exec("\n".join(f"def f{at}(x):\n  return f{at + 1}(x)" for at in range(length)), scope)
    exec(f"def f{length}(x):\n  return W", scope)
    return scope


#: Makers of values that cannot be looked into in the usual way.
AWKWARD = {
    "sparse": lambda: torch.eye(2).to_sparse(),
    "sparse rows": lambda: ROWS,
    "on no device": lambda: torch.zeros(2, device="meta"),
    "array of no axes": lambda: np.array(object()),
    "lazy": Lazy,
    "hidden": Hidden,
    "deep": lambda: {"deep": [Lazy(), Hidden()]},
}


@pytest.mark.parametrize("kind", AWKWARD)
def test_no_value_stops_a_fingerprint(kind):
    value = AWKWARD[kind]()
    reads = factory("def factory(x):\n    return W, V\n", "")
    assert fingerprint(value) == fingerprint(value)
    found = []
    for other in (1, 2):
        reads.__globals__.update(W=value, V=other)
        found.append((fingerprint(reads), own_model(reads).identity()["model_code"]))
    assert found[0] != found[1]  # the rest is looked into as before


def test_a_long_chain_of_functions_is_read_to_its_end():
    scope = chain(1500)
    found = fingerprint(scope["f0"])
    scope["W"] = 2
    assert fingerprint(scope["f0"]) != found


def test_lists_in_lists_are_read_to_their_end():
    def nested(depth, last):
        for _ in range(depth):
            last = [last]
        return last

    assert fingerprint(nested(3000, 1)) != fingerprint(nested(3000, 2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (slice(0, 3), slice(0, 5)),
        (torch.tensor([1.0 + 1.0j]), torch.tensor([1.0 + 2.0j])),
        (torch.eye(2).to_sparse(), torch.eye(2).flip(0).to_sparse()),
        (torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse()),
        (ROWS, TWICE),
    ],
    ids=["slice", "complex", "places", "values", "rows"],
)
def test_values_that_differ_are_told_apart(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_objects_with_slots_are_told_apart():
    class Slots:
        __slots__ = ("empty", "width")

        def __init__(self, width):
            self.width = width

    assert fingerprint(Slots(1)) == fingerprint(Slots(1)) != fingerprint(Slots(2))
