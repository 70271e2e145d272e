"""Each symptom is found where it was made on purpose, and not beside it; a sound fit has none."""

import dataclasses
import re
from pathlib import Path

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, PyroSample

from pyro_dgp import (
    ELBO,
    RBF,
    AmortizedInducingPoints,
    Bernoulli,
    Chains,
    ConstantMean,
    DeepGP,
    Diagnosis,
    Gaussian,
    GaussianProcess,
    InducingDraws,
    InducingPoints,
    MissingOutputs,
    MonteCarlo,
    NegativeBinomial,
    Poisson,
    PosteriorDraws,
    PredictiveLogLikelihood,
    Standardizer,
    Variational,
    Zero,
    compare,
    diagnose,
    draw_functions,
    fit,
    predict,
    with_priors,
)
from pyro_dgp.diagnosis.guide_checks import num_distinct
from pyro_dgp.diagnosis.symptoms import SYMPTOMS, found
from pyro_dgp.mcmc.chain_checks import _r_hat
from pyro_dgp.training.remarks import explains_nothing, remarks
from pyro_dgp.zoo.settings import Settings

pytestmark = pytest.mark.usefixtures("local")

ROOT = Path(__file__).parents[2]


def waves(rows=80, noise=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.linspace(-2, 2, rows)[:, None]
    y = torch.sin(3 * x[:, 0]) + noise * torch.randn(rows, generator=generator)
    return x, y / y.std()


def trained(model, x, y, family=None, *, steps=150, loss=ELBO):
    guide = Variational(model, family or InducingPoints(10), MonteCarlo(3))
    guide.initialize(x, y)
    fit(loss(len(x))(guide.model, guide), x, y, steps=steps, learning_rate=0.1)
    return guide


def symptoms(diagnosis):
    return {finding.symptom for finding in diagnosis}


@pytest.fixture(scope="module")
def sound():
    with pyro.settings.context(module_local_params=True):
        torch.set_default_dtype(torch.float64)
        x, y = waves()
        return trained(DeepGP(x, 1), x, y), x, y


def test_a_sound_fit_has_none(sound):
    diagnosis = diagnose(*sound)
    assert not diagnosis and list(diagnosis) == [] and diagnosis.pages == ()
    assert str(diagnosis) == "nothing found in 9 checks"


def test_looking_changes_nothing(sound):
    guide, x, y = sound
    before, state = {k: v.clone() for k, v in guide.named_parameters()}, torch.get_rng_state()
    diagnose(guide, x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in guide.named_parameters())


def test_flat_hidden_layers():
    x, y = waves()
    model = DeepGP(x, 2, width=1, mean=lambda inputs, width: Zero())
    guide = trained(model, x, y, steps=1)
    diagnosis = diagnose(guide, x, y)
    assert {"flat hidden layer"} <= symptoms(diagnosis)
    assert "docs/pitfalls/flat-hidden-layers.md" in diagnosis.pages
    assert "flat hidden layer" not in symptoms(diagnose(trained(DeepGP(x, 2, width=1), x, y, steps=1), x, y))


def test_collapsed_noise():
    x, y = waves(40)
    model = DeepGP(x, 1)
    model.likelihood = Gaussian(variance=3e-4)
    model.top.kernel.lengthscale = torch.tensor([0.05])
    model.requires_grad_(False)
    assert "collapsed noise" in symptoms(diagnose(trained(model, x, y, InducingPoints(40)), x, y))


@pytest.mark.parametrize(("share", "is_found"), [(0.02, False), (2e-4, True)])
@pytest.mark.parametrize("scale", [1.0, 9.0])
def test_noise_is_compared_with_the_targets_of_its_own_output(scale, share, is_found):
    """The noise of a sound fit of an output was compared with the variance of another one."""
    scales = torch.tensor([1.0, scale])
    x = torch.linspace(-1, 1, 60)[:, None]
    f = torch.sin(3 * x[:, 0])
    clean = torch.stack([f, f.flip(0)], 1) / f.std(correction=0) * scales
    y = clean + share**0.5 * scales * torch.randn(60, 2)
    model = Outputs()
    model.likelihood.variance = share * scales.square()
    model.gp.kernel.variance = scales.square()
    found_symptoms = symptoms(diagnose(PosteriorDraws(model, {}, (x, y)), x, y))
    assert ("collapsed noise" in found_symptoms) == is_found


def test_noise_that_outputs_share_is_judged_by_those_that_vary():
    x = torch.linspace(-1, 1, 60)[:, None]
    f = torch.sin(3 * x[:, 0])
    model = Outputs()
    model.likelihood = Gaussian(variance=2e-4)
    for other in (f.flip(0), torch.zeros(60)):
        y = torch.stack([f, other], 1) + 1e-3 * torch.randn(60, 1)
        y[:, 1] = other
        assert "collapsed noise" in symptoms(diagnose(PosteriorDraws(model, {}, (x, y)), x, y))


class Outputs(PyroModule):
    """Exact regression of two outputs."""

    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(outputs=2), num_outputs=2), Gaussian(2)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


