from pathlib import Path

import pyarrow.parquet as pq
import pytest
from peers.job import TokenJob


def job() -> TokenJob:
    return TokenJob([3, 5, 9], [[7, 1, 2], [6, 1], [7, 1, 1]], [4, 2, 1])


def test_prefix_order_keeps_rows_and_lengths_with_their_prompts() -> None:
    in_order = job().in_prefix_order()
    assert in_order == TokenJob([5, 9, 3], [[6, 1], [7, 1, 1], [7, 1, 2]], [2, 1, 4])


def test_unique_beginnings_leave_nothing_to_share_and_change_no_length() -> None:
    unique = job().with_unique_beginnings(vocab_size=100)
    assert len({prompt[0] for prompt in unique.prompts}) == len(unique.prompts)
    assert [prompt[1:] for prompt in unique.prompts] == [prompt[1:] for prompt in job().prompts]
    assert unique.rows == [0, 1, 2]


def test_a_vocabulary_smaller_than_the_job_is_refused() -> None:
    with pytest.raises(SystemExit, match="3 rows cannot begin with 2 tokens"):
        job().with_unique_beginnings(vocab_size=2)


def test_prompt_file_has_the_tokens_in_the_order_of_the_job(tmp_path: Path) -> None:
    job().write_prompts(tmp_path / "job.parquet")
    table = pq.read_table(tmp_path / "job.parquet")
    assert table["prompt_token_ids"].to_pylist() == job().prompts
    assert table["max_tokens"].to_pylist() == job().max_tokens
