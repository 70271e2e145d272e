"""Likelihoods of classes with a function for each class, beside brute force."""

import numpy as np
import pyro
import pytest
import torch
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    Bernoulli,
    DeepGP,
    GammaDivergence,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    Ordinal,
    PredictiveLogLikelihood,
    RobustMax,
    Softmax,
    Variational,
    fit,
    predict,
    scores,
)
from pyro_dgp.internal import win_probability as win_probability_module
from pyro_dgp.internal.gumbel_maximum import (
    _EXACT,
    _log_below_on_lattice,
    class_log_probs,
    expected_log_sum_exp,
)
from pyro_dgp.internal.quadrature import gauss_hermite_product
from pyro_dgp.internal.win_probability import equal_steps, pieces, win_probabilities, win_probability
from pyro_dgp.likelihoods.moments import Moments

CLASSES = 3


def moments(rows=4, scale=1.0):
    return Moments(torch.randn(rows, CLASSES), scale**2 * (0.1 + torch.rand(rows, CLASSES)))


def on_a_grid(f, log_density):
    """``E log_density(f)`` and ``log E exp(log_density(f))`` by a dense grid, for a density that is smooth in f."""
    nodes, log_weights = gauss_hermite_product(40, CLASSES)
    at = f.mean + f.variance.sqrt() * nodes[:, None]
    terms = log_density(at)
    return log_weights.exp() @ terms, torch.logsumexp(log_weights[:, None] + terms, 0)


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_softmax_against_a_grid(scale):
    f, conditional = moments(scale=scale), Softmax(CLASSES).conditional()
    for c in range(CLASSES):
        y = torch.full((4,), c)
        expected, predictive = on_a_grid(f, lambda at, c=c: torch.log_softmax(at, -1)[..., c])
        torch.testing.assert_close(conditional.expected_log_prob(y, f), expected, rtol=0, atol=2e-8)
        torch.testing.assert_close(conditional.predictive_log_prob(y, f), predictive, rtol=0, atol=2e-8)


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 4.0, 20.0])
def test_class_probabilities_of_the_softmax_sum_to_one(scale):
    mean, scales = 3 * torch.randn(50, 7), scale * torch.rand(50, 7)
    assert float((class_log_probs(mean, scales).exp().sum(-1) - 1).abs().max()) < 2e-8


def test_the_log_normaliser_against_draws_and_without_variance():
    mean, scale = 2 * torch.randn(6, 5), 4 * torch.rand(6, 5)
    draws = torch.logsumexp(mean + scale * torch.randn(100_000, 6, 5), -1)
    error = (draws.mean(0) - expected_log_sum_exp(mean, scale)).abs() / (draws.std(0) / len(draws) ** 0.5)
    assert float(error.max()) < 4.5
    torch.testing.assert_close(expected_log_sum_exp(mean, 0 * scale), torch.logsumexp(mean, -1), rtol=0, atol=2e-8)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-9), (torch.float32, 5e-5)])
def test_the_log_normaliser_of_one_function_is_its_mean(dtype, error):
    mean = torch.randn(200, 1, dtype=dtype).requires_grad_()
    scale = torch.logspace(-3, 1, 200, dtype=dtype)[:, None].requires_grad_()
    value = expected_log_sum_exp(mean, scale)
    torch.testing.assert_close(value, mean.squeeze(-1), rtol=0, atol=error)
    slopes = torch.autograd.grad(value.sum(), (mean, scale))
    for slope, exact in zip(slopes, (1.0, 0.0), strict=True):
        torch.testing.assert_close(slope, torch.full_like(slope, exact), rtol=0, atol=20 * error)


