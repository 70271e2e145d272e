"""Training steps on a GPU beside GPyTorch's two strategies and straight-line torch, and how far a GPU's numbers are from a CPU's.

``python -m benchmarks.studies.speed_on_gpu [--parity] [--compiled] [--quick] [--json FILE] [--table FILE]``

Times: ``svgp`` and ``dsvi``; 8 inputs, M 128, width 5, a kernel for each output, Matern 5/2 with ARD, float32, the same objective and optimiser in all
implementations. GPyTorch runs with its defaults, by ``VariationalStrategy`` and by ``LargeBatchVariationalStrategy``, which is made for large batches on
GPUs. Steps of all alternate, and each is timed until the GPU has done it. An implementation that fails has its error in the place of its time.

Parity: one loss of each named variational method with its gradients, and predictive means and deviations, in float64 on both devices from the same
parameters and the same random numbers. Solves of a triangular system are compared for up to a million right-hand sides.

``--compiled`` times :class:`CompiledObjective` too. Without a GPU it says so and ends; ``--quick`` runs on the CPU what it would run on a GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.common.cases import INPUTS, Case, case_step, floor_step, gpytorch_step
from benchmarks.common.records import Record
from benchmarks.common.timing import STARTING_ROWS, Data, Step, alternate, toy
from pyro_dgp import METHODS, Settings, Variational, module_local_parameters, predict
from pyro_dgp.internal import linalg
from pyro_dgp.internal.processor_numbers import ProcessorNumbers
from pyro_dgp.zoo.by_guide import ByGuide

CASES = (
    Case("svgp", batch=10_000),
    Case("svgp", batch=100_000),
    Case("dsvi", 2, 10, 1_000),
    Case("dsvi", 2, 10, 10_000),
    Case("dsvi", 2, 1, 100_000),
    Case("dsvi", 3, 10, 10_000),
    Case("dsvi", 3, 1, 100_000),
)
QUICK = (Case("svgp", batch=50, inducing=8), Case("dsvi", 2, 2, 50, inducing=8, width=2))
#: By prefix of the names in a record.
LIBRARIES: dict[str, Callable[[Case, Data], Step]] = {
    "": case_step,
    "gpytorch_": gpytorch_step,
    "gpytorch_large_": partial(gpytorch_step, large_batches=True),
    "floor_": floor_step,
}
COMPILED: dict[str, Callable[[Case, Data], Step]] = {"compiled_": partial(case_step, compiled=True)}
#: Right-hand sides of the solves that are compared.
COLUMNS = (1_000, 524_280, 524_281, 1_000_000)


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(case: Case, device: str, *, repeats: int, compiled: bool) -> Record:
    """Time one case: median seconds of a step by implementation, or the error of one that fails, and GPyTorch's faster time over that here."""
    torch.manual_seed(0)
    x, y = toy(max(case.batch, STARTING_ROWS), INPUTS)
    data = x.to(device), y.to(device)
    record: Record = asdict(case) | {"dtype": "float32", "device": described_device(device), "repeats": repeats}
    steps: dict[str, Step] = {}
    for name, make in (LIBRARIES | (COMPILED if compiled else {})).items():
        start = time.perf_counter()
        try:
            step = make(case, data)
            for _ in range(3):
                step()
            synchronize()
        except (RuntimeError, ValueError, TypeError) as error:
            record[f"{name}error"] = f"{type(error).__name__}: {error}"[:300]
            continue
        steps[name] = step
        record[f"{name}first_seconds"] = time.perf_counter() - start
    wall, _ = alternate(steps, repeats, warm_up=2, wait=synchronize)
    record |= {f"{name}seconds": float(seconds.median()) for name, seconds in wall.items()}
    peers = [record[f"{name}seconds"] for name in wall if name.startswith("gpytorch")]
    if "" in wall and peers:
        own = min(record[f"{name}seconds"] for name in ("", "compiled_") if name in wall)
        record |= {"ratio": min(peers) / record["seconds"], "best_ratio": min(peers) / own}
    if device == "cuda":
        record["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.empty_cache()
    return record


def described_device(device: str) -> str:
    """The name of the card, or the kind of the device."""
    return torch.cuda.get_device_name() if device == "cuda" else device


def parity(name: str, device: str) -> Record:
    """Compare one named variational method on both devices: largest differences relative to the largest entry."""
    method, settings = METHODS[name], Settings(beta=0.5, inducing=16, layers=2, width=2, frequencies=3, row_inducing=4)
    inference = method.inference
    assert isinstance(inference, ByGuide)
    torch.manual_seed(0)
    x, y = toy(60, 3)
    model = method.architecture.build(x, settings)
    guide = inference.guide(model, x, settings)
    with torch.no_grad(), module_local_parameters():
        guide.initialize(x, y)
    objective = inference.made_loss(settings, len(x))(model, guide)
    figures = [numbers(copy.deepcopy(objective), x.to(where), y.to(where)) for where in ("cpu", device)]
    return {"method": name} | {key: difference(value, figures[1][key]) for key, value in figures[0].items()}


def numbers(objective: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Loss, gradients, predictive mean and deviation of an objective, moved to the device of the data."""
    objective.to(x)
    guide = objective.guide
    assert isinstance(guide, Variational)
    with module_local_parameters(objective), ProcessorNumbers():
        torch.manual_seed(1)
        loss = objective(x, y)
        loss.backward()
        with torch.no_grad():
            torch.manual_seed(2)
            prediction = predict(guide, x[:20] + 0.1, 10)
            found = {"loss": loss.detach(), "mean": prediction.mean, "stddev": prediction.stddev}
    gradients = [value.grad.flatten() for value in objective.parameters() if value.grad is not None]
    found["gradient"] = torch.cat(gradients)
    return {key: value.cpu() for key, value in found.items()}


def difference(first: Tensor, second: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    return float((first - second).abs().max() / first.abs().max().clamp_min(1e-12))


def solves(device: str, columns: int) -> Record:
    """Compare solves of two triangular systems with many right-hand sides with the residual that they must leave: the library's and torch's own."""
    torch.manual_seed(0)
    factor = (torch.randn(2, 4, 4, dtype=torch.float64).tril() + 4 * torch.eye(4, dtype=torch.float64)).to(device)
    right = torch.randn(2, 4, columns, dtype=torch.float64).to(device)
    found = {"library": linalg.solve_triangular, "torch": torch.linalg.solve_triangular}
    return {"columns": columns} | {
        name: difference(right, factor @ solve(factor, right, upper=False)) for name, solve in found.items()
    }


def variational_methods() -> list[str]:
    """Names of the methods for regression that a guide fits."""
    return [name for name, method in METHODS.items() if isinstance(method.inference, ByGuide)]


def described(record: Record) -> str:
    """One line of the table."""
    if "columns" in record:
        return f"{record['columns']:,} right-hand sides: residual here {record['library']:.1e}, torch.linalg.solve_triangular {record['torch']:.1e}"
    if "gradient" in record:
        parts = ", ".join(f"{name} {record[name]:.1e}" for name in ("loss", "gradient", "mean", "stddev"))
        return f"{record['method']}: relative differences of the devices: {parts}"
    if "layers" not in record:
        return f"{record['method']}: {record['error']}"
    labels = {
        "": "here",
        "compiled_": "compiled",
        "gpytorch_": "GPyTorch",
        "gpytorch_large_": "GPyTorch, large batches",
        "floor_": "straight-line torch",
    }
    times = [
        f"{label} {1000 * record[f'{name}seconds']:.2f}"
        if f"{name}seconds" in record
        else f"{label}: {record[f'{name}error']}"
        for name, label in labels.items()
        if f"{name}seconds" in record or f"{name}error" in record
    ]
    ratio = (
        f"; GPyTorch's faster / here {record['ratio']:.2f}, best {record['best_ratio']:.2f}"
        if "ratio" in record
        else ""
    )
    return f"{record['method']} L{record['layers']} S{record['samples']} B{record['batch']:,}: ms a step: {', '.join(times)}{ratio}"


def table(records: list[Record]) -> str:
    """Return the times of a file of records as a table in Markdown, milliseconds a step."""
    head = "| method | layers | S | batch | ms a step | compiled | GPyTorch | its large batches | straight-line | GPyTorch / this | GPyTorch / compiled |"
    lines = [head, "|---" * 11 + "|"]
    for record in records:
        if "compiled_seconds" not in record:
            continue
        times = [f"{1000 * record[f'{name}seconds']:.1f}" for name in ("", *COMPILED, *list(LIBRARIES)[1:])]
        cells = [f"`{record['method']}`", record["layers"], record["samples"], f"{record['batch']:,}", *times]
        lines.append(
            "| " + " | ".join(map(str, [*cells, f"{record['ratio']:.2f}", f"{record['best_ratio']:.2f}"])) + " |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print a line for each case, and write the records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parity", action="store_true", help="compare numbers in the place of times")
    parser.add_argument("--compiled", action="store_true", help="time compiled steps too")
    parser.add_argument("--quick", action="store_true", help="small cases, on the CPU: shows that it runs")
    parser.add_argument("--json", type=Path, help="file for the records")
    parser.add_argument("--table", type=Path, help="run nothing: print the times of a file of records as a table")
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(table(json.loads(arguments.table.read_text())))
        return
    if not arguments.quick and not torch.cuda.is_available():
        parser.exit(message="no GPU is seen: nothing was measured; --quick runs small cases on the CPU\n")
    device = "cpu" if arguments.quick else "cuda"
    records: list[Record] = []

    def keep(record: Record) -> None:
        records.append(record)
        print(described(record), flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(records, indent=1))

    if arguments.parity:
        torch.set_default_dtype(torch.float64)
        for columns in COLUMNS:
            keep(solves(device, columns))
        for name in variational_methods():
            try:
                keep(parity(name, device))
            except (RuntimeError, ValueError, TypeError) as error:
                keep({"method": name, "error": f"{type(error).__name__}: {error}"[:500]})
    else:
        for case in QUICK if arguments.quick else CASES:
            keep(measure(case, device, repeats=2 if arguments.quick else 20, compiled=arguments.compiled))


if __name__ == "__main__":
    main()