def test_noise_that_the_function_replaces_has_not_collapsed(sound):
    """A predictive loss puts the noise into the variance of f, so that its floor tells nothing."""
    guide, x, y = sound
    wide = trained(DeepGP(x, 1), x, y, InducingPoints(10, "diagonal"), loss=PredictiveLogLikelihood, steps=1)
    with torch.no_grad():
        wide.model.likelihood.variance_unconstrained.fill_(-30.0)
        getattr(wide.processes, "y/f").q.scale_unconstrained.fill_(0.0)
    assert predict(wide, x).variance.median() > 0.1 and float(wide.model.likelihood.variance.detach()) < 1.01e-4
    assert "collapsed noise" not in symptoms(diagnose(wide, x, y))


@pytest.mark.parametrize("held_out", [False, True])
def test_exploding_predictive_losses(held_out):
    torch.manual_seed(0)
    x, y = torch.randn(120, 4), torch.randn(120)
    loss = lambda rows: PredictiveLogLikelihood(rows, 0.0)
    guide = trained(DeepGP(x, 1), x[:60], y[:60], InducingPoints(25, "diagonal"), loss=loss)
    rows = slice(60, None) if held_out else slice(0, 60)
    assert "exploding predictive loss" in symptoms(diagnose(guide, x[rows], y[rows]))


class Positive(PyroModule):
    """Positive targets at a plain site."""

    def __init__(self):
        super().__init__()
        self.gp, self.scale = GaussianProcess(RBF(ard=4)), PyroParam(torch.tensor(0.5), constraints.positive)

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.LogNormal(f, self.scale).to_event(1), obs=y)


@pytest.mark.parametrize("exploded", [True, False])
def test_exploding_predictive_losses_of_positive_targets_at_a_plain_site(exploded):
    torch.manual_seed(0)
    x, y = torch.randn(120, 4), torch.randn(120).mul(0.5).exp()
    guide = trained(Positive(), x[:60], y[:60], InducingPoints(25, "diagonal"), steps=100)
    if exploded:
        with torch.no_grad():
            guide.model.scale_unconstrained.fill_(-6.0)
            guide.processes.f.q.scale_unconstrained.fill_(-8.0)
            guide.model.gp.kernel.variance_unconstrained.fill_(-12.0)
    assert ("exploding predictive loss" in symptoms(diagnose(guide, x[60:], y[60:]))) == exploded


@pytest.mark.parametrize(("far", "expected"), [(1e6, True), (0.0, False)])
def test_float32_at_long_ranges(far, expected):
    x, y = waves()
    x, y = (x + far).float(), y.float()
    for units in (None, Standardizer.fit(x)):
        model = DeepGP(x, 1, standardizer=units).float()
        guide = Variational(model, InducingPoints(10), MonteCarlo(1))
        guide.initialize(x, y)
        assert ("coarse inputs" in symptoms(diagnose(guide, x, y))) == expected


def test_a_lengthscale_below_the_rounding_of_inputs():
    x, y = waves()
    wide = (1e4 * x).float()
    model = DeepGP(wide, 1).float()
    with pytest.warns(UserWarning, match="standard deviation of"):
        guide = trained(model, wide, y.float(), steps=1)
    (finding,) = [each for each in diagnose(guide, wide, y.float()) if each.symptom == "coarse inputs"]
    assert "the inputs of 'y/f'" in finding.seen and "lengthscale" in finding.seen