def test_distribution_functions_on_a_lattice_against_a_dense_grid():
    mean, scale = 3 * torch.randn(6, 5), torch.exp(3.5 * torch.rand(6, 5) - 2)  # 0.14 to 4.5: narrow and wide ones
    mean.requires_grad_(), scale.requires_grad_()
    t, z = 0.45 * torch.arange(90.0), torch.linspace(-12, 12, 8001)
    density = torch.softmax(-0.5 * z.square(), -1)
    f = mean.unsqueeze(-1) + scale.unsqueeze(-1) * z
    exact = torch.stack([torch.exp(-torch.exp(f - each)) @ density for each in t], -1)
    found = _log_below_on_lattice(mean, scale, t, _EXACT).exp()
    wide = scale >= _EXACT.narrowest
    assert 0 < int(wide.sum()) < wide.numel()
    torch.testing.assert_close(found[wide], exact[wide], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[~wide], exact[~wide], rtol=0, atol=1e-6)
    ours, theirs = (torch.autograd.grad(each[wide].square().sum(), (mean, scale)) for each in (found, exact))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("function", [expected_log_sum_exp, class_log_probs])
def test_gradients_of_wide_functions_in_single_precision_are_numbers(function):
    mean = (3 * torch.randn(12, 4, dtype=torch.float32)).requires_grad_()
    scale = (torch.tensor([2.0, 10.0, 50.0]).repeat(4)[:, None] * torch.rand(12, 4)).float().requires_grad_()
    value = function(mean, scale)
    assert value.isfinite().all()
    exact = function(mean.double(), scale.double())
    torch.testing.assert_close(value.double(), exact, rtol=1e-4, atol=1e-3)
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(value.sum(), (mean, scale)))


def test_wide_functions_are_computed_part_by_part_to_the_same_gradients(monkeypatch):
    mean, scale = torch.randn(3, 4).requires_grad_(), (3 * torch.rand(3, 4)).requires_grad_()
    whole = class_log_probs(mean, scale)
    slopes, held = torch.autograd.grad(whole.logsumexp(0).sum(), (mean, scale)), []
    monkeypatch.setattr("pyro_dgp.internal.gumbel_maximum._MOST", 5000)

    def pack(tensor):
        held.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        parts = class_log_probs(mean, scale)
    assert max(held) <= 5000
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)
    for found, expected in zip(torch.autograd.grad(parts.logsumexp(0).sum(), (mean, scale)), slopes, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_functions_too_wide_for_a_lattice_are_integrated_by_nodes(monkeypatch):
    mean, scale, sizes = torch.randn(3, 4), torch.tensor([0.1, 20.0, 60.0])[:, None].expand(3, 4), []
    expected = expected_log_sum_exp(mean, scale)
    monkeypatch.setattr("pyro_dgp.internal.gumbel_maximum._on_lattice", lambda mean, *_: sizes.append(len(mean)))
    monkeypatch.setattr("pyro_dgp.internal.gumbel_maximum._MOST", 1000)  # a lattice of a few points alone
    torch.testing.assert_close(expected_log_sum_exp(mean, scale), expected, rtol=0, atol=1e-7)
    assert not sizes


def test_parts_of_rows_give_what_all_rows_give(monkeypatch):
    mean, scale = torch.randn(30, 4), torch.rand(30, 4)
    whole = class_log_probs(mean, scale), expected_log_sum_exp(mean, scale)
    monkeypatch.setattr("pyro_dgp.internal.gumbel_maximum._MOST", 30_000)
    torch.testing.assert_close(class_log_probs(mean, scale), whole[0])
    torch.testing.assert_close(expected_log_sum_exp(mean, scale), whole[1])


def test_functions_too_wide_for_softmax_are_refused_before_memory_is_asked_for():
    """Kernels that grow with their inputs, at inputs that are not standardised, give such functions."""
    with pytest.raises(
        ValueError, match=r"has a standard deviation of 1e\+06 at some row, too large .*: standardise the inputs"
    ):
        class_log_probs(torch.tensor([[0.0, 1.0]]), torch.tensor([[1e6, 1.0]]))


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0, 9.0])
def test_win_probabilities_sum_to_one_whatever_the_ratio_of_scales(spread):
    mean, scale = 2 * torch.randn(60, 6), torch.exp(spread * (torch.rand(60, 6) - 0.5))
    won = torch.stack([win_probability(mean, scale, torch.full((60,), c)) for c in range(6)], -1)
    assert float((won.sum(-1) - 1).abs().max()) < 1e-8 and float(won.min()) >= 0


