import functools
from dataclasses import dataclass, field

import pytest
from peers.comparison import Line, Open, compare, markdown, record, same_beginnings
from peers.contenders import PeerError, Run
from peers.job import TokenJob


@dataclass
class Fake:
    """An engine that takes the given seconds, one after the other; None: it fails."""

    settings: str
    seconds: list[float | None]
    log: list[str]
    name: str = "fake"
    version: str = "1"
    load_s: float = 0.5
    answers: dict[int, list[int]] = field(default_factory=lambda: {0: [1, 2]})

    def run(self) -> Run:
        self.log.append(self.settings)
        seconds = self.seconds.pop(0)
        if seconds is None:
            raise PeerError(f"{self.settings} broke")
        return Run(seconds, self.answers, 10)

    def close(self) -> None:
        self.log.append(f"{self.settings} closed")


def tries(log: list[str], **seconds: list[float | None]) -> list[Open]:
    return [functools.partial(Fake, name, times, log) for name, times in seconds.items()]


def test_the_fastest_setting_takes_turns_with_blendrun() -> None:
    log: list[str] = []
    own = Fake("own", [10.0, 20.0], log)
    lines, own_runs = compare(own, tries(log, slow=[50.0], fast=[30.0, 20.0, 60.0]), repeats=2)
    assert log == [
        "slow", "slow closed", "fast", "fast closed", "own", "fast", "own", "fast", "fast closed",
    ]  # fmt: skip
    assert [(line.settings, line.ratio, len(line.runs)) for line in lines] == [
        ("slow", None, 1), ("fast", 2.5, 3),
    ]  # fmt: skip
    assert [run.generate_s for run in own_runs] == [10.0, 20.0]


def test_a_single_setting_needs_no_trial() -> None:
    log: list[str] = []
    lines, _ = compare(Fake("own", [10.0], log), tries(log, only=[15.0]), repeats=1)
    assert log == ["own", "only", "only closed"]
    assert [line.ratio for line in lines] == [1.5]


def test_a_setting_that_fails_leaves_the_others_in() -> None:
    log: list[str] = []
    lines, _ = compare(
        Fake("own", [10.0], log), tries(log, bad=[None], good=[20.0, 20.0]), repeats=1
    )
    assert [line.settings for line in lines] == ["good"]
    assert "bad closed" in log


def test_a_peer_none_of_whose_settings_runs_says_why() -> None:
    log: list[str] = []
    with pytest.raises(PeerError, match="one broke"):
        compare(Fake("own", [], log), tries(log, one=[None], two=[None]), repeats=1)
    assert log == ["one", "one closed", "two", "two closed"]


def test_same_beginnings_counts_rows_whose_first_tokens_agree() -> None:
    long = list(range(20))
    reference = Run(1.0, {0: long, 1: long, 2: [5]}, None)
    other = Run(1.0, {0: [*long[:8], 99], 1: [*long[:7], 99], 2: [5]}, None)
    assert same_beginnings([other], reference) == pytest.approx(2 / 3)


def test_the_table_leaves_out_what_is_not_known() -> None:
    job = TokenJob([0], [[1, 2, 3]], [2])
    run = Run(2.0, {0: [1, 2]}, None)
    table = markdown([record(Line("peer", "1", "a 1", 0.25, [run], []), job, run)])
    assert table.splitlines()[2] == "| peer | 1 | a 1 | 1 | 1 | 2.0 | 2.5 |  | 100% | 0.2 |  |"
