"""Further arguments of a model: rows that training had and a prediction leaves out, and tensors that go whole."""

import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    PosteriorDraws,
    StochasticGradientHMC,
    Stream,
    Variational,
    WhitenedNUTS,
    fit,
    fit_lbfgs,
    fit_stream,
    predict,
    run_chains,
)

N = 8


class Counts(PyroModule):
    """Counts with an exposure, at a plain site, and a second target beside the first."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None, exposure=None, other=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        rate = f.exp() if exposure is None else f.exp() * exposure
        pyro.sample("other", dist.Normal(f, 1.0).to_event(1), obs=None if other is None else other[:, 0])
        return pyro.sample("y", dist.Poisson(rate).to_event(1), obs=y)


def data():
    return torch.linspace(-1, 1, N)[:, None], torch.ones(N), torch.full((N,), 3.0), torch.zeros(N, 2)


def of_a_guide():
    x, y, exposure, other = data()
    guide = Variational(Counts(), InducingPoints(4))
    guide.initialize(x, y, exposure, other=other)
    return guide


def of_a_loaded_guide():
    guide = Variational(Counts(), InducingPoints(4))
    guide.load_state_dict(of_a_guide().state_dict())
    return guide


def of_a_sampler():
    return run_chains(WhitenedNUTS(Counts()), data(), num_samples=2, warmup_steps=1, num_chains=1)


def of_draws():
    chains = of_a_sampler()
    x, y, exposure, other = data()
    return PosteriorDraws(chains.model, chains.flat, (x, y), kwargs={"exposure": exposure, "other": other})


def test_columns_of_one_table_are_told_apart():
    x, y, exposure, _ = data()
    table = torch.cat([x, y[:, None], exposure[:, None]], -1)
    guide = Variational(Counts(), InducingPoints(4))
    guide.initialize(table[:, :1], table[:, 1], table[:, 2])
    with pytest.warns(UserWarning, match="training gave the model 'exposure'"):
        predict(guide, x, site="y")
    guide = Variational(Counts(), InducingPoints(4))
    guide.initialize(table, y, table[:, 2])  # an exposure that is one of the inputs
    with pytest.warns(UserWarning, match="training gave the model 'exposure'"):
        predict(guide, table, site="y")
    guide = Variational(Counts(), InducingPoints(4))
    twice = table[:, :1].expand(N, 2)  # two columns in the place of one
    guide.initialize(twice, table[:, 1], other=table[:, 1:2].expand(N, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is observed is no further argument
        assert predict(guide, twice, site="y").mean.shape == (N,)


@pytest.mark.parametrize("made", [of_a_guide, of_a_loaded_guide, of_a_sampler, of_draws])
def test_a_prediction_without_an_exposure_warns(made):
    fitted, (x, _, exposure, _) = made(), data()
    with pytest.warns(UserWarning, match=r"gave the model 'exposure', .*: pass predict\(fit, x, exposure=") as said:
        predict(fitted, x, site="y")
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        default, tripled = (predict(fitted, x, 4, site="y", exposure=each).mean for each in (None, exposure))
    assert default.shape == tripled.shape == (N,)


class Gathered(Counts):
    """The same counts, with further arguments that the model gathers by name."""

    def forward(self, x, y=None, **further):
        return super().forward(x, y, **further)


class GatheredByPosition(Counts):
    """The same counts, with further arguments that the model gathers by position."""

    def forward(self, x, y=None, *further):
        return super().forward(x, y, *further)


class Held(Counts):
    """The same counts, with an exposure that an argument holds."""

    def forward(self, x, y=None, held=None):
        first = held
        while isinstance(first, list | tuple | dict):
            first = first["exposure"] if isinstance(first, dict) else first[0]
        return super().forward(x, y, None if first is None else torch.as_tensor(first))


def test_what_a_model_gathers_by_name_is_warned_of():
    x, y, exposure, other = data()
    guide = Variational(Gathered(), InducingPoints(4))
    guide.initialize(x, y, exposure=exposure, other=other)
    with pytest.warns(UserWarning, match=r"gave the model 'exposure', .*: pass predict\(fit, x, exposure=") as said:
        predict(guide, x, site="y")
    assert len(said) == 1
    guide = Variational(Gathered(), InducingPoints(4))
    with pytest.raises(ValueError, match="argument 'exposure' of guide.initialize holds NaN"):
        guide.initialize(x, y, exposure=exposure * torch.nan)


def test_what_a_model_gathers_by_position_needs_a_name():
    x, y, exposure, _ = data()
    guide = Variational(GatheredByPosition(), InducingPoints(4))
    guide.initialize(x, y, exposure)
    with pytest.warns(UserWarning, match=r"gave the model 'further\[0\]', .*: let the model name it") as said:
        predict(guide, x, site="y")
    assert len(said) == 1


@pytest.mark.parametrize("by_name", [False, True])
def test_targets_that_a_model_gathers_are_no_further_argument(by_name):
    class Logarithms(Counts):
        """Observes a function of its targets."""

        def forward(self, x, *targets, **named):
            y = next(iter((*targets, *named.values())), None)
            f = pyro.sample("f", self.gp(x))[..., 0]
            return pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=None if y is None else (y + 1).log())

    x, y, *_ = data()
    guide = Variational(Logarithms(), InducingPoints(4))
    guide.initialize(x, y=y) if by_name else guide.initialize(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert predict(guide, x, site="y").mean.shape == (N,)


@pytest.mark.parametrize(
    "hold",
    [
        lambda exposure: [exposure],
        lambda exposure: {"exposure": (exposure, 1)},
        lambda exposure: exposure.numpy(),
        lambda exposure: exposure.expand(N).numpy().astype("float32"),
    ],
)
def test_an_exposure_that_an_argument_holds_is_warned_of(hold):
    x, y, exposure, _ = data()
    guide = Variational(Held(), InducingPoints(4))
    guide.initialize(x, y, hold(exposure))
    with pytest.warns(UserWarning, match=r"gave the model 'held', .*: pass predict\(fit, x, held="):
        predict(guide, x, site="y")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert predict(guide, x, 4, site="y", held=hold(exposure)).mean.shape == (N,)


class Offsets(PyroModule):
    """A group of each row, and a table with an offset for each group."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None, group=None, table=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + table[group], 0.1).to_event(1), obs=y)


