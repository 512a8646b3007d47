"""Sets by a short text, as the command line takes them: `NAME=SPEC`.

SPEC is `openvid`, `mmlu`, or `trace:FILE*WEIGHT+FILE*WEIGHT…`, where a weight may be left out.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from blendrun.errors import InputError
from blendrun.workloads.sets import SYSTEM_LEN, LognormalSet, RequestSet, SubjectSet, TraceSet
from blendrun.workloads.trace_file import TraceFile

DEFAULT_SPECS = (
    # 81 % of Azure's code and 19 % of its chat requests have BurstGPT's published density
    "burst=trace:azure_code.parquet*0.81+azure_conv.parquet*0.19",
    "openvid=openvid",
    "mmlu=mmlu",
)
_HINT = "write NAME=openvid, NAME=mmlu, NAME=trace:FILE or NAME=trace:FILE*0.8+FILE*0.2"


def parse_sets(
    texts: Sequence[str], traces: Path | None, system_len: int = SYSTEM_LEN
) -> tuple[RequestSet, ...]:
    """The sets that `texts` describe, in that order.

    Args:
        texts: each `NAME=SPEC`.
        traces: folder that relative trace files lie in; None is the working directory.
        system_len: tokens of the system prompt of each trace set.

    Raises:
        InputError: no sets, a text that is none, or a name given twice.
    """
    if not texts:
        raise InputError("no set of requests given", _HINT)
    if system_len < 0:
        raise InputError(f"a system prompt of {system_len} tokens is not possible")
    sets = tuple(_parse(text, traces or Path(), system_len) for text in texts)
    names = [each.name for each in sets]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"two sets are named {twice[0]!r}", "give each set a name of its own")
    return sets


def default_sets(traces: Path | None, system_len: int = SYSTEM_LEN) -> tuple[RequestSet, ...]:
    """The three sets of the paper's traces #1 to #4: burst, openvid and mmlu.

    Raises:
        InputError: there is no folder with the length traces of burst.
    """
    if traces is None:
        raise InputError(
            "the set burst needs length traces: --traces is missing",
            "give the folder with azure_code.parquet and azure_conv.parquet, or sets of your own, "
            "such as --set chat=trace:lengths.parquet --set openvid=openvid",
        )
    return parse_sets(DEFAULT_SPECS, traces, system_len)


def _parse(text: str, traces: Path, system_len: int) -> RequestSet:
    name, _, spec = text.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise InputError(f"{text!r} does not name a set", _HINT)
    kind, _, files = spec.partition(":")
    if spec == "openvid":
        return LognormalSet(name)
    if spec == "mmlu":
        return SubjectSet(name)
    if kind == "trace" and files:
        parts = tuple(_trace_file(part, text, traces) for part in files.split("+"))
        return TraceSet(name, parts, system_len)
    raise InputError(f"set {name}: {spec!r} is no kind of set", _HINT)


def _trace_file(part: str, text: str, traces: Path) -> TraceFile:
    file, star, weight_text = part.partition("*")
    try:
        weight = float(weight_text) if star else 1.0
    except ValueError:
        weight = math.nan
    if not file or not 0 < weight < math.inf:
        raise InputError(f"set {text!r}: {part!r} is no file with a weight above 0", _HINT)
    return TraceFile(traces / Path(file).expanduser(), weight)