def test_amortised_extrapolation():
    x, y = waves()
    inner = x[:, 0].abs() < 1
    guide = trained(DeepGP(x, 1), x[inner], y[inner], AmortizedInducingPoints(3), steps=300)
    assert "amortised extrapolation" in symptoms(diagnose(guide, 3 * x, torch.sin(9 * x[:, 0])))
    assert "amortised extrapolation" not in symptoms(diagnose(guide, x[inner], y[inner]))


@pytest.mark.parametrize(("shift", "scale"), [(100.0, 20.0), (0.0, 0.01)])
@pytest.mark.filterwarnings("ignore:the target of the site")
def test_unscaled_targets(shift, scale):
    x, y = waves()
    raw = shift + scale * y
    assert "unscaled targets" in symptoms(diagnose(trained(DeepGP(x, 1), x, raw, steps=1), x, raw))
    carries = DeepGP(x, 1, standardizer=Standardizer.fit(x, raw))
    assert "unscaled targets" not in symptoms(diagnose(trained(carries, x, raw, steps=1), x, raw))


@pytest.mark.filterwarnings("ignore:the target of the site")
def test_unscaled_targets_come_first_and_leave_out_what_they_make_meaningless():
    x, y = waves()
    found = diagnose(trained(DeepGP(x, 1), x, 1000 + 200 * y, steps=1), x, 1000 + 200 * y)
    assert found.findings[0].symptom == "unscaled targets" and "mend this first" in found.findings[0].remedy
    assert "explains nothing" in symptoms(found)
    assert not {"collapsed noise", "exploding predictive loss"} & symptoms(found)


def test_each_output_is_judged_by_itself():
    """Differences between the means of outputs, and the variance of another one, explain nothing."""
    x, y = waves()
    noise = torch.randn(len(x), 2, generator=torch.Generator().manual_seed(1))
    of_noise = trained(DeepGP(x, 1, outputs=2), x, noise)
    (finding,) = [each for each in diagnose(of_noise, x, noise) if each.symptom == "explains nothing"]
    assert "nothing of the targets at" in finding.seen
    apart = noise + torch.tensor([0.0, 1000.0])
    carries = trained(DeepGP(x, 1, outputs=2, standardizer=Standardizer.fit(x, apart)), x, apart)
    assert "explains nothing" in symptoms(diagnose(carries, x, apart)) and explains_nothing(carries, x, apart)
    mixed = torch.stack([5 * noise[:, 0], y], -1)
    of_both = trained(DeepGP(x, 1, outputs=2, standardizer=Standardizer.fit(x, mixed)), x, mixed)
    (finding,) = [each for each in diagnose(of_both, x, mixed) if each.symptom == "explains nothing"]
    assert "nothing of output 0 of the targets" in finding.seen
    assert not explains_nothing(of_both, x, mixed)


def test_an_output_that_is_the_same_in_all_rows_is_not_unexplained():
    x, y = waves()
    both = torch.stack([y, torch.full_like(y, 3.7)], -1)
    guide = trained(DeepGP(x, 1, outputs=2), x, both)
    assert "explains nothing" not in symptoms(diagnose(guide, x, both))


def test_groups_are_not_told_apart_by_their_means():
    x, _ = waves()
    noise = torch.randn(3, len(x), generator=torch.Generator().manual_seed(1)) + torch.tensor([[0.0], [3.0], [-3.0]])

    class Groups(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp, self.likelihood = GaussianProcess(RBF(), mean=ConstantMean()), Gaussian()

        def forward(self, x, y=None):
            with pyro.plate("groups", 3, dim=-1):
                return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)

    guide = trained(Groups(), x, noise, steps=600)
    assert "explains nothing" in symptoms(diagnose(guide, x, noise))


@pytest.mark.filterwarnings("ignore:output 0 of the target")
def test_unscaled_targets_of_one_output_are_named():
    x, y = waves()
    targets = torch.stack([1e-3 * y, y], -1)
    with pytest.warns(UserWarning, match="output 0 of the target of the site 'y' has mean .*: standardise targets"):
        guide = trained(DeepGP(x, 1, outputs=2), x, targets, steps=1)
    (finding,) = [each for each in diagnose(guide, x, targets) if each.symptom == "unscaled targets"]
    assert finding.seen.startswith("output 0 of the target of the site 'y' has mean")