def test_both_rules_of_win_probabilities_agree_and_equal_a_closed_form_for_two():
    own, own_scale = torch.randn(40, 1), 0.5 + torch.rand(40, 1)
    mean, scale = torch.randn(40, 4), 0.3 + torch.rand(40, 4)
    smooth, exact = equal_steps(own, own_scale, mean, scale, step=0.05), pieces(own, own_scale, mean, scale)
    torch.testing.assert_close(smooth, exact, rtol=0, atol=1e-9)
    for factor in (1.0, 1e-5):  # by either rule
        two, scales = torch.cat([own, mean[:, :1]], -1), torch.cat([own_scale, factor * scale[:, :1]], -1)
        z = (two[:, 0] - two[:, 1]) / scales.square().sum(-1).sqrt()
        won = win_probability(two, scales, torch.zeros(40, dtype=torch.long))
        torch.testing.assert_close(won, torch.special.ndtr(z), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0, 9.0])
def test_nodes_that_classes_share_give_what_each_class_gives_alone(spread, dtype, monkeypatch):
    monkeypatch.setattr(win_probability_module, "ROWS_OF_SHARED", 7)
    mean, scale = 2 * torch.randn(3, 20, 6), torch.exp(spread * (torch.rand(3, 20, 6) - 0.5))
    mean[0, 0, 1] = torch.nan
    exact = mean.clone().requires_grad_(), scale.clone().requires_grad_()
    given = tuple(each.detach().to(dtype).requires_grad_() for each in exact)
    alone = torch.stack([win_probability(*exact, torch.tensor(c)) for c in range(6)], -1)
    shared = win_probabilities(*given)
    close = {"rtol": 0, "atol": 1e-9 if dtype == torch.float64 else 2e-5, "equal_nan": True, "check_dtype": False}
    torch.testing.assert_close(shared, alone, **close)
    weights = torch.randn(3, 20, 6)
    slopes = [torch.autograd.grad((weights * won)[1:].sum(), of) for won, of in ((shared, given), (alone, exact))]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one[1:], other[1:], **close | {"atol": float(close["atol"]) * 1e2})


def test_probabilities_of_all_classes_take_few_functions(monkeypatch):
    """Ten classes took 90 functions at each node, 65 s for a thousand rows of a hundred components."""
    seen = []

    def counted(z):
        seen.append(z.numel())
        return below(z)

    below = win_probability_module._below
    monkeypatch.setattr(win_probability_module, "_below", counted)
    won = win_probabilities(torch.randn(50, 10), 0.5 + torch.rand(50, 10))
    assert sum(seen) < 50 * 10 * 200
    torch.testing.assert_close(won.sum(-1), torch.ones(50), rtol=0, atol=1e-9)


