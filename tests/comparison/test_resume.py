"""Resumed comparisons: what has changed under an old name is not taken for the same."""

import functools
import json

import pytest
import torch

from pyro_dgp import ELBO, RBF, EllipticalSlice, InducingPoints, Matern52, MonteCarlo
from pyro_dgp.comparison.fingerprint import fingerprint
from pyro_dgp.comparison.run import compare
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.by_mcmc import ByMCMC
from tests.comparison.test_own_model import TOY, data, quiet
from tests.examples import OneLayer, TwoLayers


def model_of(kernel):
    return lambda x: OneLayer(kernel(ard=x.shape[-1]))


def by_guide(inducing):
    return "mine", ByGuide(InducingPoints(inducing), MonteCarlo(2), ELBO)


def test_a_changed_factory_is_not_taken_for_the_old_one(tmp_path):
    x, y = data()
    asked = functools.partial(compare, x=x, y=y, settings=TOY, output=tmp_path / "out", resume=True, say=quiet)
    asked(model_of(RBF), methods=["svgp"])
    assert len(asked(model_of(RBF), methods=["svgp", "ppgpr"])) == 2
    with pytest.raises(ValueError, match="made with other settings .model_code"):
        asked(model_of(Matern52), methods=["svgp"])


def test_a_changed_inference_is_not_taken_for_the_old_one(tmp_path):
    x, y = data()
    asked = functools.partial(compare, None, x, y, settings=TOY, output=tmp_path / "out", resume=True, say=quiet)
    first = asked(methods=[by_guide(6)])
    assert asked(methods=[by_guide(6), "svgp"]).rows[0]["nll"] == first.rows[0]["nll"]
    with pytest.raises(ValueError, match="the results of 'mine' in .* were made by another inference"):
        asked(methods=[by_guide(5)])


def test_a_method_that_was_not_asked_for_again_keeps_its_fit(tmp_path):
    x, y = data()
    asked = functools.partial(compare, TwoLayers, x, y, settings=TOY, output=tmp_path / "out", resume=True, say=quiet)
    asked(methods=["dsvi"])
    again = asked(methods=["svgp"])
    assert list(again) == ["dsvi", "svgp"] and again["dsvi"].predict(x).mean.shape == (30,)


def test_an_inference_with_the_name_of_a_method_is_refused():
    x, y = data()
    with pytest.raises(ValueError, match="'dsvi' is a method of the table: give your inference another name"):
        compare(None, x, y, methods=[("dsvi", ByMCMC(EllipticalSlice))], settings=TOY, say=quiet)


def test_a_fit_whose_files_are_broken_is_one_sentence(tmp_path):
    from pyro_dgp.comparison.keep import load_fit

    x, y = data()
    compare(TwoLayers, x, y, methods=["svgp"], settings=TOY, output=tmp_path / "out", say=quiet)
    with pytest.raises(ValueError, match="the fit of 'svgp' does not fit its model: give the model that it was fitted"):
        load_fit(tmp_path / "out", "svgp", model=model_of(RBF))
    for name in ("svgp.npz", "svgp.json"):
        (tmp_path / "out" / "fits" / name).write_text("{")
        with pytest.raises(ValueError, match="the fit of 'svgp' in .* cannot be read") as caught:
            load_fit(tmp_path / "out", "svgp", model=TwoLayers)
        assert "\n" not in str(caught.value)


def test_a_gap_leaves_no_folder_of_chains(tmp_path):
    x, y = data(15)
    result = compare(TwoLayers, x, y, methods=["dsvi"], settings=TOY, output=tmp_path / "out", say=quiet)
    result.gap("ess")
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def scale(factor):
    return lambda x: factor * x


class Base:
    step = 1

    def call(self, x):
        return x + self.step


class Changed(Base):
    def call(self, x):
        return x + 2 * self.step


def test_fingerprints_tell_code_constants_closures_and_numbers_apart():
    same = [(scale(2), scale(2)), (TwoLayers, TwoLayers), (by_guide(5)[1], by_guide(5)[1]), (Base().call, Base().call)]
    for one, other in same:
        assert fingerprint(one) == fingerprint(other)
    different = [
        scale(2),
        scale(3),
        Base,
        Changed,
        TwoLayers,
        functools.partial(TwoLayers, width=3),
        functools.partial(TwoLayers, width=2),
        by_guide(5)[1],
        by_guide(6)[1],
        ByMCMC(EllipticalSlice),
        ByMCMC(lambda model, x, y, settings: EllipticalSlice(model)),
        torch.ones(2),
        torch.ones(2, 1),
        OneLayer(RBF()),
        OneLayer(Matern52()),
    ]
    prints = [fingerprint(value) for value in different]
    assert len(set(prints)) == len(prints) and json.dumps(prints)
