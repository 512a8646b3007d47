"""Saves what unfinished answers have, now and then and when the run stops."""

import time

import pyarrow as pa

from blendrun.data.results import RankJournal, ResultJournal
from blendrun.engine.begun import begun_table
from blendrun.engine.generations import Generations
from blendrun.engine.requests import EngineRequests


class Unfinished:
    """Owns the file of unfinished answers while a window runs."""

    def __init__(
        self,
        journal: ResultJournal | RankJournal,
        requests: EngineRequests,
        generations: Generations,
        later: pa.Table,
        interval_s: float,
    ) -> None:
        """`later`: unfinished answers of requests that do not run now; they stay in the file."""
        self._journal, self._requests, self._generations = journal, requests, generations
        self._later, self._interval_s = later, interval_s
        self._saved_at = time.monotonic()

    def is_due(self, now: float) -> bool:
        """Whether it is time to save; `now` on the monotonic clock."""
        return now - self._saved_at >= self._interval_s

    def save(self) -> None:
        """Replace what was saved; finished answers are safe elsewhere by now.

        Raises:
            DiskFullError: there is no room; what was saved before stays.
        """
        mine = begun_table(self._requests, self._generations.begun())
        self._journal.save_unfinished(pa.concat_tables([mine, self._later]))
        self._saved_at = time.monotonic()
