"""The contract: every model with every inference, run against its known answer or refused in a sentence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import pyro
import torch

from tests.contract import deep, likelihoods, one_layer, structures
from tests.contract.case import Case
from tests.contract.inferences import INFERENCES
from tests.contract.refused import REFUSED

CASES = {case.name: case for case in (*one_layer.CASES, *deep.CASES, *structures.CASES, *likelihoods.CASES)}
#: Part of the sentence that refuses a model, by names of the model and of the inference.
SENTENCES = {(name, refusal.inference): refusal.sentence for refusal in REFUSED for name in refusal.models}


@dataclass(frozen=True)
class Outcome:
    """What came of a pair.

    :ivar distance: from the exact answer at the worst test row, nats; ``None`` if the model was refused.
    :ivar bound: the bound minus the log evidence, nats in total, if the inference has one.
    :ivar sentence: what was raised.
    :ivar failure: why the pair breaks the contract, empty if it holds.
    """

    distance: float | None = None
    bound: float | None = None
    sentence: str = ""
    failure: str = ""


def pairs() -> Iterator[tuple[str, str]]:
    """Iterate over the names of all models and inferences."""
    for name in CASES:
        for inference in INFERENCES:
            yield name, inference


def outcome(name: str, inference: str) -> Outcome:
    """Run one pair and hold it to the contract."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    expected = SENTENCES.get((name, inference))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _held_to(CASES[name], inference, expected)
    except (ValueError, TypeError) as error:
        sentence = str(error)
        if expected is None:
            return Outcome(sentence=sentence, failure=f"refused, but not declared in refused.py: {sentence}")
        if expected not in sentence:
            return Outcome(sentence=sentence, failure=f"refused by another sentence than {expected!r}: {sentence}")
        return Outcome(sentence=sentence)


def _held_to(case: Case, inference: str, expected: str | None) -> Outcome:
    how = INFERENCES[inference]
    result = how.run(case)
    bound = None if result.bound is None else result.bound - case.answers.log_evidence
    within = 2 * case.within.get(inference, how.within)  # chance of short chains and of machines
    error = 3 / math.sqrt(case.answers.effective)  # of the log evidence, three standard errors
    failure = ""
    if expected is not None:
        failure = f"ran, though refused.py declares {expected!r}"
    elif not result.distance <= within:
        failure = f"{result.distance:.3f} nats from the exact answer, more than {within}"
    elif bound is not None and how.bounds is not None and not -how.bounds[1] - error <= bound <= how.bounds[0] + error:
        allowed = f"[-{how.bounds[1] + error:.3f}, {how.bounds[0] + error:.3f}]"
        failure = f"the bound is {bound:+.3f} nats from the log evidence, outside {allowed}"
    return Outcome(result.distance, bound, failure=failure)
