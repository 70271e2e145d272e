import math
from dataclasses import dataclass

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

import pyro_dgp
from pyro_dgp import (
    ELBO,
    RBF,
    AffineMaps,
    AmortizationRecipe,
    AmortizedInducingPoints,
    DeepGP,
    GaussianProcess,
    InducingPoints,
    InferenceFunctions,
    Matern52,
    MonteCarlo,
    OneNetwork,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    WithMean,
    Zero,
    predict,
)
from pyro_dgp.processes.inference_functions import Perceptron
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings
from tests.examples import OneLayer, TwoLayers, regression

pytestmark = pytest.mark.usefixtures("local")


class Own(InferenceFunctions):
    """A user's functions: the initial scale is kept as a number, the rest are parameters."""

    def __init__(self, sizes, scale, wrong=None):
        super().__init__(sizes)
        self.start, self.wrong = scale, wrong
        self.points = torch.nn.Parameter(torch.randn(sizes.num_inducing, sizes.num_inputs))
        self.means = torch.nn.Linear(sizes.num_inputs, sizes.num_outputs * sizes.num_inducing)

    def forward(self, x):
        outputs, points = self.sizes.num_outputs, self.sizes.num_inducing
        z = x.unsqueeze(-2) + self.points
        means = self.means(x).unflatten(-1, (outputs, points))
        values = {"points": z, "means": means, "scales": torch.full_like(means, self.start)}
        if self.wrong == "number":
            return z, means
        if self.wrong is not None:
            values[self.wrong] = values[self.wrong][..., :1, :]
        return tuple(values.values())


@dataclass(frozen=True)
class OwnRecipe(AmortizationRecipe):
    wrong: str | None = None

    def create(self, sizes, x, scale):
        return Own(sizes, scale, self.wrong)


def a_prior(x, outputs=2):
    return GaussianProcess(Matern52(x.shape[-1]), num_outputs=outputs)(x)


def test_a_recipe_of_the_user_s_own_is_saved_and_made_anew_with_its_initial_scale():
    x, y = regression(20, 2)
    model = TwoLayers(x)
    guides = [Variational(model, AmortizedInducingPoints(3, OwnRecipe()), MonteCarlo(2)) for _ in range(2)]
    guides[0].initialize(x, y)
    assert (guides[0].processes.h.functions.start, guides[0].processes.h.functions.sizes.num_outputs) == (1e-2, 2)
    guides[1].load_state_dict(guides[0].state_dict())
    values = []
    for guide in guides:
        torch.manual_seed(0)
        values.append(predict(guide, x, num_samples=5).log_prob(y))
    torch.testing.assert_close(*values, rtol=0, atol=0)


@pytest.mark.parametrize("wrong", ["points", "means", "scales"])
def test_values_of_another_shape_are_named(wrong):
    x = torch.randn(5, 2)
    process = AmortizedInducingPoints(3, OwnRecipe(wrong)).create(a_prior(x), hidden=False)
    expected = r"\(5, 3, 2\)" if wrong == "points" else r"\(5, 2, 3\)"
    with pytest.raises(ValueError, match=rf"of '.*' gave {wrong} of shape \(5, 1, .\) .*: return {expected}"):
        process(a_prior(x))


def test_what_is_no_inference_function_is_refused():
    x = torch.randn(5, 2)
    process = AmortizedInducingPoints(3, OwnRecipe("number")).create(a_prior(x), hidden=False)
    with pytest.raises(ValueError, match="gave a tuple: return a tuple of three tensors"):
        process(a_prior(x))


def test_a_perceptron_number_for_number():
    network = Perceptron(1, 1, 1, 2, torch.zeros(()))
    network.coefficients.data.copy_(torch.tensor([1.0, -2.0, 0.5, 0.25, 3.0, 5.0, 0.125]))
    x = torch.tensor([[2.0], [-1.0]])
    # units x + 0.5 and -2 x + 0.25, negative ones times 0.2; then 3 and 5 times them, and 0.125
    expected = [3 * 2.5 + 5 * 0.2 * -3.75 + 0.125, 3 * 0.2 * -0.5 + 5 * 2.25 + 0.125]
    torch.testing.assert_close(network(x)[:, 0], torch.tensor(expected))


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("recipe", [AffineMaps(), OneNetwork()])
def test_initial_scales_are_those_asked_for_in_hidden_layers_and_on_top(recipe, covariance):
    x = torch.randn(6, 2)
    family = AmortizedInducingPoints(3, recipe, covariance, hidden_scale=0.3, scale=0.7)
    for hidden, expected in ((True, 0.3), (False, 0.7)):
        scale = family.create(a_prior(x), hidden).functions(x)[2]
        scale = torch.diag_embed(scale) if covariance == "diagonal" else scale
        torch.testing.assert_close(scale, expected * torch.eye(3).expand(6, 2, 3, 3))


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_scales_that_run_off_leave_the_loss_and_its_gradients_finite(covariance):
    x, y = (part.float() for part in regression(10))
    model = OneLayer().float()
    guide = Variational(model, AmortizedInducingPoints(3, covariance=covariance), MonteCarlo(1))
    guide.initialize(x, y)
    getattr(guide.processes, "y/f").functions.scales.last[1].fill_(-110.0)
    loss = ELBO()(model, guide)(x, y)
    loss.backward()
    assert math.isfinite(float(loss.detach()))
    assert all(bool(torch.isfinite(p.grad).all()) for p in guide.parameters())


