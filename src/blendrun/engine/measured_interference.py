"""What products and decode attention of one step gain at the same time, by how SMs are divided.

A step's products are measured whole and as those of its two parts; then the latter beside its KV
reads, on two lanes. Nothing waits for anything there, so that is a bound of what an executor gains.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from blendrun.engine import measured_attention
from blendrun.engine.decoder import Decoder
from blendrun.engine.measured_attention import attention_call
from blendrun.engine.measured_overlap import exponent_of
from blendrun.engine.measured_rates import products, products_of
from blendrun.engine.overlap import LaneMaker
from blendrun.engine.paged_attention import PagedAttention
from blendrun.engine.stopwatch import seconds_of, wait_for

CHUNK_TOKENS = (0, 512, 2048)  # of a step's prefill; without, its decodes are halved
DECODES = (64, 256)
MEMORY_FRACS = (0.0, 0.125, 0.25, 0.375, 0.5)  # of the SMs, for decode attention alone
_LAYERS, MEASURE_S = 4, 0.1
_LEAST_RATIO = 0.25  # of the shorter to the longer, from which the exponent can be told


@dataclass(frozen=True, slots=True)
class Interference:
    """Of a step, and one division of the SMs; seconds of some layers."""

    tokens: int
    context_len: int  # tokens that its decodes read
    memory_frac: float  # 0: SMs are not divided
    whole_s: float  # its products, nothing beside them
    parts_s: float  # those of its two parts, one after the other
    reads_s: float  # its decode attention, nothing beside it
    together_s: float  # both parts' products, and decode attention beside them

    @property
    def gain(self) -> float:
        """Times as fast as whole and one after the other."""
        return (self.whole_s + self.reads_s) / self.together_s

    @property
    def factor(self) -> float:
        """Likewise, without what dividing the products costs: 1 where nothing overlaps, up to 2."""
        return (self.parts_s + self.reads_s) / self.together_s

    @property
    def exponent(self) -> float:
        """The q with which together_s is the norm of the two; 1 where one is too short to tell."""
        low, high = sorted((self.parts_s, self.reads_s))
        if low < _LEAST_RATIO * high or self.factor <= 1:
            return 1.0
        return exponent_of(self.parts_s / self.together_s, self.reads_s / self.together_s)


def measure_interference(
    decoder: Decoder,
    attention: PagedAttention,
    lanes: LaneMaker,
    progress: Callable[[str], None],
) -> tuple[Interference, ...]:
    """Of a grid of steps and divisions. The caller holds `torch.inference_mode`."""
    wait = wait_for(decoder.device)
    num_layers = min(_LAYERS, decoder.config.num_layers)
    per_layer = len(products_of(decoder)) // decoder.config.num_layers
    weights = products_of(decoder)[: num_layers * per_layer]
    fracs = [frac for frac in MEMORY_FRACS if not frac or lanes.divides()]
    measured = []
    for decodes in DECODES:
        context_len = decodes * measured_attention.LONG
        reads = attention_call(decoder, attention, decodes, 1, measured_attention.LONG)
        reads_s = num_layers * seconds_of(reads, wait, MEASURE_S)
        for chunk_tokens in CHUNK_TOKENS:
            progress(f"{chunk_tokens} tokens of prefill beside {decodes} decodes")
            tokens = decodes + chunk_tokens
            sizes = (decodes, chunk_tokens) if chunk_tokens else (decodes // 2, decodes // 2)
            parts = [products(weights, size) for size in sizes]
            whole_s = seconds_of(products(weights, tokens), wait, MEASURE_S)
            parts_s = sum(seconds_of(part, wait, MEASURE_S) for part in parts)
            for frac in fracs:
                both = _together(lanes, frac, parts, reads, num_layers)
                both_s = seconds_of(both, wait, MEASURE_S)
                measured.append(
                    Interference(tokens, context_len, frac, whole_s, parts_s, reads_s, both_s)
                )
    return tuple(measured)


def _together(
    lanes: LaneMaker,
    memory_frac: float,
    parts: Sequence[Callable[[], None]],
    reads: Callable[[], object],
    num_layers: int,
) -> Callable[[], None]:
    own = lanes(memory_frac)

    def read() -> None:
        reads()

    def run() -> None:
        own.begin()
        for _ in range(num_layers):
            own.run("memory", read)
        for part in parts:
            own.run("compute", part)
        own.end()

    return run


@dataclass(frozen=True, slots=True)
class SplitTable:
    """Columns of a hardware profile, see `HardwareProfile.split_tokens`; one row for each step."""

    split_tokens: tuple[int, ...]
    split_contexts: tuple[int, ...]
    split_parts: tuple[int, ...]
    split_memory_fracs: tuple[float, ...]
    split_gains: tuple[float, ...]

    def columns(self) -> dict[str, tuple[float, ...]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def split_table(measured: Sequence[Interference]) -> SplitTable:
    """The best division for each step."""
    best = [
        max((m for m in measured if (m.tokens, m.context_len) == step), key=lambda m: m.gain)
        for step in sorted({(m.tokens, m.context_len) for m in measured})
    ]
    return SplitTable(
        tuple(m.tokens for m in best),
        tuple(m.context_len for m in best),
        tuple(2 for _ in best),
        tuple(m.memory_frac for m in best),
        tuple(round(m.gain, 3) for m in best),
    )


def overlap_exponent(measured: Sequence[Interference]) -> float:
    """That of the practical optimum: the median over steps of each one's best; 1: no overlap."""
    steps = {(m.tokens, m.context_len) for m in measured}
    best = [
        max(m.exponent for m in measured if (m.tokens, m.context_len) == step) for step in steps
    ]
    told = [exponent for exponent in best if exponent > 1 and not math.isinf(exponent)]
    return round(statistics.median(told), 2) if told else 1.0
