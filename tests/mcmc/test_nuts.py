import math
import time

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC
from pyro.nn import PyroSample

from pyro_dgp import RBF, Gaussian, GaussianProcess, WhitenedNUTS, run_chains, whitened
from pyro_dgp.internal.checkpoint import read_state
from pyro_dgp.mcmc.density import WhitenedDensity
from tests.examples import OneLayer, Recorded, TwoLayers, TwoSites, posterior, regression

pytestmark = pytest.mark.usefixtures("local")


def with_noise_prior(x):
    model = TwoLayers(x)
    model.likelihood.variance = PyroSample(dist.LogNormal(-2.0, 0.5))
    return model.requires_grad_(False)


def test_figures_of_a_draw_belong_to_it():
    x, y = regression(9)
    model = with_noise_prior(x)
    kernel = WhitenedNUTS(model, max_tree_depth=4, target_accept_prob=0.9)
    result = run_chains(kernel, (x, y), num_samples=20, warmup_steps=20, num_chains=1)
    density = WhitenedDensity(whitened(model), (x, y), {})
    for index in (0, 19):
        own = {name: values[0, index] for name, values in result.draws.items()}
        params = {k: density.transforms[k].inv(v) if k in density.transforms else v for k, v in own.items()}
        assert result.stats["lp"][0, index] == pytest.approx(-float(density.potential(params)), rel=1e-9)
    stats = {name: values[0] for name, values in result.stats.items()}
    assert set(stats) == {"lp", "energy", "n_steps", "tree_depth", "acceptance_rate", "step_size", "diverging"}
    assert (stats["energy"][1:] > -stats["lp"][:-1]).all()  # kinetic energy is positive
    assert ((2 ** (stats["tree_depth"] - 1) <= stats["n_steps"]) & (stats["n_steps"] < 2 ** stats["tree_depth"])).all()
    assert stats["tree_depth"].max() <= 4 and len(set(stats["step_size"])) == 1 and not stats["diverging"].any()
    assert 0.3 < stats["acceptance_rate"].mean() <= 1 and stats["acceptance_rate"].std() > 0


def test_a_divergence_is_seen_in_the_draw_that_has_it():
    x, y = regression(9)
    kernel = WhitenedNUTS(with_noise_prior(x), max_tree_depth=3, step_size=50.0)
    result = run_chains(kernel, (x, y), num_samples=3, warmup_steps=0, num_chains=1)
    assert result.stats["diverging"].tolist() == [[True, True, True]] and result.diagnostics[0]["divergences"] == [
        0,
        1,
        2,
    ]


def test_one_layer_has_the_closed_form_posterior():
    x = torch.linspace(-1, 1, 8)[:, None]
    y = torch.sin(3 * x[:, 0])
    model = TwoSites(Gaussian(variance=0.1)).requires_grad_(False)
    kernel = WhitenedNUTS(model, density=Recorded)
    result = run_chains(kernel, (x, y), num_samples=400, warmup_steps=100, num_chains=1)
    prior = model.gp(x)
    f = prior.unwhiten(result.flat["f_whitened"])[..., 0]
    mean, sd = posterior(prior, y, 0.1)
    assert ((f.mean(0) - mean).abs() / sd).max() < 0.25
    torch.testing.assert_close(f.std(0), sd, rtol=0.15, atol=0)


def test_a_start_that_no_prior_draw_gives_is_one_sentence():
    x, y = regression(6)
    model = with_noise_prior(x)
    with pytest.raises(
        ValueError, match="none of 100 prior draws has a finite posterior density: the observations of 'y' hold NaN"
    ):
        run_chains(WhitenedNUTS(model), (x, torch.full_like(y, math.inf)), num_samples=1, warmup_steps=0, num_chains=1)


def test_one_layer_without_priors_is_named():
    x, y = regression(6)
    with pyro.settings.context(module_local_params=True), pytest.raises(ValueError, match="nothing to sample"):
        WhitenedNUTS(OneLayer()).setup(1, x, y)


def test_chains_of_one_process_are_those_that_run_alone(monkeypatch):
    """Their gradients are computed together: as many positions at once as there are chains that have not ended."""
    x, y = regression(9)
    model, counts = with_noise_prior(x), []
    original = WhitenedNUTS.slopes

    def counted(self, positions):
        counts.append(len(positions))
        return original(self, positions)

    monkeypatch.setattr(WhitenedNUTS, "slopes", counted)
    options = {"num_samples": 3, "warmup_steps": 0, "processes": 1}
    kernel = WhitenedNUTS(model, max_tree_depth=3, step_size=0.2, density=Recorded)
    together = run_chains(kernel, (x, y), num_chains=3, **options)
    assert max(counts) == 3 and counts.count(3) > len(counts) / 2
    for chain in range(3):
        alone = run_chains(kernel, (x, y), num_chains=1, seed=1000 * chain, **options)
        for name, values in together.draws.items():
            torch.testing.assert_close(alone.draws[name][0], values[chain], rtol=1e-6, atol=1e-8)
    assert (together.stats["n_steps"] > 1).all()
    assert len(set(together.stats["energy"].flatten())) == 9  # every chain has random numbers of its own


