"""What `blendrun calibrate` prints."""

from rich.table import Table

from blendrun.cli.plan_table import console
from blendrun.cost.hardware import HardwareProfile
from blendrun.units import GIGA, MEGA

_SHOWN = (1, 16, 64, 256, 512, 2048)  # step sizes
_OVERHEADS = (
    ("step_overhead_s", "fixed cost of a step", ""),
    ("token_overhead_s", "norms and the like", "a token"),
    ("output_overhead_s", "drawing and writing", "an output token"),
)


def print_calibration(profile: HardwareProfile) -> None:
    out = console()
    cores = "" if profile.cores is None else f", {profile.cores} cores"
    out.print(f"{profile.processor}{cores}, with {profile.model}", markup=False, highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    rates = dict(zip(profile.gemm_tokens, profile.gemm_flops, strict=True))
    heads = dict(zip(profile.gemm_tokens, profile.head_flops, strict=False))
    for tokens in _SHOWN:
        if tokens in rates:
            head = f"output head {heads[tokens] / GIGA:,.0f}" if tokens in heads else ""
            row = f"products, {tokens} tokens", f"{rates[tokens] / GIGA:,.0f} GFLOP/s", head
            table.add_row(*row)
    if profile.attention_flops is not None:
        table.add_row("prefill attention", f"{profile.attention_flops / GIGA:,.0f} GFLOP/s", "")
    if profile.shared_attention_flops is not None:
        rate = f"{profile.shared_attention_flops / GIGA:,.0f} GFLOP/s"
        table.add_row("shared prefixes", rate, "where another decode reads them anyway")
    table.add_row("decode attention", f"{profile.memory_bandwidth / GIGA:,.1f} GB/s", "of KV")
    for key, name, unit in _OVERHEADS:
        note = (
            "not clear: measure again with nothing else running" if key in profile.unclear else ""
        )
        table.add_row(name, f"{getattr(profile, key) * MEGA:,.1f} µs", note or unit)
    out.print(table)
    verdict = f"overlap, exponent {profile.overlap_exponent}" if profile.overlaps else "no overlap"
    out.print(f"{verdict}: {profile.sources['overlap']}", markup=False, highlight=False)
