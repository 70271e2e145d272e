"""Presets: the numbers that the papers state, in the models and guides that are made."""

from dataclasses import replace

import pytest
import torch

from pyro_dgp import METHODS, PRESETS, DeepGP, Settings, Variational, compare
from pyro_dgp.comparison.cli import main
from pyro_dgp.comparison.compare_command import base_settings
from pyro_dgp.comparison.request import Request, check_choice
from pyro_dgp.zoo.by_guide import ByGuide, ByValidatedGuide

pytestmark = pytest.mark.usefixtures("local")


def made(preset, name, x, y, **settings):
    """Settings, model and initialised guide of a method of a preset."""
    chosen = replace(PRESETS[preset].settings, **settings)
    method = PRESETS[preset].methods[name]
    model = method.architecture.build(x, chosen)
    assert isinstance(method.inference, ByGuide)
    guide = method.inference.guide(model, x, chosen)
    guide.initialize(x, y)
    return chosen, model, guide


def test_amortised_guides_of_meng_2024():
    x, y = torch.randn(60, 8), torch.randn(60)
    settings, model, guide = made("meng2024", "avdgp-ar2p", x, y)
    assert (settings.layers, settings.samples, settings.batch_size, settings.epochs) == (3, 32, 100, 100)
    assert settings.learning_rate == 0.005 and settings.preset == "meng2024"
    assert [gp.num_outputs for gp in model.hidden] == [16, 4]
    assert all(gp.kernel.lengthscale.shape == () for gp in (*model.hidden, model.top))
    assert not any("mean" in name for name, _ in model.named_parameters())
    assert [int(guide.processes._modules[key].sizes[0]) for key in ("h1", "h2", "y/f")] == [8, 4, 4]
    for name, method in PRESETS["meng2024"].methods.items():
        assert isinstance(method.inference, ByValidatedGuide) and method.inference.validation.folds == 1, name
        assert method.name == name and method.inference.first is None


def test_two_sets_of_points_of_meng_2024():
    _, model, guide = made("meng2024", "solve-gp", torch.randn(600, 8), torch.randn(600))
    basis = guide.processes._modules["y/f"].basis
    assert [part.inducing_points.shape for part in (basis.first, basis.second)] == [(512, 8), (512, 8)]
    assert model.top.kernel.lengthscale.shape == () and not model.hidden


def test_deep_gps_of_ashman_2020():
    x, y = torch.randn(150, 6), torch.randn(150)
    settings, model, guide = made("ashman2020", "dsvi", x, y, layers=3)
    assert (settings.samples, settings.batch_size, settings.learning_rate) == (1, 10_000, 0.01)
    assert [settings.num_steps(rows, settings.batch_size) for rows in (400, 5000, 400_000)] == [20_000] * 3
    assert [gp.num_outputs for gp in model.hidden] == [6, 6]
    for gp in (*model.hidden, model.top):
        assert torch.equal(gp.kernel.lengthscale, torch.ones(6)) and float(gp.kernel.variance.detach()) == 1.0
    assert guide.processes._modules["h1"].basis.inducing_points.shape == (100, 6)
    assert isinstance(guide, Variational) and guide.propagation.num_components == 1
    assert made("ashman2020", "dsvi", torch.randn(150, 40), y)[1].hidden[0].num_outputs == 30
    assert not made("ashman2020", "svgp", x, y)[1].hidden


def test_approximate_ep_of_ashman_2020():
    x, y = torch.randn(150, 6), torch.randn(150)
    settings, model, guide = made("ashman2020", "aep", x, y, batch_size=50)
    assert model.hidden[0].num_outputs == 2 and model.hidden[0].kernel.lengthscale.shape == (2, 6)
    assert guide.processes._modules["h1"].basis.inducing_points.shape == (2, 100, 6)
    inference = PRESETS["ashman2020"].methods["aep"].inference
    assert isinstance(inference, ByGuide) and inference.made_loss(settings, 150).figures() == {"alpha": 1.0}
    assert (torch.as_tensor(model.hidden[0].kernel.lengthscale) == 1).all()