def test_a_gradient_that_cannot_be_had_together_is_had_alone():
    x, y = regression(9)
    density = Recorded(whitened(with_noise_prior(x)), (x, y), {})
    sound = density.vector(density.unconstrained_start())
    broken = torch.full_like(sound, math.nan)
    for _ in range(2):
        values, gradients = density.slopes(torch.stack([sound, broken, sound + 0.1]))
        assert values.isfinite().tolist() == [True, False, True] and values[1] == -math.inf
        assert torch.equal(gradients[1], torch.zeros_like(sound))
    reference = WhitenedDensity.slopes(density, torch.stack([sound, sound + 0.1]))
    torch.testing.assert_close(values[[0, 2]], reference[0])
    torch.testing.assert_close(gradients[[0, 2]], reference[1])
    fewer = density.slopes(sound[None])  # filled up to the program of three
    torch.testing.assert_close(fewer[0], reference[0][:1])


def test_slopes_are_those_of_the_potential():
    x, y = regression(7)
    density = WhitenedDensity(whitened(with_noise_prior(x)), (x, y), {})
    start = density.unconstrained_start()
    vector = density.vector(start)
    assert all(torch.equal(value, start[name]) for name, value in density.params(vector).items())
    values, gradients = density.slopes(vector[None])
    assert values[0].item() == pytest.approx(-density.potential(start).item())
    for number in (0, 5, len(vector) - 1):
        move = torch.zeros_like(vector)
        move[number] = 1e-5
        ends = [density.potential(density.params(vector + sign * move)).item() for sign in (1, -1)]
        assert gradients[0, number].item() == pytest.approx(-(ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-6)


def simplex(x, y=None):
    """Weights of two functions with a Dirichlet prior, and a normal target."""
    weights = pyro.sample("weights", dist.Dirichlet(torch.tensor([2.0, 3.0, 5.0])))
    f = pyro.sample("f", GaussianProcess(RBF(), num_outputs=3)(x))
    return pyro.sample("y", dist.Normal(f.sum(-1) + weights[0], 1e4).to_event(1), obs=y)


def test_a_site_whose_unconstrained_space_is_smaller_has_its_prior():
    """The target says nothing here, so that draws are those of the prior."""
    x, y = regression(3)
    kernel = WhitenedNUTS(simplex, density=Recorded)
    result = run_chains(kernel, (x, y), num_samples=600, warmup_steps=100, num_chains=1)
    weights = result.flat["weights"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(600))
    torch.testing.assert_close(weights.mean(0), torch.tensor([0.2, 0.3, 0.5]), rtol=0, atol=0.04)
    assert abs(weights[:, 2].var().item() - 0.5 * 0.5 / 11) < 0.006
    assert (result.flat["f_whitened"].var(0) - 1).abs().max() < 0.3


def test_float32_is_sampled_in_float32():
    x, y = (part.float() for part in regression(8))
    model = TwoSites(Gaussian(variance=0.1)).requires_grad_(False).float()
    kernel = WhitenedNUTS(model, density=Recorded)
    result = run_chains(kernel, (x, y), num_samples=300, warmup_steps=100, num_chains=1)
    assert result.draws["f_whitened"].dtype == torch.float32
    prior = model.double().gp(x.double())
    f = prior.unwhiten(result.flat["f_whitened"].double())[..., 0]
    mean, sd = posterior(prior, y.double(), 0.1)
    assert ((f.mean(0) - mean).abs() / sd).max() < 0.3


def test_pyro_s_own_class_runs_it():
    x, y = regression(8)
    model = TwoSites(Gaussian(variance=0.1)).requires_grad_(False)
    kernel = WhitenedNUTS(model)
    sampler = MCMC(kernel, num_samples=200, warmup_steps=60, disable_progbar=True)
    torch.manual_seed(0)
    sampler.run(x, y)
    f = model.gp(x).unwhiten(sampler.get_samples()["f_whitened"])[..., 0]
    mean, sd = posterior(model.gp(x), y, 0.1)
    assert ((f.mean(0) - mean).abs() / sd).max() < 0.3
    figures = sampler.diagnostics()
    assert figures["divergences"] == {"chain 0": []} and 0.6 < figures["acceptance rate"]["chain 0"] < 1


def test_draws_of_a_chain_do_not_depend_on_what_others_draw():
    x, y = regression(8)
    drawn = []
    for noise in (0, 5):
        kernel = WhitenedNUTS(TwoSites(Gaussian()).requires_grad_(False), max_tree_depth=3)
        torch.manual_seed(0)
        kernel.setup(3, x, y)
        params = kernel.initial_params
        for _ in range(6):
            torch.randn(noise)
            params = kernel.sample(params)
        drawn.append(params["f_whitened"])
    assert torch.equal(*drawn)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tree_depth": 0}, "max_tree_depth is at least 1, got 0"),
        ({"target_accept_prob": 1.0}, "target_accept_prob is between 0 and 1, got 1.0"),
        ({"step_size": 0.0}, "step_size is positive and finite, got 0.0"),
    ],
)
def test_options_without_sense_are_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        WhitenedNUTS(OneLayer(), **options)


