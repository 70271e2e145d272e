"""Peak memory between two moments."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory(device: str) -> None:
    """Set the peak to the present use, where the system can (Linux, CUDA)."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        _RESET.write_text("5")
    except OSError:
        return


def peak_memory_mb(device: str) -> float:
    """Peak memory since the last reset, in MB: of the GPU's allocator, or of the whole process.

    Where the system cannot reset the peak (it is not Linux), it is the peak since the start of the process.
    """
    if device.startswith("cuda"):
        return float(torch.cuda.max_memory_allocated()) / 2**20
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM"):
                return float(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 1024)
