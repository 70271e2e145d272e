"""Two processes that share the rows of each step train to the numbers of one process."""

import re
import shutil
import warnings
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroSample
from torch import nn

from pyro_dgp import (
    ELBO,
    AmortizedInducingPoints,
    ApproximateEP,
    Checkpoints,
    CompiledObjective,
    DeepGP,
    DeepKernel,
    Distributed,
    GammaDivergence,
    InducingPoints,
    MomentMatching,
    MonteCarlo,
    NumpyStream,
    PredictiveLogLikelihood,
    SigmaPoints,
    StochasticGradientHMC,
    Validation,
    Variational,
    WithMean,
    fit,
    fit_stream,
    fit_validated,
)
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.internal.row_noise import Part, part_of_rows, row_noise
from pyro_dgp.internal.rows import RowArguments
from pyro_dgp.training.distributed import _require_sum_of_parts

ROWS = 13


def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)
    return x, torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(ROWS, generator=generator, dtype=torch.float64)


def guide_of(family=None, propagation=None, *, layers=2, build=None):
    pyro.set_rng_seed(0)
    x, y = data()
    model = DeepGP(x, layers=layers, width=2, kernel="rbf") if build is None else build(x)
    guide = Variational(model, family or InducingPoints(4), propagation or MonteCarlo(2))
    guide.initialize(x, y)
    return guide


def with_priors(x):
    model = DeepGP(x, layers=2, width=2, kernel="rbf")
    model.top.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.3).expand([2]).to_event(1))
    return model


def with_network(last):
    def build(x):
        return DeepKernel(nn.Sequential(nn.Linear(2, 2, dtype=x.dtype), last), DeepGP(x, layers=1))

    return build


def numbers(guide, losses):
    return torch.cat(
        [torch.tensor(losses), *(p.detach().flatten() for p in nn.ModuleList([guide, guide.model]).parameters())]
    )


def descent(objective, learning_rate):
    """Momentum, for Adam divides a gradient that is rounding alone by its own size."""
    return torch.optim.SGD(objective.parameters(), lr=learning_rate, momentum=0.9)


def trained(loss, guide, *, batch_size=6, **options):
    result = fit(loss(guide.model, guide), *data(), steps=5, batch_size=batch_size, **options)
    return numbers(guide, result.losses)


CARRIED = [MonteCarlo(2), SigmaPoints("qr3", 3), MomentMatching()]
LOSSES = [ELBO(ROWS), PredictiveLogLikelihood(ROWS, 0.2), ApproximateEP(ROWS), GammaDivergence(ROWS)]
#: Family, propagation and loss: all that can be joined.
JOINED = [
    *((InducingPoints(4), propagation, loss) for propagation in CARRIED for loss in LOSSES),
    *((AmortizedInducingPoints(3), propagation, loss) for propagation in CARRIED[:2] for loss in LOSSES[:2]),
    (AmortizedInducingPoints(3), WithMean(MonteCarlo(2)), LOSSES[0]),
]


def by_stream(folder):
    guide, (x, y) = guide_of(), data()
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    stream = NumpyStream(folder / "x.npy", folder / "y.npy", block_rows=4, dtype=x.dtype)
    return numbers(guide, fit_stream(ELBO(ROWS)(guide.model, guide), stream, steps=5, batch_size=5).losses)


def by_validation(report=None):
    guide = guide_of()
    fitted = fit_validated(
        guide,
        lambda beta, rows: PredictiveLogLikelihood(rows, beta),
        *data(),
        steps=6,
        batch_size=4,
        validation=Validation(betas=(0.1, 1.0), share=0.3, checks=3, folds=1),
        report=report,
    )
    return numbers(guide, [fitted.validation_nll, float(fitted.best_step), *fitted.searched.values()])


