"""A run that is killed goes on to the bits of one that is not. ``python -m tests.kills`` tries every kind of run at many moments."""

import pytest

from tests.kills.harness import RESULT, differences, live, result


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["svi", "ess"])
def test_a_killed_process_goes_on_to_the_same_bits(kind, tmp_path):
    whole = live(kind, tmp_path / "whole")
    assert whole.code == 0
    folder = tmp_path / "killed"
    killed = live(kind, folder, once_saved=True)
    assert killed.code == -9
    assert killed.unsaved is not None
    assert not (folder / RESULT).exists()
    assert live(kind, folder).code == 0
    assert not differences(result(tmp_path / "whole"), result(folder))


def test_differences_are_named_and_told_to_the_bit():
    assert differences({"a": [1.0, float("nan")]}, {"a": [1.0, float("nan")]}) == []
    assert differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.0000001]}) == [".a[1]"]
    assert differences({"a": [1.0]}, {"a": [1.0, 2.0]}) == [".a"]
