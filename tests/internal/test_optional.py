"""Packages of the extras: loaded by the calls that need them alone, and named where they are missing."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from pyro import distributions as dist

from pyro_dgp import Mixture, NumpyStream, ParquetStream, Prediction, draw_gap
from pyro_dgp.comparison.cli import main
from pyro_dgp.data.letters import describe_letters
from pyro_dgp.data.reading import load
from pyro_dgp.export.inference_data import to_arviz
from pyro_dgp.internal.optional import optional, require
from pyro_dgp.mcmc.diagnostics import convergence

LATE = "sklearn scipy pandas matplotlib arviz xarray scoringrules joblib cloudpickle gpytorch pyarrow h5py numba"


def prediction(components=None):
    components = components or dist.Normal(torch.zeros(3, 5), 1.0)
    return Prediction(lambda rows: Mixture(components, torch.full((3,), 1 / 3).log()), 5)


def table(folder, name="rows.csv"):
    path = folder / name
    path.write_text("a,b\n" + "".join(f"{i},{i * i}\n" for i in range(20)))
    return path


# What needs the package, the package and its extra.
NEEDS = {
    "CSV": (lambda folder: load(table(folder)), "pandas", "compare"),
    "Parquet": (lambda folder: load(table(folder, "rows.parquet")), "pyarrow", "parquet"),
    "a stream of Parquet": (lambda folder: ParquetStream(folder / "rows.parquet", "y"), "pyarrow", "parquet"),
    "outlines": (lambda folder: describe_letters(10), "contourpy", "compare"),
    "a figure": (
        lambda folder: draw_gap({}, torch.zeros(5, 1), folder / "gap.png", reference="ess"),
        "matplotlib",
        "compare",
    ),
    "an ArviZ object": (lambda folder: to_arviz(prediction(), torch.zeros(5, 1), torch.zeros(5)), "arviz", "arviz"),
    "R-hat": (lambda folder: convergence({"f": torch.randn(2, 10)}, None), "arviz", "arviz"),
}


@pytest.mark.parametrize("call", NEEDS)
def test_a_missing_package_is_named_with_its_extra(call, monkeypatch, tmp_path):
    function, package, extra = NEEDS[call]
    monkeypatch.setitem(sys.modules, package, None)
    if package == "pyarrow":
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError) as error:
        function(tmp_path)
    sentence = str(error.value)
    assert f" needs {package}: pip install 'pyro-dgp[{extra}]'" in sentence and "\n" not in sentence


@pytest.mark.parametrize("package", ["arviz", "h5netcdf", "matplotlib", "pandas"])
def test_the_command_line_says_so_before_anything_runs(package, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    status = main(["compare", "--data", str(table(tmp_path)), "--output", str(tmp_path / "results")])
    lines = capsys.readouterr().err.splitlines()
    assert status == 2
    assert len(lines) == 1 and f"needs {package}: pip install 'pyro-dgp[compare]'" in lines[0]
    assert not (tmp_path / "results").exists()


def test_what_needs_no_extra_works_without_them(monkeypatch, tmp_path):
    for package in ("arviz", "h5netcdf", "h5py", "matplotlib", "contourpy", "pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    np.save(tmp_path / "x.npy", np.zeros((20, 1)))
    np.save(tmp_path / "y.npy", np.zeros(20))
    assert len(NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy")) == 20
    assert prediction().quantile(0.5).shape == (5,)
    assert main(["methods"]) == 0


def test_a_package_that_is_broken_raises_its_own_error(monkeypatch, tmp_path):
    (tmp_path / "broken_package.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module_at_all'"):
        optional("broken_package", extra="compare", what="a test")


def test_require_imports_nothing(monkeypatch, tmp_path):
    (tmp_path / "not_to_be_run.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    require("not_to_be_run", extra="compare", what="a test")
    with pytest.raises(ImportError, match="a test needs absent_package"):
        require("not_to_be_run", "absent_package", extra="compare", what="a test")


@pytest.mark.parametrize("program", ["import pyro_dgp", "from pyro_dgp.comparison.cli import main; main(['methods'])"])
def test_an_import_loads_what_torch_and_pyro_load(program):
    """Each of these costs as much processor time as a tenth to the whole of ``import torch, pyro``."""
    code = f"import sys, torch, pyro\nbefore = set(sys.modules)\n{program}\nprint('LOADED', *set(sys.modules) - before)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in result.stdout.partition("LOADED")[2].split()}
    assert "pyro_dgp" in loaded
    assert not loaded & {*LATE.split(), "sympy"}, "load them in the calls that need them"
