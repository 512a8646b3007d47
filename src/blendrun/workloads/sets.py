"""Sets of requests of one kind: where their lengths come from.

Every set draws nested samples: with one seed, the first n requests are the same however many are
drawn, and a set's requests do not depend on which other sets there are. The prompt lengths that a
set states are a request's own tokens; the system prompt comes on top of them, except for
`SubjectSet`, whose prefixes include it.
"""

import zlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from blendrun.tree.prefix_tree import Int32
from blendrun.workloads.drawn import Drawn
from blendrun.workloads.trace_file import TraceFile, read_traces

SYSTEM_LEN = 32  # tokens of a system prompt where nothing else is said


class RequestSet(Protocol):
    """A kind of request with a name of its own in a mix."""

    @property
    def name(self) -> str: ...

    def draw(self, num_requests: int, seed: int) -> Drawn:
        """The first `num_requests` requests of the set's endless sequence under `seed`."""
        ...


@dataclass(frozen=True, slots=True)
class TraceSet:
    """Lengths of recorded requests, drawn with replacement; files have their weights' shares.

    `input_tokens` of a trace are taken as the request's own tokens, beside the system prompt.
    """

    name: str
    files: tuple[TraceFile, ...]
    system_len: int = SYSTEM_LEN

    def draw(self, num_requests: int, seed: int) -> Drawn:
        """Raises InputError where a file cannot be read or is no trace."""
        trace = read_traces(self.files)
        at = _stream(self.name, seed, 0).random(num_requests)
        rows = np.searchsorted(trace.upto, at * trace.upto[-1], side="right")
        return _ungrouped(trace.input_len[rows], trace.output_len[rows], self.system_len)


@dataclass(frozen=True, slots=True)
class LognormalSet:
    """Short prompts of any length in a range, long outputs with a lognormal length.

    The defaults stand for OpenVid (paper section 6.2: outputs with a mean of 16 K tokens; the
    spread is chosen so that the set's density is the published 0.05).
    """

    name: str
    system_len: int = SYSTEM_LEN
    own_range: tuple[int, int] = (100, 300)  # tokens, both included
    output_mean: float = 16_384  # before clipping
    output_sigma: float = 1.02  # of the logarithm
    output_range: tuple[int, int] = (512, 65_536)

    def draw(self, num_requests: int, seed: int) -> Drawn:
        own_len = _whole(_stream(self.name, seed, 0), self.own_range, num_requests)
        # the mean of a lognormal is exp(mu + sigma²/2)
        mu = np.log(self.output_mean) - self.output_sigma**2 / 2
        output = _stream(self.name, seed, 1).lognormal(mu, self.output_sigma, num_requests)
        output_len = np.clip(np.rint(output), *self.output_range).astype(np.int32)
        return _ungrouped(own_len, output_len, self.system_len)


@dataclass(frozen=True, slots=True)
class SubjectSet:
    """Questions on several subjects, each with its own few-shot prefix; very short outputs.

    The defaults stand for MMLU with five shots. A subject's prefix includes the system prompt.
    """

    name: str
    system_len: int = 48
    num_subjects: int = 57
    prefix_range: tuple[int, int] = (400, 1_500)  # tokens, both included
    own_range: tuple[int, int] = (60, 150)
    output_range: tuple[int, int] = (2, 6)

    def draw(self, num_requests: int, seed: int) -> Drawn:
        streams = [_stream(self.name, seed, column) for column in range(4)]
        return Drawn(
            own_len=_whole(streams[0], self.own_range, num_requests),
            output_len=_whole(streams[1], self.output_range, num_requests),
            group=_whole(streams[2], (0, self.num_subjects - 1), num_requests),
            group_depth=_whole(streams[3], self.prefix_range, self.num_subjects),
            system_len=self.system_len,
        )


def _stream(name: str, seed: int, column: int) -> np.random.Generator:
    """A generator for each column, so that no column's numbers depend on another's count."""
    return np.random.default_rng([seed, zlib.crc32(name.encode()), column])


def _whole(stream: np.random.Generator, limits: tuple[int, int], count: int) -> Int32:
    """Whole numbers in a range, both ends included."""
    # from fractions: one draw per number, so that a longer sample begins with the shorter one
    return (limits[0] + stream.random(count) * (limits[1] - limits[0] + 1)).astype(np.int32)


def _ungrouped(own_len: Int32, output_len: Int32, system_len: int) -> Drawn:
    group = np.zeros(len(own_len), np.int32)
    return Drawn(own_len, output_len, group, np.array([system_len], np.int32), system_len)
