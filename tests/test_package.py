"""The shape of the package: public names, imports that point one way, size."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
import torch

import pyro_dgp

ROOT = Path(pyro_dgp.__file__).parent
MODULES = [name for _, name, _ in pkgutil.walk_packages([str(ROOT)], "pyro_dgp.")]
# From generative to inferential: a module imports from its own row and those above it.
ROWS = [
    {"groups", "linalg", "kernels", "means", "moments", "parameters", "programs", "quadrature", "streams"},
    {"gp"},
    {"likelihoods"},
    {"models", "extractors"},
    {"priors", "processes", "prediction", "rows", "sites"},
    {"propagation", "metrics"},
    {"passes"},
    {"guide"},
    {"losses", "predict", "mcmc"},
    {"compiled", "fit"},
    {"sghmc", "validation"},
    {"data", "gap", "memory", "plots", "to_arviz"},
    {"inference"},
    {"recipes"},
    {"methods"},
    {"gap_study"},
    {"compare", "letters"},
    {"cli"},
    {"__main__", "__init__"},
]


def part(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def row(name):
    return next(i for i, names in enumerate(ROWS) if name in names)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_imports_and_its_public_names_exist(name):
    if name.endswith("__main__"):
        return
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", []):
        assert hasattr(module, public)
    assert module.__doc__


def test_public_names_are_documented():
    for name in pyro_dgp.__all__:
        assert inspect.getdoc(getattr(pyro_dgp, name)), name


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards_and_files_are_short(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyro_dgp"):
            names = [node.module.split(".")[1]] if "." in node.module else [alias.name for alias in node.names]
            for name in names:
                assert row(name) <= row(part(path)), f"{path.name} imports {name}"
    assert len(path.read_text().splitlines()) <= 400


def test_models_and_priors_know_nothing_of_inference():
    for name in ("gp", "models", "likelihoods/base", "likelihoods/gaussian", "means"):
        text = (ROOT / f"{name}.py").read_text()
        for word in ("processes", "guide", "losses", "propagation"):
            assert f"pyro_dgp.{word}" not in text


def test_nothing_is_set_at_import():
    assert torch.get_default_dtype() == torch.float64  # the fixture's, untouched
    import pyro

    assert pyro.settings.get("module_local_params") is False