def test_predictions_under_the_mean_are_those_of_the_rule_written_out():
    x, y = regression(8)
    model = TwoLayers(x)
    guide = Variational(model, AmortizedInducingPoints(3, hidden_scale=0.5), WithMean(MonteCarlo(2)))
    guide.initialize(x, y)
    trace = guide.components(x, propagation=guide.propagation.for_prediction(5)).trace
    values, moments = trace.nodes["h"]["value"], trace.nodes["y"]["fn"].moments
    below = guide.processes.h(model.hidden(x))
    draws = values[:5]
    assert draws.std(0).min() > 0  # five draws
    one_by_one = [
        getattr(guide.processes, "y/f")(model.top(h), below.mean) for h in draws
    ]  # points at the mean, columns at the draw
    torch.testing.assert_close(moments.mean[:5], torch.stack([q.mean for q in one_by_one]))
    torch.testing.assert_close(moments.variance[:5], torch.stack([q.variance for q in one_by_one]))


@pytest.mark.parametrize("inner", [MonteCarlo(4), SigmaPoints("qr3", 10)])
def test_the_mean_is_no_component_of_a_prediction(inner):
    x, y = regression(7)
    model = TwoLayers(x)
    guide = Variational(model, AmortizedInducingPoints(3), WithMean(inner))
    guide.initialize(x, y)
    prediction = predict(guide, x, num_samples=10)
    assert prediction.component_log_prob(y).shape == (10, 7)
    functions = prediction.functions()
    assert functions.components.mean.shape == (10, 7, 1)
    assert float(functions.log_weights.exp().sum()) == pytest.approx(1.0)
    torch.testing.assert_close(
        torch.logsumexp(prediction.component_log_prob(y) + functions.log_weights[:, None], 0), prediction.log_prob(y)
    )


@pytest.mark.parametrize("response", ["LogNormal", "Uniform", "OneHotCategorical"])
def test_responses_that_cannot_be_made_anew_keep_the_mean_with_no_weight(response):
    class Own(PyroModule):
        def __init__(self):
            super().__init__()
            self.hidden, self.top = GaussianProcess(RBF()), GaussianProcess(RBF())

        def forward(self, x, y=None):
            f = pyro.sample("f", self.top(pyro.sample("h", self.hidden(x))))[..., 0]
            made = {
                "LogNormal": lambda: dist.LogNormal(f, 0.3),
                "Uniform": lambda: dist.Uniform(f - 9, f + 9),
                "OneHotCategorical": lambda: dist.OneHotCategorical(logits=torch.stack([f, -f], -1)),
            }[response]()
            with pyro.plate("rows", len(x)):
                return pyro.sample("y", made, obs=y)

    x, y = regression(7)
    y = {"LogNormal": y.exp(), "Uniform": y, "OneHotCategorical": torch.eye(2)[(y > 0).long()]}[response]
    guide = Variational(Own(), AmortizedInducingPoints(3), WithMean(MonteCarlo(4)))
    guide.initialize(x, y)
    prediction = predict(guide, x, num_samples=6)
    expected = torch.logsumexp(prediction.component_log_prob(y)[:6], 0) - math.log(6)
    torch.testing.assert_close(prediction.log_prob(y), expected)


AMORTIZED = {
    "idsgp": (OneNetwork, "full", MonteCarlo, ELBO),
    "sgp-avi": (AffineMaps, "full", MonteCarlo, ELBO),
    "avdgp-ar1": (AffineMaps, "diagonal", MonteCarlo, ELBO),
    "avdgp-ar2": (AffineMaps, "diagonal", (WithMean, MonteCarlo), ELBO),
    "avdgp-ar2p": (AffineMaps, "diagonal", (WithMean, SigmaPoints), ELBO),
    "avdgp-ar2pp": (AffineMaps, "diagonal", (WithMean, SigmaPoints), PredictiveLogLikelihood),
}


