"""The workloads: what a sample is, how many a step takes, and for how long an accelerator computes on them.

Numbers are those of the configurations of MLPerf Storage v3.0 for B200 accelerators (2026-09, github.com/mlcommons/storage).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """A workload.

    Attributes:
        name: Its name.
        sample_bytes: Bytes of a sample, one object each.
        batch: Samples of a step, for one accelerator.
        compute_s: Seconds that an accelerator computes on a step.
        least_au: The utilisation that a run must reach to count.
    """

    name: str
    sample_bytes: int
    batch: int
    compute_s: float
    least_au: float


LOADS = {
    load.name: load
    for load in (
        Load("retinanet", 322_957, 24, 0.04755, 0.85),
        Load("unet3d", 146_600_628, 7, 0.162, 0.90),
    )
}
