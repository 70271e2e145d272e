"""Some generated cases; ``python -m tests.generated`` runs as many as there is time for."""

import dataclasses
import logging

import pytest

from tests.generated.case import outcome
from tests.generated.spec import FAMILIES, KERNELS, LIKELIHOODS, MEANS, PROPAGATIONS, WAYS, drawn

SEED, CASES = 1, 28


@pytest.mark.parametrize("number", range(CASES))
def test_a_case_runs_or_is_refused_in_a_sentence(number, caplog):
    caplog.set_level(logging.ERROR, "pyro_dgp")
    found = outcome(drawn(SEED, number))
    assert found.kind in ("ran", "refused"), f"{found.place}: {found.sentence}"


def test_every_choice_is_drawn():
    cases = [drawn(0, number) for number in range(2000)]
    for name, wanted in (
        ("way", WAYS),
        ("mean", MEANS),
        ("likelihood", LIKELIHOODS),
        ("family", FAMILIES),
        ("propagation", PROPAGATIONS),
    ):
        assert {getattr(case, name) for case in cases} == set(wanted)
    text = " ".join(kernel for case in cases for kernel in case.kernels)
    assert all(kernel in text for kernel in KERNELS)


def test_a_case_is_drawn_again_from_its_number():
    assert dataclasses.asdict(drawn(5, 17)) == dataclasses.asdict(drawn(5, 17))