@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize("groups", [[0, 0, 0], [2, 1, 0]])
def test_a_table_that_training_passed_whole_stays_whole_in_a_prediction_of_as_many_rows(groups, load):
    x, y, _, _ = data()
    table, given = torch.tensor([0.0, 100.0, 200.0]), {"group": torch.arange(N) % 3}
    guide = Variational(Offsets(), InducingPoints(4))
    guide.initialize(x, y, **given, table=table)
    if load:
        state = guide.state_dict()
        guide = Variational(Offsets(), InducingPoints(4))
        guide.load_state_dict(state)
    draws = PosteriorDraws(Offsets(), {"f_whitened": torch.zeros(2, N, 1)}, (x, y), kwargs={**given, "table": table})
    for fitted in (guide, draws):
        for batch_size in (2, 3):
            prediction = predict(fitted, x[:3], group=torch.tensor(groups), table=table, batch_size=batch_size)
            assert (prediction.mean - table[groups]).abs().max() < 5


def test_a_numpy_array_of_rows_is_refused_where_a_batch_takes_some():
    x, y, exposure, _ = data()
    array = exposure.numpy()
    guide = Variational(Counts(), InducingPoints(4))
    guide.initialize(x, y, exposure)
    objective = ELBO(num_data=N)(guide.model, guide)
    said = "the argument 'exposure' is a NumPy array with an entry for each of the 8 rows, .*: pass a tensor, torch.as_tensor"
    with pytest.raises(TypeError, match=said):
        fit(objective, x, y, steps=1, batch_size=2, exposure=array)
    with pytest.raises(TypeError, match=said):
        predict(guide, x, site="y", exposure=array)


