"""What tests and the examples in docstrings share."""

import pyro
import pytest


@pytest.fixture(autouse=True)
def _empty_parameter_store():
    """No example takes over the parameters of another one whose model has the same names."""
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()