def test_a_few_outputs_may_vary_little_in_the_unit_of_the_others():
    """As pixels at the border of an image."""
    x, y = waves()
    pixels = y[:, None] * torch.tensor([1e-3, 0.8, 0.5, 1.0, 0.0])
    guide = trained(DeepGP(x, 1, outputs=5), x, pixels, steps=1)
    assert "unscaled targets" not in symptoms(diagnose(guide, x, pixels))


@pytest.mark.parametrize("level", [0.0, 100.0])
def test_targets_of_chains_are_beside_the_mean_that_was_drawn(level):
    x, y = waves(30)
    model = DeepGP(x, 1, top_mean=ConstantMean())
    model.top.mean.constant = PyroSample(dist.Normal(torch.zeros(1), 1000.0).to_event(1))
    draws = {"top.mean.constant": level + 0.1 * torch.randn(2, 10, 1)}
    chains = Chains(draws, model=model, args=(x, level + y))
    assert "unscaled targets" not in symptoms(diagnose(chains, x, level + y))
    away = Chains({"top.mean.constant": draws["top.mean.constant"] + 50}, model=model, args=(x, level + y))
    (finding,) = [each for each in diagnose(away, x, level + y) if each.symptom == "unscaled targets"]
    assert re.search(r"has mean -(49|50|51)\.?\d* ", finding.seen)


def test_coinciding_points(sound):
    _, x, y = sound
    guide = trained(DeepGP(x, 2, width=2), x, y, steps=1)
    assert "coinciding points" not in symptoms(diagnose(guide, x, y))
    points = guide.processes.h1.basis.inducing_points.data
    points[5:] = points[:5]
    (finding,) = [each for each in diagnose(guide, x, y) if each.symptom == "coinciding points"]
    assert finding.seen.startswith("5 of the 10 inducing points of 'h1'")


@pytest.mark.parametrize("unit", [1.0, 2e4])
def test_points_coincide_in_lengthscales_whatever_the_unit_of_an_input(unit):
    """Three doses and many values of another input: points of one dose are apart in the other input alone."""
    generator = torch.Generator().manual_seed(0)
    x = torch.stack([torch.tensor([0.0, 0.25, 1.0]).repeat_interleave(20), torch.rand(60, generator=generator)], -1)
    x, y = x * torch.tensor([unit, 1.0]), torch.randn(60, generator=generator)
    for kernel in (RBF(ard=2), RBF(ard=2) + RBF(ard=2)):
        model = DeepGP(x, 1)
        for part in [kernel] if isinstance(kernel, RBF) else kernel.parts:
            part.lengthscale = torch.tensor([unit, 0.3])
        model.top.kernel = kernel
        guide = Variational(model, InducingPoints(12))
        guide.initialize(x, y)
        assert "coinciding points" not in symptoms(diagnose(guide, x, y))
        points = getattr(guide.processes, "y/f").basis.inducing_points.data
        points[6:] = points[:6]
        assert "coinciding points" in symptoms(diagnose(guide, x, y))


def test_points_that_one_output_tells_apart_do_not_coincide():
    x = torch.cartesian_prod(torch.linspace(0, 1, 10), torch.linspace(0, 1, 4))
    y = torch.randn(len(x), 2, generator=torch.Generator().manual_seed(0))
    model = DeepGP(x, 1, outputs=2)
    model.top.kernel = RBF(ard=2, outputs=2)
    model.top.kernel.lengthscale = torch.tensor(
        [[1e6, 1.0], [1.0, 1.0]]
    )  # the first output does not see the first input
    guide = Variational(model, InducingPoints(20))
    guide.initialize(x, y)
    assert "coinciding points" not in symptoms(diagnose(guide, x, y))


def test_distinct_points_are_counted_by_their_spacing():
    points = torch.linspace(0, 1, 10)[:, None]
    assert num_distinct(points) == 10 == num_distinct(1e-6 * points)
    assert num_distinct(torch.cat([points, points + 1e-4])) == 10
    assert num_distinct(torch.zeros(4, 2)) == 1


