"""Steps that processes share are timed."""

import pytest

from benchmarks.common.cases import Case
from benchmarks.studies.speed_of_processes import shared, threaded


@pytest.mark.slow
def test_shared_steps_are_timed():
    case = Case("dsvi", 2, 2, 20, width=1, inducing=8)
    assert 0 < shared(case, 3, 2) < 10
    assert 0 < threaded(case, 3, 1) < 10
