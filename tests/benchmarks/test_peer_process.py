from pathlib import Path

import peers.harness
import pytest
from peers.contenders import PeerError
from peers.job import TokenJob
from peers.peer_process import PeerProcess
from peers.roster import Peer

JOB = TokenJob([4, 2], [[9, 9], [1]], [2, 1])
SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(peers.harness.__file__).parent)!r})
from harness import Answers, MissingError, serve

class Echo:
    version = "1.2"
    def reset(self): print("noise of an engine")
    def generate(self, job):
        return Answers([p[:1] * n for p, n in zip(job.prompts, job.max_tokens)], 3)
"""


def process(tmp_path: Path, load: str, order: str = "file") -> PeerProcess:
    script = tmp_path / "echo.py"
    script.write_text(f"{SCRIPT}\ndef load(options, job):\n    {load}\n\nserve(load, width=1)\n")
    peer = Peer("echo", str(script), tried={"width": (1, 2)})
    settings = {"order": order, "width": "2"}
    return PeerProcess(peer, settings, JOB, tmp_path, 1, tmp_path)


@pytest.mark.parametrize("order", ["file", "sorted"])
def test_a_loaded_peer_runs_as_often_as_asked(tmp_path: Path, order: str) -> None:
    peer = process(tmp_path, "return Echo()", order)
    try:
        runs = [peer.run() for _ in range(2)]
    finally:
        peer.close()
    assert (peer.version, peer.settings) == ("1.2", f"order {order}, width 2")
    assert [run.answers for run in runs] == [{4: [9, 9], 2: [1]}] * 2
    assert runs[0].computed_prompt_tokens == 3


def test_settings_reach_the_script(tmp_path: Path) -> None:
    process(tmp_path, "assert options.width == 2; return Echo()").close()


def test_a_peer_that_is_not_installed_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"^no echo here$"):
        process(tmp_path, "raise MissingError('no echo here')")


def test_a_peer_that_fails_gives_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="out of luck"):
        process(tmp_path, "raise RuntimeError('out of luck')")


def test_too_few_tokens_are_an_error(tmp_path: Path) -> None:
    peer = process(tmp_path, "Echo.generate = lambda self, job: Answers([[9], [1]]); return Echo()")
    try:
        with pytest.raises(PeerError, match="made 2 output tokens, not 3"):
            peer.run()
    finally:
        peer.close()


def test_every_combination_is_tried_unless_a_value_is_fixed() -> None:
    peer = Peer("echo", "echo.py", tried={"width": (1, 2)})
    assert len(list(peer.settings({}))) == 4
    assert list(peer.settings({"order": "sorted", "width": "8", "other": "1"})) == [
        {"order": "sorted", "width": "8"}
    ]


def test_a_peer_without_its_variable_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECHO_PYTHON", raising=False)
    with pytest.raises(PeerError, match="ECHO_PYTHON is not set"):
        Peer("echo", "echo.py", "ECHO_PYTHON").python()
