"""What `blendrun calibrate` prints."""

from rich.table import Table

from blendrun.cli.plan_table import console
from blendrun.cost.hardware import HardwareProfile
from blendrun.units import GIGA, MEGA

_SHOWN = (1, 16, 64, 256, 512, 2048)  # step sizes


def print_calibration(profile: HardwareProfile) -> None:
    out = console()
    out.print(
        f"{profile.processor}, {profile.cores} cores, with {profile.model}",
        markup=False,
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    rates = dict(zip(profile.gemm_tokens, profile.gemm_flops, strict=True))
    for tokens in _SHOWN:
        if tokens in rates:
            table.add_row(f"products, {tokens} tokens", f"{rates[tokens] / GIGA:,.0f} GFLOP/s", "")
    if profile.attention_flops is not None:
        table.add_row("prefill attention", f"{profile.attention_flops / GIGA:,.0f} GFLOP/s", "")
    table.add_row("decode attention", f"{profile.memory_bandwidth / GIGA:,.1f} GB/s", "of KV")
    table.add_row("fixed cost of a step", f"{profile.step_overhead_s * MEGA:,.0f} µs", "")
    for name, seconds in (
        ("norms and the like", profile.token_overhead_s),
        ("drawing and writing", profile.output_overhead_s),
    ):
        table.add_row(name, f"{seconds * MEGA:,.1f} µs", "a token")
    out.print(table)
    gain = (
        "products and KV reads at once gain nothing over one after the other: they share the cores"
        if profile.overlap_exponent == 1
        else f"products and KV reads overlap, exponent {profile.overlap_exponent}"
    )
    out.print(gain, highlight=False)
    out.print(profile.sources["overlap_exponent"], markup=False, highlight=False)