def test_a_preset_names_its_methods_and_its_depth():
    with pytest.raises(ValueError, match="there is no method 'nuts' in preset meng2024: choose from dsvi, dspp"):
        check_choice(Request(methods=["nuts"], settings=PRESETS["meng2024"].settings))
    with pytest.raises(ValueError, match="there is no preset 'meng2025': choose from meng2024, ashman2020"):
        check_choice(Request(settings=Settings(preset="meng2025")))
    with pytest.raises(ValueError, match="preset meng2024 has 3 layers, of widths 16 and 4, and layers is 2"):
        made("meng2024", "dspp", torch.randn(20, 3), torch.randn(20), layers=2)


@pytest.mark.parametrize(
    ("preset", "given", "said"),
    [
        ("meng2024", {"inducing": 15, "width": 2}, "width=2, inducing=15 would change nothing: leave them out"),
        ("meng2024", {"layers": 2}, "layers=2 would change nothing: leave it out"),
        ("ashman2020", {"kernel": "matern52"}, "state their own width, kernel, so that kernel='matern52' would change"),
    ],
)
def test_settings_that_the_models_of_a_preset_state_are_refused(preset, given, said):
    own = PRESETS[preset].settings
    check_choice(Request(methods=["dsvi"], settings=own))
    with pytest.raises(ValueError, match=said):
        check_choice(Request(methods=["dsvi"], settings=replace(own, **given)))


@pytest.mark.parametrize(
    ("preset", "name", "setting", "value"),
    [
        (preset, name, setting, value)
        for preset, each in PRESETS.items()
        for name in each.methods
        for setting, value in (("width", 3), ("kernel", "rbf"), ("inducing", 7))
    ],
)
def test_what_a_preset_states_is_what_would_change_nothing(preset, name, setting, value):
    x, y = torch.randn(600, 4), torch.randn(600)
    shapes = []
    for changed in ({}, {setting: value}):
        torch.manual_seed(0)
        _, model, guide = made(preset, name, x, y, **changed)
        shapes.append([(key, each.shape) for key, each in (*model.named_parameters(), *guide.named_parameters())])
    assert (shapes[0] == shapes[1]) == (setting in PRESETS[preset].stated)


def test_a_fit_of_a_preset_is_saved_and_restored_with_its_model(tmp_path):
    from pyro_dgp import load_fit

    x = torch.randn(40, 3)
    y = x[:, 0].sin()
    few = replace(PRESETS["ashman2020"].settings, steps=3, inducing=5)
    result = compare(None, x, y, methods=["dsvi"], settings=few, output=tmp_path / "out", say=lambda line: None)
    new = torch.randn(4, 3)
    again = load_fit(tmp_path / "out", "dsvi")
    assert torch.equal(result["dsvi"].predict(new).mean, again.predict(new).mean)


def test_options_stand_before_those_of_the_preset(capsys):
    from pyro_dgp.comparison.cli import parser

    parsed = parser().parse_args(["sweep", "--data", "motorcycle", "--methods", "dsvi", "--preset", "meng2024"])
    assert base_settings(parsed) == PRESETS["meng2024"].settings
    parsed = parser().parse_args(["compare", "--preset", "ashman2020", "--inducing", "7", "--data", "diabetes"])
    from pyro_dgp.comparison.compare_command import _request

    request = _request(parsed)
    assert request.settings == replace(PRESETS["ashman2020"].settings, inducing=7)
    assert request.methods == ("svgp", "dsvi", "aep")
    for option, value, others in (
        ("epochs", 3, ("steps", "minutes")),
        ("steps", 5, ("epochs",)),
        ("minutes", 2.0, ("steps", "epochs")),
    ):
        parsed = parser().parse_args(
            ["compare", "--preset", "ashman2020", f"--{option}", str(value), "--data", "diabetes"]
        )
        given = _request(parsed).settings
        assert getattr(given, option) == value and not any(getattr(given, other) for other in others)
    assert main(["methods"]) == 0
    assert "meng2024" in capsys.readouterr().out


def test_widths_by_layer():
    x = torch.randn(10, 4)
    model = DeepGP(x, 3, (5, 2))
    assert [gp.num_outputs for gp in model.hidden] == [5, 2]
    assert DeepGP(x, 2, 3).hidden[0].num_outputs == 3 and METHODS["dsvi"].name == "dsvi"
    with pytest.raises(ValueError, match="width has 1 numbers and the model 2 hidden layers"):
        DeepGP(x, 3, (5,))
