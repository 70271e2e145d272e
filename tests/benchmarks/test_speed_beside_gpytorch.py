"""Training steps are timed beside straight-line torch and GPyTorch, which compute the same objective."""

from dataclasses import replace

import pytest
import torch

from benchmarks.common.cases import INPUTS, Case
from benchmarks.common.drawing import draw_speed
from benchmarks.common.straight_line import StraightLine
from benchmarks.studies import speed_beside_gpytorch as speed
from pyro_dgp import ELBO, CompiledObjective, InducingPoints, MonteCarlo, PredictiveLogLikelihood, Variational
from pyro_dgp.models.deep_gp import DeepGP


def test_speed_measures_all_three(capsys, tmp_path, monkeypatch):
    rows = [speed.measure(replace(case, inducing=8, batch=10), threads=1, repeats=2) for case in speed.QUICK]
    for row in rows:
        assert row["ratio_to_gpytorch_min"] <= row["ratio_to_gpytorch"] <= row["ratio_to_gpytorch_max"]
        assert row["ratio_to_floor_min"] <= row["ratio_to_floor"] <= row["ratio_to_floor_max"]
        assert min(row[f"{name}seconds_per_step"] for name in ("", "gpytorch_", "floor_", "cpu_")) > 0
        assert row["calibration_seconds"] > 0 and row["dtype"] == "float32"
        assert "GPyTorch / here" in speed.described(row)
    monkeypatch.setattr(CompiledObjective, "backend", "eager")
    rows.append(speed.measure(Case("svgp", inducing=8, batch=10), threads=1, repeats=2, compiled=True))
    assert rows[-1]["compiled_ratio_to_floor_min"] <= rows[-1]["compiled_ratio_to_floor"]
    assert "GPyTorch / compiled" in speed.described(rows[-1]) and "compiled" not in speed.described(rows[0])
    draw_speed(rows, tmp_path / "new" / "speed.png")
    assert (tmp_path / "new" / "speed.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "case",
    [
        Case("svgp"),
        Case("ppgpr"),
        Case("dsvi", 2, 3),
        Case("dsvi", 3, 3),
        Case("dsvi", 3, 3, per_output=False),
    ],
    ids=str,
)
def test_the_floor_computes_the_same_objective(case):
    """The straight-line floor is the same arithmetic: put into it, the library's parameters give the library's loss."""
    x, y = torch.randn(20, INPUTS), torch.randn(20)
    model = DeepGP(x, case.layers, case.width, per_output=case.per_output)
    guide = Variational(model, InducingPoints(8), MonteCarlo(case.samples))
    guide.initialize(x, y)
    sizes = {"layers": case.layers, "width": case.width, "samples": case.samples}
    line = StraightLine(x, **sizes, inducing=8, per_output=case.per_output, beta=case.beta)
    with torch.no_grad():
        for i, gp in enumerate([*model.hidden, model.top]):
            process = guide.processes._modules[f"h{i + 1}" if i < case.layers - 1 else "y/f"]
            line.z[i].copy_(process.basis.inducing_points)
            line.t[i].copy_(process.q.scale)
            line.m[i].copy_(process.q.mean.normal_())
            line.log_lengthscale[i].copy_(gp.kernel.lengthscale.log().reshape(line.log_lengthscale[i].shape))
            line.log_variance[i].copy_(gp.kernel.variance.log().reshape(line.log_variance[i].shape))
        line.log_noise.copy_((model.likelihood.variance - 1e-4).log())
    loss = ELBO(num_data=20) if case.beta is None else PredictiveLogLikelihood(20, case.beta)
    repeats = 1 if case.layers == 1 else 300
    ours = torch.tensor([loss.loss(model, guide, x, y) for _ in range(repeats)])
    floor = torch.tensor([float(line(x, y).detach()) for _ in range(repeats)])
    if case.layers == 1:
        assert float(ours) == pytest.approx(float(floor), rel=1e-3)  # jitter differs
        return
    error = (ours.var() / repeats + floor.var() / repeats).sqrt()
    assert abs(ours.mean() - floor.mean()) < 4 * error + 0.01 * abs(floor.mean())


@pytest.mark.parametrize("layers", [1, 2])
def test_gpytorch_gets_a_model_of_the_same_size(layers):
    from benchmarks.common.gpytorch_models import PeerDeepGP, PeerGP

    x = torch.randn(30, INPUTS)
    peer = PeerGP(x, 8) if layers == 1 else PeerDeepGP(x, layers=2, width=5, inducing=8, per_output=True)
    line = StraightLine(x, layers=layers, width=5, inducing=8, samples=1, per_output=True)
    assert sum(p.numel() for p in peer.parameters()) == sum(p.numel() for p in line.parameters())
