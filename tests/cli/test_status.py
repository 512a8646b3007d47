"""`blendrun status` after a run."""

import json

from cli_words import Blendrun


def test_status_tells_what_a_finished_run_did(planned: Blendrun):
    assert planned("execute", "plan.json", "--run-dir", "run", "--dtype", "float32").code == 0
    said = planned("status", "run")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("run: complete\n")
    assert "2  of 2, 0 error rows, 0 left" in said.out
    found = json.loads(planned("status", "run", "--json").out)
    assert (found["state"], found["rows_left"], found["process"]) == ("complete", 0, None)
    assert found["output_tokens_per_s"] > found["rows_per_s"] > 0


def test_status_of_another_folder_is_refused(blendrun: Blendrun):
    said = blendrun("status", ".")
    assert said.code == 2
    assert "holds no run" in said.err
