"""Sentences on how a fit went: each is found where it was planted, and none is said of a sound fit."""

import pickle

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    CollapsedELBO,
    DeepGP,
    DeepKernel,
    FeatureExtractor,
    FourierFeatures,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    Orthogonal,
    PredictiveLogLikelihood,
    SigmaPoints,
    Standardizer,
    Validation,
    Variational,
    diagnose,
    fit,
    fit_collapsed,
    fit_lbfgs,
    fit_validated,
    remarks,
)
from pyro_dgp.diagnosis.loss_checks import falling_at_the_end
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.training.optimising import FitResult
from pyro_dgp.training.remarks import Trained, lengthscales_of

pytestmark = pytest.mark.usefixtures("local")

NOTHING, FLOOR, FLAT = "the fit explains nothing", "is at its floor", "is flat"
MEAN, START, APART = "no more than its mean", "stands where it began", "it has overfitted"
FALLING, STOPPED = "when the learning rate began to fall", "nats a row in the last "
FEW, CONSTANT, WORSE = "this run had no more than", "hyperparameters may gain by chance", "is below that of a normal"


def waves(rows=200, noise=0.2, seed=0):
    """A function of one input with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.linspace(-2, 2, rows)[:, None]
    y = torch.sin(3 * x[:, 0]) + noise * torch.randn(rows, generator=generator)
    return x, (y - y.mean()) / y.std()


def trained(model, x, y, *, steps=300, points=20, rate=0.05, samples=5):
    """A guide trained by the ELBO, and the record of its training."""
    guide = Variational(model, InducingPoints(points), MonteCarlo(samples))
    guide.initialize(x, y)
    result = fit(ELBO(len(x))(model, guide), x, y, steps=steps, learning_rate=rate)
    return guide, result


def found(sentences):
    """Which of the sentences were said."""
    kinds = (NOTHING, FLOOR, FLAT, MEAN, START, FALLING, STOPPED, APART, FEW, CONSTANT, WORSE)
    return {kind for kind in kinds if any(kind in sentence for sentence in sentences)}


@pytest.mark.parametrize(("seed", "layers"), [(0, 1), (1, 1), (0, 2)])
def test_a_sound_fit_has_none(layers, seed):
    x, y = waves(seed=seed)
    torch.manual_seed(seed)
    _, result = trained(DeepGP(x, layers, width=1), x, y, steps=1000)
    # One layer is enough for these data: some fits of two are one, and some find late that they need not be.
    assert found(result.remarks) <= ({MEAN, FALLING} if layers == 2 else set())


def test_targets_that_are_noise_are_not_explained():
    x, _ = waves()
    _, result = trained(DeepGP(x, 1), x, torch.randn(200))
    assert found(result.remarks) >= {NOTHING}


def test_a_fit_stuck_at_noise_explains_nothing():
    """There is something to be found, and a few steps at a low rate do not."""
    x = torch.randn(400, 20)
    y = torch.sin(3 * x[:, 0])
    _, result = trained(DeepGP(x, 1), x, y, steps=120, rate=1e-4)
    assert found(result.remarks) >= {NOTHING, START}


def test_noise_at_its_floor():
    x, _ = waves()
    y = torch.sin(3 * x[:, 0])
    model = DeepGP(x, 1, likelihood=Gaussian(variance=0.05, floor=0.04))
    _, result = trained(model, x, y, steps=600)
    assert FLOOR in found(result.remarks)
    assert any("the noise variance of likelihood is at its floor, 0.04" in sentence for sentence in result.remarks)


class Collapsed(PyroModule):
    """A hidden layer with zero mean, whose values start at zero and stay there without training."""

    def __init__(self):
        super().__init__()
        self.hidden, self.top, self.likelihood = GaussianProcess(RBF()), GaussianProcess(RBF()), Gaussian()

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


def test_a_flat_hidden_layer():
    x, y = waves()
    _, result = trained(Collapsed(), x, y, steps=1, rate=1e-6)
    assert found(result.remarks) == {NOTHING, FLAT, FEW}


def test_a_hidden_layer_that_is_its_mean():
    x, y = waves()
    model = DeepGP(x, 2, width=1)
    guide = Variational(model, InducingPoints(20), MonteCarlo(2))
    guide.initialize(x, y)
    guide.processes.h1.requires_grad_(False)
    assert found(fit(ELBO(200)(model, guide), x, y, steps=600, learning_rate=0.05).remarks) == {MEAN}


def test_lengthscales_that_do_not_move():
    x, y = waves()
    model = DeepGP(x, 1)
    guide = Variational(model, InducingPoints(20))
    guide.initialize(x, y)
    start = lengthscales_of(model)
    assert list(start) == ["top.kernel.lengthscale"]
    result = fit(ELBO(200)(model, guide), x, y, steps=1000, learning_rate=0.05)
    assert result.remarks == []
    model.top.kernel.lengthscale_unconstrained.data.copy_(start["top.kernel.lengthscale"])
    assert found(remarks(guide, x, y, losses=result.losses, start=start)) == {START}


def test_a_loss_that_was_still_falling():
    x, y = waves(noise=0.05)
    _, result = trained(DeepGP(x, 1), x, y, steps=150, rate=0.005)
    assert FALLING in found(result.remarks)
    falling, noisy = torch.linspace(3, 0, 1000), 0.3 * torch.randn(1000)
    assert found(FitResult(falling.tolist()).remarks) == set()  # nothing is known of what was trained
    guide, sound = trained(DeepGP(x, 1), x, y, steps=1000)
    short = torch.linspace(3, 0, 30)
    for losses, expected in (
        (falling, {FALLING}),
        (falling + noisy, {FALLING}),
        (noisy, set()),
        (short, {FALLING}),
        (noisy[:30], set()),
        (falling[:50], set()),  # by a twentieth of a nat in a fifth of them
        (short[:19], {FEW}),
        (short[:1], {FEW}),
        (torch.tensor([1.0, 1.01, 1.0, 1.0]), set()),
    ):
        assert found(remarks(guide, x, y, losses=losses.tolist())) == expected
        diagnosis = diagnose(guide, x, y, losses=losses.tolist())
        assert (diagnosis.checks, found([each.sentence for each in diagnosis])) == (10, expected)
    for none in (None, []):
        assert (diagnose(guide, x, y, losses=none).checks, len(diagnose(guide, x, y, losses=none))) == (9, 0)
    assert "by 0.62 nats a row in a fifth of the 30 steps" in remarks(guide, x, y, losses=short.tolist())[0]
    assert "had no more than 3 steps, too few to tell" in remarks(guide, x, y, losses=[1.0, 0.5, 0.5])[0]


def test_a_descent_without_a_learning_rate_is_asked_for_its_end():
    x, y = waves()
    model = DeepGP(x, 1)
    guide = Variational(model, InducingPoints(20))
    guide.initialize(x, y)
    descent, steps = (Trained(guide, (x, y), {}, **kind) for kind in ({"on_losses": falling_at_the_end}, {}))
    by_bound = fit_collapsed(guide, (x, y))
    assert by_bound.remarks == [] and by_bound.trained is not None
    assert not by_bound.trained.may_explode  # a bound is not asked whether it is too sure between rows
    early = (
        [1.0] * 60 + [*torch.linspace(1.0, 0.0, 60).tolist()] + [0.0] * 40
    )  # falls in the middle, and stands at the end
    late = [1.0] * 100 + [*torch.linspace(1.0, 0.0, 60).tolist()]
    assert (found(descent.remarks(early)), found(steps.remarks(early))) == (set(), {FALLING})
    assert (found(descent.remarks(late)), found(steps.remarks(late))) == ({STOPPED}, set())
    for losses, expected in (
        (late[-90:], {STOPPED}),
        (early[-41:], set()),
        ([3.0, 2.0], {STOPPED}),
        ([3.0], {FEW}),
        ([], set()),
    ):
        assert found(descent.remarks(losses)) == expected
    assert "in the last tenth of the 90 steps" in descent.remarks(late[-90:])[0]
    assert "in the last of the 2 steps" in descent.remarks([3.0, 2.0])[0]
    by_lbfgs = fit_lbfgs(CollapsedELBO(guide), x, y, steps=2)
    assert by_lbfgs.trained is not None and not by_lbfgs.trained.may_explode
    by_lbfgs.losses = late
    assert STOPPED in found(by_lbfgs.remarks)


def test_a_validated_fit_that_overfitted():
    torch.manual_seed(0)
    x, y = torch.randn(60, 8), torch.randn(60)
    guide = Variational(DeepGP(x, 1), InducingPoints(48, "diagonal"), SigmaPoints("qr3", 2))
    loss = lambda beta, rows: PredictiveLogLikelihood(rows, beta)
    one_check = Validation(betas=(0.0,), checks=1, share=0.2, folds=1)
    result = fit_validated(guide, loss, x, y, steps=400, validation=one_check, learning_rate=0.05)
    assert APART in found(result.remarks)
    x, y = waves()
    guide = Variational(DeepGP(x, 1), InducingPoints(20, "diagonal"), MonteCarlo(1))
    result = fit_validated(
        guide, loss, x, y, steps=1000, validation=Validation(betas=(1.0,), folds=1), learning_rate=0.05
    )
    assert result.remarks == []


def test_classes_and_groups_are_looked_at_too():
    x, _ = waves(60)
    labels = (x[:, 0] > 0).long()

    class Classes(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp = GaussianProcess(RBF(), num_outputs=2)

        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.Categorical(logits=f).to_event(1), obs=y)

    class Groups(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian()

        def forward(self, x, y=None):
            with pyro.plate("groups", 2):
                return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)

    assert found(trained(Classes(), x, labels, steps=20)[1].remarks) == {FALLING}
    noise = torch.randn(2, 60)
    assert NOTHING in found(trained(Groups(), x, noise, steps=100, points=2)[1].remarks)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(("interval", "share"), [((-2.5, 2.5), None), ((-1.0, 2.5), 0.25)])
def test_inputs_outside_of_the_interval_of_fourier_features(interval, share, beside):
    """Of rows from -2 to 2 a quarter lie below -1."""
    x, y = waves()
    features = FourierFeatures(10, interval=interval)
    model = DeepGP(x, layers=1, kernel="matern52-additive")
    guide = Variational(model, Orthogonal(InducingPoints(5), features) if beside else features, MonteCarlo(5))
    guide.initialize(x, y)
    fit(ELBO(len(x))(guide.model, guide), x, y, steps=150, learning_rate=0.05)
    said = [sentence for sentence in remarks(guide, x, y) if "outside of the interval" in sentence]
    assert len(said) == (share is not None)
    if share is not None:
        assert said[0].startswith(f"{share:.0%} of the inputs of 'top' in column 0")


def test_a_hidden_layer_that_leaves_the_interval():
    """The remark names the layer whose inputs have moved since the features were made."""
    x, y = waves()
    guide = Variational(DeepGP(x, layers=2, kernel="matern32-additive"), FourierFeatures(10), MonteCarlo(5))
    guide.initialize(x, y)
    assert not [sentence for sentence in remarks(guide, x, y) if "outside of the interval" in sentence]
    with torch.no_grad():
        guide.model.hidden[0].mean.weight.mul_(4.0)
    said = [sentence for sentence in remarks(guide, x, y) if "outside of the interval" in sentence]
    assert said and all("'top'" in sentence for sentence in said)


def exact(x, y, *, model=None, steps=60):
    """What is said of an exact GP after some steps of L-BFGS."""
    model = DeepGP(x, 1) if model is None else model
    return fit_lbfgs(MarginalLikelihood(model), x, y, steps=steps).remarks


def drawn(*shape, seed=0):
    """Standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_likelihood_that_is_no_better_than_a_constant():
    """Residuals at training rows do not tell: the fit of noise may go through every row."""
    x, noise = drawn(150, 4), drawn(150, seed=1)
    model = DeepGP(x, 1)
    said = exact(x, noise, model=model)
    assert found(said) == {CONSTANT}
    with torch.no_grad(), module_local_parameters(model):
        gain = float(dist.Normal(noise.mean(), noise.std(correction=0)).log_prob(noise).sum())
        gain = max(0.0, -float(MarginalLikelihood(model)(x, noise)) - gain)
    figures = f"is {gain:.1f} nats in total above that of a normal that looks at no input, which its 6 hyperparameters"
    assert 0.1 < gain < 5 and figures in said[0]
    assert exact(x, torch.sin(2 * x[:, 0]) + 0.5 * noise) == []
    assert exact(x, 0.4 * x[:, 0] + noise) == []  # weak, and more than chance
    wide = 300.0 + 50.0 * noise
    assert found(exact(x, wide, model=DeepGP(x, 1, standardizer=Standardizer.fit(x, wide)))) == {CONSTANT}
    assert WORSE in found(exact(x, wide, steps=2))


