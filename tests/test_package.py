"""The shape of the package: rooms that import one way, no circles, short files and classes, nothing written twice."""

import ast
import importlib
import inspect
import itertools
import pkgutil
from collections import defaultdict
from pathlib import Path

import pytest
import torch

import pyro_dgp

ROOT = Path(pyro_dgp.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = [name for _, name, _ in pkgutil.walk_packages([str(ROOT)], "pyro_dgp.")]

# The order of the rooms, folders or files of the package: each imports from itself and from those before it.
ROOMS = (
    "internal",
    "data",
    "kernels",
    "means",
    "gp",
    "likelihoods",
    "models",
    "processes",
    "propagation",
    "guides",
    "losses",
    "prediction",
    "export",
    "diagnosis",
    "training",
    "approximations",
    "mcmc",
    "functions",
    "zoo",
    "comparison",
    "__init__",
    "__main__",
)

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_CLASS = 200
MOST_LINES_WRITTEN_TWICE = 7
MOST_POSITIONAL = 3
# Data that come in pairs, and cannot be mistaken for options.
MORE_POSITIONAL = {"fit_validated": 4}


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def module_name(path):
    parts = ("pyro_dgp", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILE_OF = {module_name(path): path for path in FILES}


def imported(path):
    """Files of the package that a file imports, wherever in it: at its head, in functions, for types alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path.name}: write imports in full"
            # from pyro_dgp.kernels import radial is the file radial.py, if there is one
            names = [
                inner if (inner := f"{node.module}.{alias.name}") in FILE_OF else node.module for alias in node.names
            ]
        else:
            continue
        found |= {FILE_OF[name] for name in names if name in FILE_OF}
    return found


GRAPH = {path: imported(path) for path in FILES}


def named(path):
    return str(path.relative_to(ROOT))


def test_every_room_stands_in_the_order():
    assert {room(path) for path in FILES} <= set(ROOMS)
    assert {room(path) for path in FILES} >= set(ROOMS), "a room of the order is gone"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_imports_and_its_public_names_exist(name):
    if name.endswith("__main__"):
        return
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", []):
        assert hasattr(module, public)
    assert module.__doc__


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_room_imports_from_those_before_it(path):
    for other in GRAPH[path]:
        assert ROOMS.index(room(other)) <= ROOMS.index(room(path)), f"{named(path)} imports {named(other)}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_no_file_imports_the_face_of_its_own_package(path):
    faces = {folder / "__init__.py" for folder in path.parents if folder.is_relative_to(ROOT)}
    assert not GRAPH[path] & (faces - {path} - ({ROOT / "__init__.py"} if room(path) == "__main__" else set()))


def test_there_is_no_circle():
    """Depth first; the path that leads back to itself is the message."""
    done: set[Path] = set()

    def visit(path, trail):
        assert path not in trail, " -> ".join(named(each) for each in (*trail[trail.index(path) :], path))
        if path in done:
            return
        for other in sorted(GRAPH[path]):
            visit(other, [*trail, path])
        done.add(path)

    for path in FILES:
        visit(path, [])


def test_the_library_knows_nothing_of_zoo_and_comparison():
    users = {"comparison", "__init__", "__main__"}
    for path, others in GRAPH.items():
        for other in others:
            if room(other) in ("zoo", "comparison"):
                assert room(path) in users | ({"zoo"} if room(other) == "zoo" else set()), named(path)


def test_models_and_priors_know_nothing_of_inference():
    generative = {"kernels", "means", "gp", "likelihoods", "models"}
    inferential = {"processes", "propagation", "guides", "losses", "mcmc", "training", "functions"}
    for path in FILES:
        if room(path) in generative:
            assert not {room(other) for other in GRAPH[path]} & inferential, named(path)


def test_no_public_function_hides_a_module():
    for name in pyro_dgp.__all__:
        assert f"pyro_dgp.{name}" not in FILE_OF


@pytest.mark.parametrize("path", FILES, ids=named)
def test_files_and_classes_are_short(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES_OF_A_FILE
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            assert (node.end_lineno or 0) - node.lineno < MOST_LINES_OF_A_CLASS, node.name


def lines_of_code(source):
    """Lines of bodies as they mean, with their numbers: no comments, docstrings, imports, signatures, or lines of brackets alone."""
    tree = ast.parse(source)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            left_out |= set(range(first, node.body[0].lineno))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(source.splitlines(), 1):
        text = "".join(line.partition("  #")[0].split())
        if number not in left_out and not text.startswith("#") and any(letter.isalnum() for letter in text):
            yield number, text


def repeated(sources, most):
    """Places where more than ``most`` lines in a row stand twice: ``(place, place)``, each as ``name:line``."""
    seen = defaultdict(list)
    for name, source in sources.items():
        lines = list(lines_of_code(source))
        for start in range(len(lines) - most):
            window = lines[start : start + most + 1]
            seen[tuple(text for _, text in window)].append((name, window[0][0], window[-1][0]))
    pairs = []
    for places in seen.values():
        for (first, begin, end), (second, other, _) in itertools.combinations(places, 2):
            if first != second or not begin <= other <= end:
                pairs.append((f"{first}:{begin}", f"{second}:{other}"))
    return pairs


def test_nothing_is_written_twice():
    found = repeated(
        {named(path): path.read_text() for path in FILES if path.name != "__init__.py"}, MOST_LINES_WRITTEN_TWICE
    )
    assert not found, "\n".join(f"{first} and {second} hold the same lines" for first, second in found)


def test_the_comparer_finds_what_it_should():
    body = "".join(f"    a{i} = {i}\n" for i in range(8))
    apart = 'def f(x):\n    """Say."""\n' + body + "\nimport os\n\ndef g(y,\n      z):\n" + body.replace(" = ", "  =  ")
    assert repeated({"one.py": apart}, 7) == [("one.py:3", "one.py:16")]
    assert not repeated({"one.py": apart}, 8)
    assert not repeated({"one.py": apart.replace("a4 ", "b4 ", 1)}, 7)
    assert repeated({"one.py": "def f(x):\n" + body, "two.py": "def g(x):\n" + body}, 7)


def test_public_names_are_documented():
    for name in pyro_dgp.__all__:
        assert inspect.getdoc(getattr(pyro_dgp, name)), name


@pytest.mark.parametrize("name", [name for name in pyro_dgp.__all__ if callable(getattr(pyro_dgp, name))])
def test_a_fourth_argument_is_given_by_name(name):
    """Of public functions, of constructors and methods of public classes."""
    thing = getattr(pyro_dgp, name)
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return
    functions = {name: thing}
    if inspect.isclass(thing):
        members = [member for member in vars(thing) if not member.startswith("_")]
        functions |= {
            member: getattr(thing, member) for member in members if inspect.isfunction(getattr(thing, member))
        }
    for label, function in functions.items():
        parameters = list(inspect.signature(function).parameters.values())
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"]
        assert len(positional) <= MORE_POSITIONAL.get(label, MOST_POSITIONAL), (label, positional)


def test_nothing_is_set_at_import():
    assert torch.get_default_dtype() == torch.float64  # the fixture's, untouched
    import pyro

    assert pyro.settings.get("module_local_params") is False
