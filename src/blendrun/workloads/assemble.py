"""From the requests of each set to one workload in a seeded random order of arrival."""

from collections.abc import Sequence

import numpy as np

from blendrun.tree.prefix_tree import ROOT, Int32
from blendrun.workloads.drawn import Drawn
from blendrun.workloads.shared_prefixes import SharedPrefixes
from blendrun.workloads.workload import Workload

_ARRIVAL = 1  # stream of the seed, apart from those of sets, which have three keys


def assemble(names: Sequence[str], drawn: Sequence[Drawn], vocab_size: int, seed: int) -> Workload:
    """All requests of `drawn`, shuffled; `names` are those of their sets."""
    counts = [len(each) for each in drawn]
    prefixes, prefix = _prefixes(drawn)
    columns = {
        "set_idx": np.repeat(np.arange(len(drawn)), counts),
        "number": np.concatenate([np.arange(count) for count in counts]),
        "prefix": prefix,
        "own_len": np.concatenate([each.own_len for each in drawn]),
        "output_len": np.concatenate([each.output_len for each in drawn]),
        "max_tokens": np.repeat([_round_limit(each.output_len) for each in drawn], counts),
    }
    arrival = np.random.default_rng([seed, _ARRIVAL]).permutation(sum(counts))
    shuffled = {name: column[arrival].astype(np.int32) for name, column in columns.items()}
    return Workload(
        set_names=tuple(names), prefixes=prefixes, vocab_size=vocab_size, seed=seed, **shuffled
    )


def _prefixes(drawn: Sequence[Drawn]) -> tuple[SharedPrefixes, Int32]:
    """System prompts below the root, groups below those; and each request's, set by set."""
    parent, depth, of_request = [ROOT], [0], []
    for each in drawn:
        system = ROOT
        if each.system_len:
            system = len(parent)
            parent.append(ROOT)
            depth.append(each.system_len)
        longer = each.group_depth > each.system_len
        of_group = np.where(longer, len(parent) + np.cumsum(longer) - 1, system)
        parent += [system] * int(longer.sum())
        depth += each.group_depth[longer].tolist()
        of_request.append(of_group[each.group])
    prefixes = SharedPrefixes(np.array(parent, np.int32), np.array(depth, np.int32))
    return prefixes, np.concatenate(of_request).astype(np.int32)


def _round_limit(output_len: Int32) -> int:
    """The least power of two that no output exceeds: a limit as people set it."""
    return 1 << int(output_len.max(initial=1) - 1).bit_length()