class Hidden(PyroModule):
    """A hidden function with zero mean: its mirror image is as likely."""

    def __init__(self):
        super().__init__()
        self.hidden, self.top, self.likelihood = GaussianProcess(RBF()), GaussianProcess(RBF()), Gaussian(variance=0.05)

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


def chains_of(model, x, y, *, signs=(1, 1), diverging=None):
    """Draws around one function of the hidden layer, each chain with a sign of its own."""
    whitened = 2.0 * torch.linspace(-1, 1, len(x)) + 0.1 * torch.randn(len(signs), 20, len(x))
    draws = {"h_whitened": torch.tensor(signs)[:, None, None] * whitened}
    draws = {"h_whitened": draws["h_whitened"].unsqueeze(-2)}
    stats = {} if diverging is None else {"diverging": diverging.numpy()}
    return Chains(draws, stats=stats, model=model, args=(x, y))


def test_mirror_images_among_chains():
    x, y = waves(12)
    model = Hidden()
    (mirrored,) = [
        each for each in diagnose(chains_of(model, x, y, signs=(1, -1)), x, y) if each.symptom == "mirror images"
    ]
    assert "'h'" in mirrored.seen and mirrored.page == "docs/pitfalls/mirror-images.md"
    assert "mirror images" not in symptoms(diagnose(chains_of(model, x, y), x, y))


def test_divergences():
    x, y = waves(12)
    diverging = torch.zeros(2, 20, dtype=torch.bool)
    assert "divergences" not in symptoms(diagnose(chains_of(Hidden(), x, y, diverging=diverging), x, y))
    diverging[1, 3] = True
    (finding,) = [
        each for each in diagnose(chains_of(Hidden(), x, y, diverging=diverging), x, y) if each.symptom == "divergences"
    ]
    assert finding.seen == "1 of its 40 transitions diverged"


def test_r_hat_of_a_hidden_function_is_that_of_gelman_and_rubin():
    values = torch.randn(3, 50, 1, 1) + torch.tensor([0.0, 1.0, 2.0])[:, None, None, None]
    one = values[..., 0, 0]
    within = sum(float(chain.var()) for chain in one) / 3
    between = 50 * float(one.mean(1).var())
    assert _r_hat(values) == pytest.approx(((49 / 50 * within + between / 50) / within) ** 0.5)


def test_draws_are_looked_at_as_one_chain():
    x, y = waves(12)
    chains = chains_of(Hidden(), x, y, signs=(1, 1, 1, 1))
    draws = PosteriorDraws(chains.model, chains.flat, (x, y))
    assert "mirror images" not in symptoms(diagnose(draws, x, y))
    exact = PosteriorDraws(DeepGP(x, 1), {}, (x, y))
    assert not diagnose(exact, x, y)


def test_noise_that_was_sampled():
    x, y = waves(12)
    model = DeepGP(x, 1)
    model.likelihood.variance = PyroSample(dist.LogNormal(0.0, 1.0))
    values = torch.full((1, 20), 1e-5) * (1 + torch.rand(1, 20))
    assert "collapsed noise" in symptoms(
        diagnose(Chains({"likelihood.variance": values}, model=model, args=(x, y)), x, y)
    )


def test_draws_of_inducing_variables(sound):
    guide, x, y = sound
    (name,) = [each for each, _ in guide.named_parameters() if ".q.mean" in each]
    mean = dict(guide.named_parameters())[name].detach()
    assert not diagnose(InducingDraws(guide, {name: mean + 0.01 * torch.randn(5, *mean.shape)}), x, y)


def test_fits_of_a_comparison_are_judged_in_units_of_the_data():
    x, y = waves(60)
    inputs, targets = (100 * x).numpy(), (1000 + 50 * y).numpy()
    few = Settings(inducing=10, epochs=60, mcmc_samples=8, warmup=4, chains=1)
    result = compare(
        lambda rows: with_priors(DeepGP(rows, 1)),
        inputs,
        targets,
        methods=["dsvi", "ess"],
        settings=few,
        say=lambda sentence: None,
    )
    assert "unscaled targets" not in symptoms(diagnose(result["dsvi"], inputs, targets))
    assert diagnose(result["ess"], inputs, targets).checks == 6
    with pytest.raises(TypeError, match=r"functions of the fit 'dsvi' of compare .*: fit.draw_functions\(\d+\)"):
        draw_functions(result["dsvi"], 2)
    by_hand = dataclasses.replace(result["dsvi"], predictor=result["dsvi"].predictor.__call__)
    with pytest.raises(TypeError, match="gives no Predictor"):
        diagnose(by_hand, inputs, targets)