def test_a_row_with_steep_functions_leaves_the_other_rows_to_the_cheap_rule(monkeypatch):
    mean, scale = torch.randn(2, 30, 4), 0.5 + torch.rand(2, 30, 4)
    scale[1, 7, 2] = 1e-3
    which, seen = torch.zeros(2, 30, dtype=torch.long), []

    def watched(own, *rest):
        seen.append(own.numel())
        return pieces(own, *rest)

    monkeypatch.setattr(win_probability_module, "pieces", watched)
    together = mean.requires_grad_(), scale.requires_grad_()
    won = win_probability(*together, which)
    assert seen == [1]
    alone = torch.stack(
        [
            torch.cat([win_probability(m[None], s[None], c[None]) for m, s, c in zip(*rows, strict=True)])
            for rows in zip(mean, scale, which, strict=True)
        ]
    )
    torch.testing.assert_close(won, alone, rtol=0, atol=1e-9)
    weights = torch.randn(2, 30)
    for one, other in zip(
        torch.autograd.grad((weights * won).sum(), together),
        torch.autograd.grad((weights * alone).sum(), together),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_a_row_that_is_not_a_number_leaves_the_other_rows_theirs():
    mean, scale = torch.zeros(2, 3), torch.ones(2, 3)
    scale[1, 0] = torch.nan
    won = win_probability(mean, scale, torch.zeros(2, dtype=torch.long))
    assert torch.allclose(won[0], torch.tensor(1 / 3)) and won[1].isnan()
    assert win_probability(mean[1:], scale[1:], torch.zeros(1, dtype=torch.long)).isnan()


def test_robust_max_against_draws():
    f, epsilon = moments(5), 0.01
    conditional = RobustMax(CLASSES, epsilon).conditional()
    draws = f.mean + f.variance.sqrt() * torch.randn(200_000, 5, CLASSES)
    log_probs = conditional.given(draws).base_dist.logits
    for c in range(CLASSES):
        y = torch.full((5,), float(c))
        for value, drawn in (
            (conditional.expected_log_prob(y, f), log_probs[..., c]),
            (conditional.predictive_log_prob(y, f).exp(), log_probs[..., c].exp()),
            (conditional.log_expected_power(y, f, 0.5).exp(), (0.5 * log_probs[..., c]).exp()),
        ):
            assert float(((value - drawn.mean(0)).abs() / (drawn.std(0) / 200_000**0.5)).max()) < 4.5
    torch.testing.assert_close(conditional.components(f).probs.sum(-1), torch.ones(5))


def test_the_gamma_score_of_robust_max_has_a_constant_integral():
    f, gamma = moments(5), 1.2
    conditional = RobustMax(CLASSES, 0.05).conditional()
    by_nodes = torch.logsumexp(gamma * conditional.given(f.mean).base_dist.logits, -1)
    torch.testing.assert_close(conditional.log_power_integral(f, gamma).expand(5), by_nodes)
    y = torch.zeros(5)
    score = conditional.log_expected_power(y, f, gamma - 1) - (gamma - 1) / gamma * by_nodes
    torch.testing.assert_close(conditional.log_expected_gamma_score(y, f, gamma), score)


@pytest.mark.parametrize("make", [RobustMax, Softmax])
def test_gradients(make):
    conditional, y = make(CLASSES).conditional(), torch.tensor([0.0, 1.0, 2.0])
    mean, raw = torch.randn(3, CLASSES, requires_grad=True), torch.rand(3, CLASSES, requires_grad=True)

    def call(mean, raw):
        f = Moments(mean, raw + 0.1)
        return conditional.expected_log_prob(y, f), conditional.predictive_log_prob(y, f)

    assert torch.autograd.gradcheck(call, (mean, raw))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [RobustMax, Softmax])
def test_certain_functions_leave_finite_gradients(make, dtype):
    mean = torch.tensor([[40.0, -40.0, 0.0]], dtype=dtype, requires_grad=True)
    variance = torch.full((1, 3), 1e-12, dtype=dtype, requires_grad=True)
    conditional = make(CLASSES).conditional()
    for c in range(CLASSES):
        y = torch.tensor([float(c)], dtype=dtype)
        value = conditional.expected_log_prob(y, Moments(mean, variance)).sum()
        assert bool(torch.isfinite(value)) and all(
            bool(torch.isfinite(each).all()) for each in torch.autograd.grad(value, (mean, variance))
        )


def classes_of(rows=90):
    x = torch.linspace(-1, 1, rows)[:, None]
    return x, (1 + torch.sin(5 * x[:, 0])).mul(1.49).long()  # 0, 1, 2


@pytest.mark.slow
@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("make", [RobustMax, Softmax])
@pytest.mark.parametrize("loss", [ELBO, PredictiveLogLikelihood])
def test_classes_are_learned_from_integer_labels(make, loss):
    x, y = classes_of(45)
    model = DeepGP(x, layers=1, likelihood=make(CLASSES), outputs=CLASSES)
    guide = Variational(model, InducingPoints(12), MonteCarlo(1))
    guide.initialize(x, y)
    fit(loss(len(x))(model, guide), x, y, steps=200, learning_rate=0.05)
    prediction = predict(guide, x)
    assert prediction.batch_shape == (45,) and prediction.event_shape == ()
    assert prediction.probs.shape == (45, CLASSES)
    figures = scores(prediction, y)
    assert figures["accuracy"] > 0.93 and figures["nll"] < 0.35
    with pytest.raises(ValueError, match=r"holds values other than 0, ..., 2: encode the classes so"):
        loss(len(x))(model, guide)(x, y + 1)


