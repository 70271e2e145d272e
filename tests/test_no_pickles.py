"""No file is read or written by pickle, anywhere in the package: what somebody else wrote must not run code.

Objects may travel to worker processes as pickles in memory, by joblib. The modules that import what does so are listed here.
"""

import ast
from pathlib import Path

import pytest

import pyro_dgp

ROOT = Path(pyro_dgp.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

#: Packages that pickle, and the files that may import them: to run workers, to hash values, and to let a user's module travel by value.
PICKLERS = ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib")
IN_MEMORY = {
    "comparison/carrying_out.py": "joblib",
    "comparison/own_model.py": "cloudpickle",
    "mcmc/chain_identity.py": "joblib",
    "mcmc/chains.py": "joblib",
    "mcmc/elsewhere.py": "pickle",
}
#: Names that may be taken from them: none that reads or writes files.
TAKEN = {"joblib": {"Parallel", "delayed", "hash", "ProcessPoolExecutor"}, "pickle": {"PicklingError"}}

#: Calls that unpickle files, by the name of the function; of torch and pandas, wherever they are imported.
READERS = {"load", "save", "read_pickle", "to_pickle", "load_state", "dump", "loads", "dumps"}


def named(path):
    return str(path.relative_to(ROOT))


def imports(tree):
    """The packages that a file imports, and what it takes from each, whether by a statement or by a word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module.partition(".")[0], alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            first = node.value.partition(".")[0]
            if first in PICKLERS and " " not in node.value:
                yield "cloudpickle" if "cloudpickle" in node.value else first, None


def faults(path, text):
    """What breaks the rule in one file."""
    tree = ast.parse(text)
    for package, taken in imports(tree):
        if package in PICKLERS and IN_MEMORY.get(path) != package:
            yield f"imports {package}"
        if taken is not None and taken not in TAKEN.get(package, {taken}):
            yield f"takes {taken} from {package}"
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        allowed = {each.arg: ast.unparse(each.value) for each in node.keywords}.get("allow_pickle", "False")
        if allowed != "False":
            yield f"allows pickles in {owner}.{name}"
        if name in READERS and (owner in PICKLERS or owner == "torch" or name.endswith("_pickle")):
            yield f"calls {owner}.{name}"
        if owner == "joblib" and name not in TAKEN["joblib"]:
            yield f"calls joblib.{name}"
        if owner in ("np", "numpy") and name == "load" and "allow_pickle" not in ast.unparse(node):
            yield "calls np.load and does not say allow_pickle=False"


def test_no_file_is_pickled():
    found = {named(path): list(faults(named(path), path.read_text())) for path in FILES}
    assert not {path: own for path, own in found.items() if own}


def test_the_list_of_those_that_pickle_in_memory_has_no_others():
    for name, package in IN_MEMORY.items():
        assert package in {found for found, _ in imports(ast.parse((ROOT / name).read_text()))}, name


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "def f():\n    import cloudpickle",
        "from joblib import dump",
        "from pickle import loads",
        "import importlib\nimportlib.import_module('pickle')",
        "torch.load('x')",
        "torch.save({}, 'x')",
        "pd.read_pickle('x')",
        "frame.to_pickle('x')",
        "np.load('x')",
        "np.load('x', allow_pickle=True)",
        "np.savez('x', allow_pickle=flag)",
    ],
)
def test_the_rule_finds_what_it_should(text):
    assert list(faults("mcmc/other.py", text))
