"""How far a density is from the job's, in steps that a bar or a colour can show."""

import math

STEPS = (1.25, 2.0, 4.0, 8.0)  # times the job's density, or the job's is so many times it


def density_step(density: float | None, job_density: float | None) -> int:
    """-4 to 4: above 0 has more compute than the job, 0 is within a quarter of it.

    Args:
        density: None for one without KV reads, which is above any other.
        job_density: None where no KV is read at all: then all are alike.
    """
    if job_density is None:
        return 0
    if density is None or job_density == 0:
        return len(STEPS)
    ratio = density / job_density
    step = sum(max(ratio, 1 / ratio if ratio else math.inf) >= least for least in STEPS)
    return step if ratio >= 1 else -step
