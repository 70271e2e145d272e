import numpy as np
import pytest

import pyro_dgp.data.letters as module
from pyro_dgp.data.letters import describe_letters, inside_letters, letters


def test_points_known_to_lie_inside_and_outside():
    inside = [(0.08, 0.5), (0.3, 0.5), (0.51, 0.23), (0.6, 0.45), (0.73, 0.3), (0.9, 0.63), (0.51, 0.77)]
    outside = [(0.02, 0.5), (0.2, 0.5), (0.51, 0.55), (0.62, 0.57), (0.85, 0.3), (0.8, 0.63), (0.345, 0.9)]
    assert inside_letters(np.array(inside)).all()
    assert not inside_letters(np.array(outside)).any()


def test_equal_seeds_give_equal_data_and_a_third_of_the_rows_are_for_testing():
    first, again, other = letters(600, 3), letters(600, 3), letters(600, 4)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    assert first.x.shape == (600, 2) and set(first.y) == {0.0, 1.0} and first.splits.sum() == 200
    assert (first.y == inside_letters(first.x)).all()
    with pytest.raises(ValueError, match="at least 3 rows, got 2"):
        letters(2)


def test_the_outline_is_measured_right(monkeypatch):
    """A disc of radius 0.3 in the place of the letters: circumference and area in closed form."""
    monkeypatch.setattr(module, "_level", lambda x, y: np.hypot(x - 0.5, y - 0.5) - 0.3)
    facts = describe_letters(800)
    assert facts["boundary_length"] == pytest.approx(0.6 * np.pi, rel=1e-3)
    assert facts["share_of_ones"] == pytest.approx(0.09 * np.pi, rel=1e-3)


def test_share_of_ones_is_that_of_the_data():
    share, y = describe_letters(400)["share_of_ones"], letters(20_000).y
    assert abs(share - y.mean()) < 4 * (share * (1 - share) / 20_000) ** 0.5
    assert 5 < describe_letters(400)["boundary_length"] < 9