class FailsAtAStep(PredictiveLogLikelihood):
    """Stops at its fourth step where beta is large, after held-out rows were scored."""

    def differentiable_loss(self, model, guide, *args, **kwargs):
        self.points = getattr(self, "points", set()) | {float(model.top.kernel.lengthscale.sum())}
        if self.beta > 0.5 and len(self.points) > 3:
            raise ValueError("here")
        return super().differentiable_loss(model, guide, *args, **kwargs)


def by_validation_that_fails():
    guide = guide_of()
    fitted = fit_validated(
        guide,
        lambda beta, rows: FailsAtAStep(rows, beta),
        *data(),
        steps=6,
        batch_size=4,
        validation=Validation(betas=(0.1, 1.0), share=0.3, checks=6, folds=1, search=1.0),
    )
    return numbers(guide, [fitted.beta, fitted.validation_nll, float(fitted.best_step), *fitted.searched.values()])


def all_equal(folder):
    """Every joining, with the last step of an epoch on one row, for two processes."""
    for family, propagation, loss in JOINED:
        single = trained(loss, guide_of(family, propagation), optimizer=descent)
        with Distributed():
            assert_same(trained(loss, guide_of(family, propagation), optimizer=descent), single)
    for make in (
        lambda: trained(ELBO(ROWS), guide_of(build=with_priors)),
        lambda: trained(ELBO(ROWS), guide_of(build=with_network(nn.Tanh()))),
        lambda: by_stream(folder),
        by_validation,
        by_validation_that_fails,
    ):
        single = make()
        with Distributed():
            assert_same(make(), single)


def first_process_rules(folder):
    """Start, reports and checkpoints are those of the first process, and a run that was cut off goes on."""
    rank, seen, whole = torch.distributed.get_rank(), [], trained(ELBO(ROWS), guide_of())

    def watch(step, _):
        seen.append(step)
        torch.randn(3)  # changes nothing in training
        if step == 3:
            (own / "cut").mkdir()
            shutil.copy(own / "run-1.safetensors", own / "cut")

    own = folder / f"of-{rank}"  # a folder of its own machine
    with Distributed() as processes, Checkpoints(own, seconds=0):
        guide = guide_of()
        if rank == 1:
            torch.manual_seed(7)
            with torch.no_grad():
                for parameter in guide.parameters():
                    parameter.add_(0.1)
        assert_same(trained(ELBO(ROWS), guide, callback=watch), whole)
    assert processes.is_first == (rank == 0) and seen == ([0, 1, 2, 3, 4] if rank == 0 else [])
    assert own.exists() == (rank == 0)
    seen.clear()
    with Distributed(), Checkpoints(own / "cut"):
        assert_same(trained(ELBO(ROWS), guide_of(), callback=lambda step, _: seen.append(step)), whole)
    assert seen == ([3, 4] if rank == 0 else [])
    with Distributed(), Checkpoints(own), pytest.raises(ValueError, match="has loss ELBO, and this one"):
        trained(PredictiveLogLikelihood(ROWS), guide_of())


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


class Noisy(nn.Module):
    """Draws in training, as dropout does."""

    def forward(self, x):
        return x + 0.01 * torch.randn_like(x) if self.training else x


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(-2, keepdim=True)


class FailsInOne(nn.Module):
    def forward(self, x):
        if torch.distributed.get_rank() == 1 and len(x) == 3:
            raise ArithmeticError("here")
        return x


