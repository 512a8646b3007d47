"""Progress for people: a bar on a terminal, and one line per interval in the run's log."""

import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tqdm import tqdm

from blendrun.data.disk import full_disk
from blendrun.data.manifest import LOG_FILE
from blendrun.errors import DiskFullError
from blendrun.units import format_seconds

if TYPE_CHECKING:
    from blendrun.engine.attempt import RunEvents
    from blendrun.engine.loop import Advance


class StageProgress:
    """One bar per stage of planning; silent where stderr is not a terminal."""

    def __init__(self) -> None:
        self._stage = ""
        self._bar: tqdm[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._close()
            self._stage = stage
            self._bar = _bar(stage, total, unit="B", unit_scale=True)
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(done - self._bar.n)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class RunProgress:
    """Rows saved, tokens per second and time left of a run."""

    def __init__(self, run_dir: Path, log_interval_s: float) -> None:
        self._run_dir, self._log_interval_s = run_dir, log_interval_s
        self._bar: tqdm[None] | None = None
        self._done = self._total = 0
        self._logged_at = -float("inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
            if kind is None:
                self._log("finished")
                return
            with suppress(DiskFullError):  # then the error is that one, or says more
                self._log(f"stopped: {kind.__name__}: {error}")

    def events(self) -> "RunEvents":
        from blendrun.engine.attempt import RunEvents

        return RunEvents(self._begin, self._note, self._step)

    def _begin(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self._bar = _bar("rows", total, unit="row")
        self._bar.update(done)
        self._note(f"{total - done} of {total} rows to run")

    def _note(self, text: str) -> None:
        self._log(text)
        tqdm.write(text, file=sys.stderr)

    def _step(self, advance: "Advance") -> None:
        if self._bar is None:
            return
        done = self._done + advance.saved_rows
        rate = advance.output_tokens / max(advance.elapsed_s, 1e-9)
        self._bar.set_postfix_str(
            f"{advance.running} running, {advance.waiting} waiting, {rate:.0f} output tokens/s",
            refresh=False,
        )
        self._bar.update(done - self._bar.n)
        now = time.monotonic()
        if now - self._logged_at >= self._log_interval_s:
            self._logged_at = now
            left = self._total - done
            spent = advance.elapsed_s / max(advance.saved_rows, 1)
            guess = format_seconds(left * spent) if advance.saved_rows else "unknown"
            self._log(
                f"{done} of {self._total} rows saved, {advance.running} running, "
                f"{advance.waiting} waiting, {advance.output_tokens} output tokens "
                f"({rate:.0f}/s), time left: {guess}"
            )

    def _log(self, text: str) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        path = self._run_dir / LOG_FILE
        with full_disk(path), path.open("a", encoding="utf-8") as log:
            log.write(f"{stamp} {text}\n")


def _bar(stage: str, total: int, **more: object) -> "tqdm[None]":
    return tqdm(
        desc=stage, total=total, file=sys.stderr, disable=not sys.stderr.isatty(),
        dynamic_ncols=True, **more,
    )  # fmt: skip
