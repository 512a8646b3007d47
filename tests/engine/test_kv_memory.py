from types import SimpleNamespace

import numpy as np
import pytest

from blendrun.engine import kv_memory
from blendrun.errors import CapacityError
from tiny_jobs import tree_of


def requests(prompts, max_tokens):
    tree = tree_of(prompts)
    return SimpleNamespace(
        tree=tree, prompt_len=tree.prompt_len, max_tokens=np.array(max_tokens, np.int32)
    )


JOB = requests([[1, 2, 3], [1, 2, 3, 4, 5], [9]], [10, 20, 30])
ALL = np.arange(3)


def test_a_page_holds_k_and_v_of_all_layers():
    config = SimpleNamespace(num_layers=30, num_kv_heads=3, head_dim=64)
    assert kv_memory.kv_bytes_per_page(config, 16, 2) == 2 * 30 * 3 * 64 * 16 * 2


def test_asked_memory_is_a_limit():
    assert kv_memory.num_pages(JOB, ALL, 4, 100, limit=799) == 7


def test_no_more_pages_than_the_pending_requests_can_use():
    everything = kv_memory.num_pages(JOB, ALL, 4, 100, limit=10**12)
    few = kv_memory.num_pages(JOB, np.array([2]), 4, 100, limit=10**12)
    assert 69 / 4 < few + (3 + 5 + 10 + 20) / 4 <= everything + 1
    assert 69 / 4 <= everything < 100


def test_without_a_wish_it_is_a_part_of_the_free_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_memory, "available_memory_bytes", lambda: 1000)
    assert kv_memory.free_bytes(num_ranks=1) == 600
    assert kv_memory.free_bytes(num_ranks=3) == 200


def test_memory_below_one_page_is_refused_with_a_way_out():
    with pytest.raises(CapacityError, match=r"99 B is less than one KV page \(100 B\)") as caught:
        kv_memory.num_pages(JOB, ALL, 4, 100, limit=99)
    assert "--kv-memory" in caught.value.hint


def test_longest_context_is_prompt_and_whole_answer():
    assert [kv_memory.longest_len(JOB, i) for i in range(3)] == [13, 25, 31]