def refusals():
    """Each is one sentence in every process, and none of them waits."""
    rank = torch.distributed.get_rank()
    x, y = data()
    guide = guide_of()
    batch_norm = guide_of(build=with_network(nn.BatchNorm1d(2)))
    noisy, dropout, centred = (guide_of(build=with_network(last)) for last in (Noisy(), nn.Dropout(0.5), Centred()))
    other = guide_of(InducingPoints(4 + rank))
    with Distributed():
        for message, do in {
            "a step has 1 rows and there are 2 processes: take": lambda: trained(ELBO(ROWS), guide, batch_size=1),
            "num_data=len": lambda: trained(ELBO(), guide, batch_size=ROWS),
            "a parameter of process 1 differs": lambda: trained(ELBO(ROWS), other),
            "the data of process 1 differs": lambda: fit(ELBO(ROWS)(guide.model, guide), x + rank, y, steps=1),
            "the setting steps of process 1": lambda: fit(ELBO(ROWS)(guide.model, guide), x, y, steps=1 + rank),
            "the loss of process 1 differs": lambda: trained(PredictiveLogLikelihood(ROWS, 0.1 + rank), guide),
            "not CompiledObjective": lambda: fit(CompiledObjective(ELBO(ROWS)(guide.model, guide)), x, y, steps=1),
            "BatchNorm1d, whose result depends on": lambda: trained(ELBO(ROWS), batch_norm),
            "such as dropout": lambda: trained(ELBO(ROWS), noisy),
            "looks at other rows": lambda: trained(ELBO(ROWS), centred),
            "dropout, draws": lambda: trained(ELBO(ROWS), dropout),
            "StochasticGradientHMC samples": lambda: StochasticGradientHMC().run(guide, x, y, num_samples=1),
        }.items():
            with pytest.raises(ValueError, match=re.escape(message)):
                do()
        failing = guide_of(build=with_network(FailsInOne()))
        kind, message = (ValueError, "another process") if rank == 0 else (ArithmeticError, "here")
        with pytest.raises(kind, match=message):
            trained(ELBO(ROWS), failing)


def work(rank, folder):
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2, timeout=timedelta(seconds=100)
    )
    own = folder / str(rank)
    own.mkdir()
    all_equal(own)
    first_process_rules(own)
    refusals()
    torch.distributed.destroy_process_group()
    assert not [name for name in names_of_threads() if "gloo" in name]  # it could abort the process at its end


def names_of_threads():
    """Names of the threads of this process, where the system lists them."""
    return [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]


@pytest.mark.slow
def test_two_processes_train_to_the_numbers_of_one(tmp_path):
    torch.multiprocessing.spawn(work, (tmp_path,), nprocs=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_are_centred_are_no_sum_of_parts(dtype):
    x, y = (values.to(dtype) for values in data())
    for last, is_refused in ((Centred(), True), (nn.Tanh(), False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = guide_of(build=with_network(last)).model.to(dtype)
            guide = Variational(model, InducingPoints(4), MonteCarlo(2))
            guide.initialize(x, y)
        objective, rows = ELBO(ROWS)(guide.model, guide), RowArguments((x, y), {})
        refusal = pytest.raises(ValueError, match="looks at other rows") if is_refused else nullcontext()
        with module_local_parameters(objective), refusal:
            _require_sum_of_parts(objective, lambda call: objective(*call[0], **call[1]), rows, x.device)


def test_without_a_process_group_the_scope_says_how_to_make_one():
    with pytest.raises(ValueError, match=re.escape("torchrun --nproc-per-node 2")):
        Distributed()


def test_parts_hold_each_row_once_and_its_own_noise():
    for total, parts in ((7, 2), (2, 3), (9, 4)):
        each = [Part.of(total, number, parts) for number in range(parts)]
        assert sum(part.weight for part in each) == pytest.approx(1)
        counted = [row for part in each if part.weight for row in range(total)[part.rows]]
        assert counted == list(range(total)) and all(len(range(total)[part.rows]) for part in each)
        torch.manual_seed(0)
        whole = row_noise(torch.Size((3, total, 2)), torch.zeros(1))
        for part in each:
            torch.manual_seed(0)
            with part_of_rows(part):
                own = row_noise(torch.Size((3, part.stop - part.start, 2)), torch.zeros(1))
                with pytest.raises(ValueError, match=f"function values of {total + 1} rows"):
                    row_noise(torch.Size((total + 1, 2)), torch.zeros(1))
            assert torch.equal(own, whole[:, part.rows])