@pytest.mark.usefixtures("local")
def test_integer_labels_give_the_loss_of_real_ones():
    x, y = classes_of(30)
    for likelihood, labels, outputs in ((Bernoulli(), y.clamp(max=1), 1), (Ordinal(3), y, 1), (Softmax(3), y, 3)):
        model = DeepGP(x, layers=1, likelihood=likelihood, outputs=outputs)
        guide = Variational(model, InducingPoints(6), MonteCarlo(1))
        guide.initialize(x, labels)
        loss = ELBO()(model, guide)
        assert torch.equal(loss(x, labels), loss(x, labels.double()))


@pytest.mark.usefixtures("local")
def test_two_sites_take_classes_too():
    class Sites(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp, self.likelihood = GaussianProcess(RBF(), num_outputs=CLASSES), Softmax(CLASSES)
            self.gp.kernel.lengthscale = 0.3

        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", self.likelihood.given(f), obs=y)

    x, y = classes_of(30)
    guide = Variational(Sites(), InducingPoints(8), MonteCarlo(20))
    guide.initialize(x, y)
    fit(ELBO(30)(guide.model, guide), x, y, steps=200, learning_rate=0.05)
    assert float(predict(guide, x).probs.argmax(-1).eq(y).double().mean()) > 0.9


def test_what_does_not_fit_is_said():
    x, y = classes_of(20)
    with pytest.raises(
        ValueError,
        match=r"Softmax\(4\) stands over a Gaussian process of 3 outputs: give it one for each class, num_outputs=4",
    ):
        Softmax(4)(GaussianProcess(RBF(), num_outputs=3)(x))
    model = DeepGP(x, layers=1, likelihood=Softmax(3), outputs=3)
    guide = Variational(model, InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match="softmax to the power .* take RobustMax"):
        GammaDivergence(20)(model, guide)(x, y)
    with pytest.raises(ValueError, match="epsilon lies between"):
        RobustMax(3, epsilon=0.0)


def log_probs_at(likelihood, f):
    return likelihood.given(torch.tensor([[f]])).base_dist.logits.detach()


def test_ordinal_probabilities_are_accurate_in_the_tails():
    likelihood = Ordinal(4)
    likelihood.cutpoints = torch.tensor([-1.0, 0.5, 0.6])
    for f in (-30.0, 0.0, 30.0):
        log_probs = log_probs_at(likelihood, f)
        assert bool(torch.isfinite(log_probs).all()) and float(torch.logsumexp(log_probs, -1)) == pytest.approx(
            0, abs=1e-12
        )
    top = float(log_probs_at(likelihood, -30.0)[0, 3])
    assert top == pytest.approx(float(torch.special.log_ndtr(torch.tensor(-30.6))), rel=1e-12)
    start = Ordinal(5).conditional().components(Moments(torch.zeros(1, 1), torch.ones(1, 1)))
    torch.testing.assert_close(start.probs, torch.full((1, 5), 0.2))


@pytest.mark.usefixtures("unannotated")
@pytest.mark.parametrize("likelihood", [Softmax, RobustMax, Ordinal])
def test_a_number_of_classes_may_be_an_integer_of_numpy(likelihood):
    assert likelihood(np.int64(3)).classes == 3


@pytest.mark.usefixtures("unannotated")
@pytest.mark.parametrize("classes", [1, 2.5, "3"])
@pytest.mark.parametrize("likelihood", [Softmax, RobustMax, Ordinal])
def test_a_number_of_classes_is_a_whole_one(likelihood, classes):
    with pytest.raises(ValueError, match=f"2 or more classes, got {classes!r}"):
        likelihood(classes)