@pytest.mark.parametrize("name", AMORTIZED)
def test_methods_are_made_of_what_their_names_say(name):
    recipe, covariance, propagation, loss = AMORTIZED[name]
    settings, x = Settings(beta=0.5), torch.randn(30, 2)
    inference = METHODS[name].inference
    model = METHODS[name].architecture.build(x, settings)
    guide = inference.guide(model, x, settings)
    guide.initialize(x, x[:, 0])
    for process in guide.processes.children():
        assert process.functions.sizes.is_full == (covariance == "full")
        made = recipe().create(process.functions.sizes, x, 1.0) if process.functions.sizes.num_inputs == 2 else None
        assert made is None or type(process.functions) is type(made)
    found = guide.propagation
    kinds = (type(found), type(found.propagation)) if isinstance(found, WithMean) else type(found)
    assert kinds == propagation
    assert type(inference.made_loss(settings, 30)) is loss


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"initial scales are above 1e-06, got scale=1e-07"):
        AmortizedInducingPoints(2, scale=1e-7)
    with pytest.raises(TypeError, match=r"WithMean takes another propagation, such as MonteCarlo\(10\), not WithMean"):
        WithMean(WithMean(MonteCarlo(2)))
    x, y = regression(10)
    for extra in ("h", "w", "y"):  # "y" stands behind "y/f" here
        guide = Variational(OneLayer(), {"y/f": InducingPoints(3), extra: InducingPoints(4)}, MonteCarlo(1))
        with pytest.raises(ValueError, match=rf"processes= names '{extra}', which serves no Gaussian process: .*'y/f'"):
            guide.initialize(x, y)
    guide = Variational(TwoLayers(torch.randn(10, 3)), InducingPoints(3), MonteCarlo(1))
    guide.model.hidden.mean = Zero()
    with pytest.raises(ValueError, match="at the Gaussian process 'h', a kernel with ard=3 got inputs of 2 dimensions"):
        guide.initialize(torch.randn(10, 2), y)


MISTAKES = {
    "AmortizedInducingPoints(3, AffineMaps)": "recipe is an object such as AffineMaps(), not <class",
    "AmortizedInducingPoints(2.5)": "whole number, at least 1, got 2.5",
    "AmortizedInducingPoints(3, Plain()).create(gp(x), False)": "create returns InferenceFunctions, not Linear: derive",
    "WithMean(10)": "WithMean takes another propagation, such as MonteCarlo(10), not 10",
    "WithMean(MonteCarlo)": "WithMean takes another propagation, such as MonteCarlo(10), not <class",
    "Variational(gp, InducingPoints, MonteCarlo(1))": "processes is an object such as InducingPoints(64), not <class",
    "Variational(gp, {'y': 3}, MonteCarlo(1))": "processes['y'] is an object such as InducingPoints(64), not 3",
    "Variational(gp, InducingPoints(3), MonteCarlo(1), networks={'w': len})": "networks['w'] is a torch.nn.Module, whose weights",
    "predict(guide, x, x[:, 0])": "predict takes test inputs and no targets",
    "fit(ELBO(5), x, x[:, 0], steps=1)": "the objective is loss(model, guide), a torch.nn.Module, not ELBO: call the loss on both",
    "fit(guide, x, x[:, 0], steps=1)": "training minimises a loss of model and guide, not the guide alone: give ELBO(num_data=N)(guide.",
    "run_chains(gp, (x,), num_samples=1, warmup_steps=1)": "run_chains takes a kernel, such as EllipticalSlice(model) or WhitenedNUTS(model), not GaussianProcess",
    "Settings(num_inducing=3)": "there is no setting 'num_inducing': did you mean 'inducing'? there are layers, width, inducing,",
    "Settings(width=(3, 2))": "width is a whole number, got (3, 2); a model of your own may have a width for each layer",
    "Settings(steps=0)": "steps must be at least 1, got 0",
    "Settings(steps=3, epochs=2)": "given twice, as 2 epochs and 3 steps: give one of them",
    "Settings(layers=2.0)": "layers is a whole number, got 2.0",
    "Settings(chains=True)": "chains is a whole number, got True",
    "Settings(beta='auto')": "beta is a number, got 'auto'",
    "convergence(x)": "convergence takes draws by name, as {'f': draws}, and got a Tensor",
    "convergence({'f': x[:, 0]})": "draws of 'f' have shape (5,) where (chains, draws, ...) is needed: pass draws.unsqueeze(0)",
    "Settings(zzz=3)": "there is no setting 'zzz': there are layers, width, inducing,",
    "fit(ELBO(5)(guide.model, guide), x, x[:, 0], steps=1, batch_size=0)": "batch_size is a whole number, 1 or more, got 0",
}


class OfAnotherKind(AmortizationRecipe):
    """A recipe whose functions are a network."""

    def create(self, sizes, x, scale):
        return torch.nn.Linear(2, 2)


@pytest.mark.usefixtures("unannotated")
def test_values_of_another_kind_are_named_where_types_are_not_checked():
    x, gp = torch.randn(5, 2), GaussianProcess(Matern52(2))
    guide = Variational(DeepGP(x, 1), InducingPoints(3), MonteCarlo(1))
    guide.initialize(x, x[:, 0])
    names = {**vars(pyro_dgp), "Plain": OfAnotherKind, "x": x, "gp": gp, "guide": guide}
    for code, expected in MISTAKES.items():
        with pytest.raises((TypeError, ValueError)) as caught:
            eval(code, names)
        assert expected in str(caught.value)