def test_a_likelihood_with_more_hyperparameters_than_rows_tells_nothing():
    x, noise = drawn(60, 3), drawn(60, seed=1)
    network = FeatureExtractor(x, features=2)
    model = DeepKernel(network, DeepGP(network(x).detach(), layers=1))
    assert sum(each.numel() for each in model.parameters()) > 60
    result = fit(MarginalLikelihood(model), x, torch.sin(2 * x[:, 0]) + 0.1 * noise, steps=150, learning_rate=0.02)
    assert CONSTANT not in found(result.remarks)


class Grouped(PyroModule):
    """One function for each of two groups, with batch normalisation of the inputs."""

    def __init__(self):
        super().__init__()
        self.norm, self.gp, self.likelihood = torch.nn.BatchNorm1d(1, affine=False), GaussianProcess(RBF()), Gaussian()

    def forward(self, x, y=None):
        with pyro.plate("groups", 2):
            return pyro.sample("y", self.likelihood(self.gp(self.norm(x))), obs=None if y is None else 1.0 * y)


def test_groups_are_compared_with_a_normal_each_and_a_remark_leaves_the_model_alone():
    x, _ = waves(60)
    both = torch.sin(3 * x[:, 0]) + 0.1 * drawn(2, 60)
    noise = drawn(2, 60)
    noise = (noise - noise.mean(1, keepdim=True)) / noise.std(1, keepdim=True)
    for y, expected in ((both, set()), (noise, {CONSTANT})):
        model = Grouped()
        result = fit(MarginalLikelihood(model), x, y, steps=200, learning_rate=0.1)
        before, state = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
        assert found(result.remarks) == expected
        assert torch.equal(torch.get_rng_state(), before) and model.training
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_the_record_of_a_likelihood_travels_with_what_was_found():
    x, noise = drawn(50, 1), drawn(50, seed=1)
    gp, likelihood = GaussianProcess(RBF()), Gaussian()

    def model(x, y=None):
        return pyro.sample("y", likelihood(gp(x)), obs=y)

    result = fit_lbfgs(MarginalLikelihood(model), x, noise, steps=40)
    again = pickle.loads(pickle.dumps(result))
    assert again.remarks == result.remarks and found(again.remarks) == {CONSTANT}
    assert len(pickle.dumps(result)) < 2000  # and neither data nor model do


def test_a_likelihood_beside_a_constant_counts_what_is_observed():
    """Each output counts, and nothing is said where there is more than y."""
    x, noise = drawn(80, 2), drawn(80, 2, seed=1)
    wave = torch.cat((torch.sin(2 * x[:, :1]) + 0.5 * noise[:, :1], 100 * noise[:, 1:]), dim=1)
    model = lambda y: DeepGP(x, 1, outputs=2, per_output=True, standardizer=Standardizer.fit(x, y))
    assert found(exact(x, noise, model=model(noise))) == {CONSTANT}
    assert exact(x, wave, model=model(wave)) == []

    class Twice(PyroModule):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.likelihood = GaussianProcess(RBF()), GaussianProcess(RBF()), Gaussian()

        def forward(self, x, y=None, z=None):
            y = pyro.sample("y", self.likelihood(self.first(x)), obs=y)
            pyro.sample("z", self.likelihood(self.second(x)), obs=z)
            return y

    result = fit(MarginalLikelihood(Twice()), x, noise[:, 1], z=noise[:, 0], steps=200, learning_rate=0.1)
    assert result.trained is not None and result.remarks == []