def test_classes_and_other_kinds_of_fits():
    x, _ = waves(40)

    class Classes(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp = GaussianProcess(RBF(), num_outputs=2)

        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.Categorical(logits=f).to_event(1), obs=y)

    assert not diagnose(trained(Classes(), x, (x[:, 0] > 0).long(), steps=5), x, (x[:, 0] > 0).long())
    with pytest.raises(TypeError, match="diagnose takes a trained guide"):
        diagnose(object(), x, x[:, 0])


@pytest.mark.parametrize("likelihood", [Poisson, NegativeBinomial, Bernoulli, lambda: MissingOutputs(Poisson())])
def test_targets_that_are_no_real_numbers_are_not_averaged(likelihood):
    x, y = waves(40)
    y = (y > 0).to(y)
    model = DeepGP(x, layers=1, likelihood=likelihood())
    guide = trained(model, x, y, steps=5)
    assert remarks(guide, x, y) is not None
    assert "exploding predictive loss" not in symptoms(diagnose(guide, x, y))


def test_counts_beside_a_real_target_are_not_averaged():
    class Two(PyroModule):
        def __init__(self):
            super().__init__()
            self.real, self.count = GaussianProcess(RBF()), GaussianProcess(RBF())
            self.noisy, self.counts = Gaussian(), Poisson()

        def forward(self, x, y=None, z=None):
            pyro.sample("z", self.noisy(self.real(x)), obs=z)
            return pyro.sample("y", self.counts(self.count(x)), obs=y)

    x, z = waves(40)
    y = (z > 0).to(z)
    guide = Variational(Two(), InducingPoints(10))
    guide.initialize(x, y, z=z)
    for site in ("y", None):
        assert "exploding predictive loss" not in symptoms(diagnose(guide, x, y, site=site, z=z))
    with pytest.raises(ValueError, match="name one with site="):
        diagnose(guide, x, y)


def test_targets_that_do_not_fit_the_rows_are_refused():
    x, y = waves(40)
    guide = trained(DeepGP(x, layers=1), x, y, steps=5)
    for wrong in (y[:, None], y[:20]):
        with pytest.raises(ValueError, match="the prediction at x has shape"):
            diagnose(guide, x, wrong)
    for rows in (x[:, 0], x[:0], x.numpy()):
        with pytest.raises(ValueError, match="pass such a tensor as x"):
            diagnose(guide, rows, y)
    with pytest.raises(ValueError, match="there is no site 'nope'"):
        diagnose(guide, x, y, site="nope")


def test_constant_targets_and_missing_ones():
    x, y = waves(40)
    found = symptoms(diagnose(trained(DeepGP(x, layers=1), x, y, steps=5), x, torch.zeros(40)))
    assert not {"explains nothing", "exploding predictive loss"} & set(found)
    missing = torch.where(torch.arange(40) % 3 == 0, torch.nan, torch.rand(40))
    guide = trained(DeepGP(x, layers=1, likelihood=MissingOutputs(Gaussian())), x, missing, steps=1)
    assert "explains nothing" in symptoms(diagnose(guide, x, missing))


def test_every_page_of_the_table_exists_and_is_a_page_of_one_symptom():
    pages = {symptom.page for symptom in SYMPTOMS.values()}
    assert all((ROOT / page).exists() for page in pages)
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs/pitfalls").glob("*.md")} <= pages
    for symptom in SYMPTOMS.values():
        assert not re.search(r"[.!]$", symptom.seen + symptom.remedy)


def test_findings_print_as_sentences_with_their_page():
    diagnosis = Diagnosis((found("divergences", divergences=2, transitions=40), found("no R-hat")), checks=6)
    first, second = str(diagnosis).splitlines()
    assert first.startswith("2 of its 40 transitions diverged: its draws") and first.endswith(
        "(docs/pitfalls/divergences.md)"
    )
    assert second == "it has no R-hat: too few draws, or some quantity never moved or is NaN (docs/how-to/samplers.md)"
    assert len(diagnosis) == 2
