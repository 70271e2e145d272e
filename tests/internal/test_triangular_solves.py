"""Triangular systems with more right-hand sides than PyTorch solves rightly on a GPU."""

import re
from pathlib import Path

import pytest
import torch

import pyro_dgp
from pyro_dgp.internal import linalg
from tests.virtual_device import virtual_device


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("upper", [True, False])
def test_pieces_give_the_solution_and_its_gradients(left, upper):
    factor = torch.randn(2, 4, 4) + 6 * torch.eye(4)
    factor = (factor.triu() if upper else factor.tril()).requires_grad_()
    right = torch.randn(2, 4, 11) if left else torch.randn(2, 11, 4)
    right.requires_grad_()

    def gradients(solved):
        return torch.autograd.grad((solved * torch.arange(solved.numel()).reshape(solved.shape)).sum(), (factor, right))

    whole = torch.linalg.solve_triangular(factor, right, upper=upper, left=left)
    pieces = linalg.in_pieces(factor, right, 3, upper=upper, left=left)
    torch.testing.assert_close(pieces, whole)
    for found, expected in zip(gradients(pieces), gradients(whole), strict=True):
        torch.testing.assert_close(found, expected)


def test_no_call_on_another_device_has_more_columns_than_are_solved_rightly(monkeypatch):
    most, solve, seen = 5, torch.linalg.solve_triangular, []

    def checked(factor, columns, **options):
        seen.append(columns.shape[-1])
        return solve(factor, columns, **options)

    monkeypatch.setattr(linalg, "_MOST_COLUMNS", most)
    monkeypatch.setattr(torch.linalg, "solve_triangular", checked)
    factor, right = torch.randn(2, 3, 3).tril() + 4 * torch.eye(3), torch.randn(2, 3, 12)
    with virtual_device(monkeypatch) as device:
        found = linalg.solve_triangular(factor.to(device), right.to(device), upper=False).cpu()
        assert seen == [5, 5, 2]
        written = torch.zeros(2, 3, 12, device=device)
        assert linalg.solve_triangular(factor.to(device), right.to(device), upper=False, out=written) is written
        torch.testing.assert_close(written.cpu(), found)
        seen[3:] = []
    torch.testing.assert_close(factor @ found, right)
    linalg.solve_triangular(factor, right, upper=False)
    assert seen[3:] == [12]


def test_every_solve_of_the_library_goes_through_one_function():
    root = Path(pyro_dgp.__file__).parent
    calls = {
        path.relative_to(root).as_posix(): len(re.findall(r"torch\.linalg\.solve_triangular\(", path.read_text()))
        for path in root.rglob("*.py")
    }
    assert {path for path, count in calls.items() if count} == {"internal/linalg.py"}
    assert calls["internal/linalg.py"] == 2