class HalfOfTheRows(PyroModule):
    """Each step takes half of the rows of the call."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("rows", len(x), subsample_size=len(x) // 2) as rows:
            return pyro.sample("y", dist.Normal(f[..., rows], 0.1), obs=None if y is None else y[rows])


def test_a_plate_that_takes_none_of_one_row_is_explained():
    x, y, _, _ = data()
    guide = Variational(HalfOfTheRows(), InducingPoints(4))
    guide.initialize(x, y)
    with pytest.raises(
        ValueError, match=r"a plate takes no row of one: .*, as in subsample_size=n if self.training else"
    ):
        predict(guide, x)


def test_a_fit_without_what_initialize_got_warns():
    x, y, exposure, other = data()
    guide = of_a_guide()
    objective = ELBO(num_data=N)(guide.model, guide)
    with pytest.warns(
        UserWarning, match=r"initialize gave the model 'exposure', and this fit does not: pass fit"
    ) as said:
        fit(objective, x, y, steps=1)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fit(objective, x, y, steps=1, exposure=exposure, other=other)
    assert len(result.losses) == 1


def test_other_ways_to_train_without_what_initialize_got_warn():
    x, y, *_ = data()
    guide = of_a_guide()
    with pytest.warns(UserWarning, match=r"gave the model 'exposure', and this fit does not: pass fit_lbfgs\(") as said:
        fit_lbfgs(Sums(guide), x, y, steps=1)
    assert len(said) == 1
    guide = Variational(Counts(), InducingPoints(4, "delta"), MonteCarlo(1))
    guide.initialize(*data())
    with pytest.warns(UserWarning, match=r"gave the model 'exposure', and this fit does not: pass run\(guide") as said:
        StochasticGradientHMC(burn_in=1, thin=1).run(guide, x, y, num_samples=1)
    assert len(said) == 1


class Sums(torch.nn.Module):
    """An objective without random numbers, which has a guide."""

    def __init__(self, guide):
        super().__init__()
        self.guide = guide

    def forward(self, x, y, exposure=None, other=None):
        return sum(each.square().sum() for each in self.guide.parameters() if each.requires_grad)


class Rows(Stream):
    """The rows of the data, with so many of the arguments after the targets."""

    def __init__(self, parts):
        super().__init__(torch.get_default_dtype())
        self.parts, self.sizes = parts, [N]

    def read(self, block):
        return tuple(each.numpy() for each in data()[: 2 + self.parts])


def test_a_stream_without_what_initialize_got_warns():
    guide = of_a_guide()
    objective = ELBO(num_data=N)(guide.model, guide)
    said = (
        "gave the model 'exposure', and the batches of this stream hold no row arguments .*: let the stream read rows="
    )
    with pytest.warns(UserWarning, match=said) as found:
        fit_stream(objective, Rows(0), steps=2)
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(fit_stream(objective, Rows(2), steps=2).losses) == 2


def test_rows_beside_a_stream_are_refused():
    _, _, exposure, _ = data()
    guide = of_a_guide()
    objective = ELBO(num_data=N)(guide.model, guide)
    for value, said in (
        (exposure, "has an entry for each row"),
        (exposure[:3], "has 3 entries, and had one for each row"),
    ):
        with pytest.raises(ValueError, match=rf"the argument 'exposure' {said}.* random order: .*rows=\[file\]"):
            fit_stream(objective, Rows(0), steps=1, exposure=value)
    for default in (None, torch.tensor(1.0), torch.ones(1)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(fit_stream(objective, Rows(0), steps=1, exposure=default).losses) == 1


def test_rows_of_another_number_are_refused_by_name():
    x, y, exposure, other = data()
    guide = of_a_guide()
    said = r"the argument 'exposure' has shape \(3,\), and there are 8 rows: give it an entry for each row"
    with pytest.raises(ValueError, match=said):
        fit(ELBO(num_data=N)(guide.model, guide), x, y, steps=1, exposure=exposure[:3], other=other)
    for fitted in (guide, of_draws()):
        with pytest.raises(ValueError, match=said):
            predict(fitted, x, site="y", exposure=exposure[:3])
    assert predict(guide, x, 4, site="y", exposure=torch.tensor([2.0])).mean.shape == (N,)  # one for all