def test_a_draw_before_the_setup_is_one_sentence():
    with pytest.raises(ValueError, match="the kernel has no data yet"):
        WhitenedNUTS(OneLayer()).sample({})


def two_types(x, y=None):
    """A narrow site of twice the precision, far from zero, behind one of the default precision."""
    first = pyro.sample("first", dist.Normal(torch.zeros((), dtype=torch.float32), 1.0))
    second = pyro.sample("second", dist.Normal(torch.tensor(1e6, dtype=torch.float64), 0.01))
    f = pyro.sample("f", GaussianProcess(RBF())(x))
    return pyro.sample("y", dist.Normal(f[..., 0] + 0 * first + 0 * second, 1.0).to_event(1), obs=y)


def test_sites_of_several_types_have_the_precision_of_each():
    x, y = regression(5)
    result = run_chains(WhitenedNUTS(two_types), (x, y), num_samples=300, warmup_steps=100, num_chains=1)
    assert result.draws["first"].dtype == torch.float32 and result.draws["second"].dtype == torch.float64
    assert result.draws["second"].std().item() == pytest.approx(0.01, rel=0.2)
    assert result.draws["first"].std().item() == pytest.approx(1.0, rel=0.2)


def test_a_start_without_a_density_is_one_sentence():
    """What a start gives is not known before the first draw."""
    x, y = regression(6)

    def nowhere(density):
        return {name: torch.full_like(value, math.inf) for name, value in density.unconstrained_start().items()}

    kernel = WhitenedNUTS(with_noise_prior(x), start=nowhere)
    with pytest.raises(
        ValueError, match="is not finite where the chain starts: check the data for NaN, .* or give another start"
    ):
        run_chains(kernel, (x, y), num_samples=1, warmup_steps=1, num_chains=1)


def test_first_points_of_other_sites_are_one_sentence():
    x, y = regression(6)
    kernel = WhitenedNUTS(with_noise_prior(x))
    kernel.initial_params = {"h_whitened": torch.zeros(6, 2), "other": torch.zeros(())}
    with pytest.raises(ValueError, match="it lacks .'likelihood.variance'. and also has .'other'."):
        kernel.setup(1, x, y)


def test_no_gradient_is_needed_around_a_run():
    x, y = regression(6)
    with torch.no_grad():
        result = run_chains(
            WhitenedNUTS(with_noise_prior(x), max_tree_depth=2), (x, y), num_samples=2, warmup_steps=1, num_chains=1
        )
    assert len(result.flat["h_whitened"].unique()) > 12


def test_time_is_shared_by_the_chains_that_run(tmp_path, monkeypatch):
    """One chain has more to do than the others: what it does alone is its own time."""
    x, y = regression(6)
    kernel = WhitenedNUTS(with_noise_prior(x), max_tree_depth=2, step_size=0.1, density=Recorded)
    run_chains(kernel, (x, y), num_samples=6, warmup_steps=0, num_chains=3, processes=1, folder=tmp_path)
    (tmp_path / "chain-2.safetensors").unlink()
    original = WhitenedNUTS.slopes

    def slow(self, positions):
        time.sleep(0.02)
        return original(self, positions)

    monkeypatch.setattr(WhitenedNUTS, "slopes", slow)
    before = sum(read_state(tmp_path / f"chain-{number}.safetensors")["seconds"] for number in (0, 1))
    result = run_chains(kernel, (x, y), num_samples=8, warmup_steps=0, num_chains=3, processes=1, folder=tmp_path)
    assert result.sampling_seconds - before > 0.85 * result.seconds - 0.3
