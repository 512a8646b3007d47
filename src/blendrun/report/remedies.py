"""What each part of the gap is called, why it is there in this run, and what would change it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blendrun.cost.cost_model import CostModel
from blendrun.report.gap import UNEXPLAINED, Gap, Work
from blendrun.report.held_back import Held
from blendrun.report.metrics import RunMetrics
from blendrun.report.rank_pace import RankPace
from blendrun.units import count_of, format_count, format_seconds, format_share

TITLES: Mapping[str, str] = {
    "ideal": "ideal optimum",
    "interference": "interference",
    "fewest_steps": "weights of the fewest steps",
    "lost_sharing": "lost sharing",
    "repeated_reads": "shared prefixes read again",
    "imbalance": "imbalance inside steps",
    "few_pages": "too few KV pages",
    "small_steps": "small steps",
    "no_overlap": "overlap not used",
    "ramp_up": "ramp-up",
    "tail": "tail",
    "preemption": "preemption",
    "wrong_lengths": "wrong length estimates",
    "fixed_costs": "fixed costs of steps",
    "communication": "tensor-parallel communication",
    "scheduling": "scheduling and sampling",
    "files": "files and progress",
    "loading": "loading the model",
    "rank_imbalance": "imbalance of ranks",
    UNEXPLAINED: "unexplained",
}
OPTIMUM = "what this machine could do at best with this job"
SMALL_FRAC = 5e-4  # of the wall time: parts below it share a line, and need no remedy
_SHORT_S = 1.0  # of compiling: it was done before
_ROOMY_FRAC = 0.9  # of the KV pages: while fewer are in use, nothing is dropped for lack of them


@dataclass(frozen=True, slots=True)
class Facts:
    """What the sentences speak of."""

    gap: Gap
    metrics: RunMetrics
    cost: CostModel
    work: Work | None  # None: the run is not complete
    policy: str
    overlaps: bool  # the engine
    longest_output: int
    tail_running: float  # requests at once in the tail, on average
    num_ranks: int
    priced_model_s: float  # what the cost model gives the steps of all ranks, and …
    priced_attention_s: float  # … of it, attention
    was_replayed: bool  # so that wrong lengths are told apart
    most_pages_frac: float  # KV pages in use at most
    between_steps_s: float  # on the clock, of `files`, …
    compile_s: float  # … and of `loading`
    small_held: Held  # what kept requests out of the small steps
    pace: RankPace


def sentence(part: str, facts: Facts) -> str:
    """One sentence, with a remedy where there is one."""
    return _SENTENCES[part](facts)


def finding(facts: Facts) -> str:
    """How far from the optimum, and what cost most, in a few words."""
    gap, part = facts.gap, facts.gap.largest
    if not gap.wall_s:
        return "nothing ran"
    most = f"; largest cost: {TITLES[part]}, {gap.part_of_wall(part):.0%}" if part else ""
    if facts.work is None:
        return f"{format_seconds(gap.wall_s)} so far, not complete{most}"
    share = f"{format_share(gap.practical_s / gap.wall_s)} of the practical optimum"
    return f"{format_seconds(gap.wall_s)}, {share}{most}"


def advice(facts: Facts) -> str:
    """What to do about the largest part."""
    part = facts.gap.largest
    return f"{TITLES[part]}: {sentence(part, facts)}" if part else ""


def _ideal(f: Facts) -> str:
    kind = "compute" if f.gap.gradient[0] >= f.gap.gradient[1] else "KV reads"
    if f.gap.gradient[0] == f.gap.gradient[1]:
        kind = "the larger of compute and KV reads"
    return f"{kind}, if all the rest were free; a faster or second device, or a smaller model"


def _interference(f: Facts) -> str:
    if not f.cost.hardware.overlaps:
        return "on this machine compute and KV reads take turns, so both count"
    return "compute and KV reads that run at the same time slow each other down"


def _fewest_steps(f: Facts) -> str:
    if f.work is None:
        return "not known before the run is complete"
    if f.gap.part_of_wall("fewest_steps") < SMALL_FRAC:
        return "next to nothing: full steps read the weights on the way"
    steps = f.work.min_steps
    if steps <= f.num_ranks * (f.longest_output + 1):
        return f"the longest answer alone takes {f.longest_output:,} steps: lower its max_tokens"
    return (
        f"KV memory holds so few requests that {steps:,} steps are needed, each of which reads "
        "all weights: give more KV memory (--kv-memory)"
    )


def _lost_sharing(f: Facts) -> str:
    unique = f.work.unique_tokens if f.work else 0
    twice = f.metrics.prefill_tokens - f.metrics.recomputed_tokens - unique
    if twice <= 0:
        return "no shared beginning was computed twice"
    computed = f"{format_count(twice)} prompt tokens were computed again"
    if f.num_ranks > 1 and f.most_pages_frac < _ROOMY_FRAC:
        return f"{computed}, by ranks that share no KV: fewer ranks compute fewer of them"
    if f.metrics.attempts > 1 and f.most_pages_frac < _ROOMY_FRAC:
        return f"{computed}: each attempt begins without KV"
    which = "--policy blend, or " if f.policy in ("random", "arrival", "blendserve") else ""
    return f"{computed}: {which}more KV memory keeps shared beginnings"


def _imbalance(f: Facts) -> str:
    if not f.cost.hardware.overlaps:
        return "none where compute and KV reads take turns"
    return f"steps whose compute and KV reads are not in the job's ratio; policy {f.policy}" + (
        "" if f.policy == "blend" else ": --policy blend keeps to it"
    )


def _few_pages(f: Facts) -> str:
    return (
        f"requests wait for KV pages, which hold {f.metrics.mean_running:,.0f} at once on average, "
        "so steps are small: give more KV memory (--kv-memory)"
    )


def _small_steps(f: Facts) -> str:
    mean = (f.metrics.prefill_tokens + f.metrics.decode_tokens) / max(f.metrics.steps, 1)
    return (
        f"steps have {mean:,.0f} tokens on average, too few for the best rate of products: "
        + _LARGER_STEPS[f.small_held].format(policy=f.policy)
    )


_LARGER_STEPS: Mapping[Held, str] = {
    Held.NOTHING: "no other request was waiting",
    Held.MAX_SEQS: "raise --max-seqs",
    Held.CHUNK: "raise --chunk-size",
    Held.PAGES: "give more KV memory (--kv-memory)",
    Held.ORDER: "policy {policy} and its budget let no more in; try another --policy or --budget",
}


def _tail(f: Facts) -> str:
    which = "" if f.policy == "blend" else "--policy blend, or "
    return (
        f"{f.tail_running:,.1f} requests at once after the last one came in: {which}longest "
        "answers first (--lengths-from an earlier run), or a lower max_tokens"
    )


def _preemption(f: Facts) -> str:
    if not f.metrics.preemptions:
        return "no request was sent back"
    return (
        f"{count_of(f.metrics.preemptions, 'request')} sent back for lack of KV memory, "
        f"{format_count(f.metrics.recomputed_tokens)} tokens computed again: more KV memory "
        "(--kv-memory), or better expected lengths (--lengths-from)"
    )


def _files(f: Facts) -> str:
    rest_s = f.gap.seconds["files"] - f.between_steps_s
    where = (
        f"{format_seconds(f.between_steps_s)} between steps, "
        f"{format_seconds(max(rest_s, 0.0))} before the first and after the last: "
    )
    if f.between_steps_s > rest_s:
        return where + "results and progress are written then: a faster disk for the run folder"
    return where + "matters less in a longer job, or with a faster disk for the run folder"


def _loading(f: Facts) -> str:
    compiling = ""
    if f.compile_s > _SHORT_S:
        compiling = (
            f", {format_seconds(f.compile_s)} of it compiling the batcher, which only the first "
            "run of a version does"
        )
    return f"once per attempt{compiling}: matters less in a longer job"


def _rank_imbalance(f: Facts) -> str:
    if f.num_ranks == 1:
        return "no other rank to wait for"
    if f.pace.factor > 1.1:
        return (
            f"rank {f.pace.slowest} takes {f.pace.factor:.1f} times as long as the fastest rank "
            "for the same work: look for what slows its device"
        )
    return (
        "ranks that begin later than the first, or wait for the one that ends last: fewer ranks, "
        "or longest answers first"
    )


def _unexplained(f: Facts) -> str:
    seconds = f.gap.seconds[UNEXPLAINED]
    if abs(seconds) <= 1e-6 * f.gap.wall_s:
        return "every second is accounted for"
    hint = "" if f.cost.hardware.calibrated else "; blendrun calibrate measures this machine"
    how = "faster" if seconds < 0 else "slower"
    m, details = f.metrics, ""
    if m.attention_s:
        rest_s = f.priced_model_s - f.priced_attention_s
        details = (
            f": attention took {format_seconds(m.attention_s)}, priced at "
            f"{format_seconds(f.priced_attention_s)}, the rest of the model "
            f"{format_seconds(m.model_s)}, priced at {format_seconds(rest_s)}"
        )
    return f"steps were {how} than the hardware profile says{details}{hint}"


_SENTENCES: Mapping[str, Callable[[Facts], str]] = {
    "ideal": _ideal,
    "interference": _interference,
    "fewest_steps": _fewest_steps,
    "lost_sharing": _lost_sharing,
    "repeated_reads": lambda _: "requests that share a beginning decoded at different times",
    "imbalance": _imbalance,
    "few_pages": _few_pages,
    "small_steps": _small_steps,
    "no_overlap": lambda f: (
        "none"
        if f.overlaps or not f.cost.hardware.overlaps
        else "the engine runs compute and KV reads one after the other; this hardware could do both"
    ),
    "ramp_up": lambda _: "until as many requests run as on average",
    "tail": _tail,
    "preemption": _preemption,
    "wrong_lengths": lambda f: (
        "the same job with its lengths known before takes so much less: "
        "--lengths-from an earlier run, or --warmup"
        if f.was_replayed
        else "not told apart here: their cost is in imbalance, tail and preemption"
    ),
    "fixed_costs": lambda f: f"{f.metrics.steps:,} steps; fewer and larger ones cost less",
    "communication": lambda _: "all-reduces: fewer tensor-parallel ranks, more data-parallel ones",
    "scheduling": lambda f: (
        f"deciding {format_seconds(f.metrics.schedule_s)}, drawing tokens "
        f"{format_seconds(f.metrics.sample_s)}: larger steps need fewer of both"
    ),
    "files": _files,
    "loading": _loading,
    "rank_imbalance": _rank_imbalance,
    UNEXPLAINED: _unexplained,
}
