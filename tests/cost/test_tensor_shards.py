import pytest

from blendrun.cost.tensor_shards import WHOLE, Shard, check_tp, valid_tp_sizes
from blendrun.errors import InputError


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "sizes"),
    [
        (12, 4, (1, 2, 4, 12)),
        (12, 3, (1, 3, 6, 12)),
        (12, 1, (1, 2, 3, 4, 6, 12)),
        (9, 3, (1, 3, 9)),
        (8, 8, (1, 2, 4, 8)),
    ],
)
def test_valid_sizes_divide_the_heads(num_heads, num_kv_heads, sizes):
    assert valid_tp_sizes(num_heads, num_kv_heads) == sizes
    for size in range(1, num_heads + 2):
        if size in sizes:
            check_tp(size, num_heads, num_kv_heads, "m")
        else:
            with pytest.raises(InputError, match=f"among {size} ranks") as caught:
                check_tp(size, num_heads, num_kv_heads, "m")
            assert caught.value.hint.endswith(": " + ", ".join(map(str, sizes)))
            assert caught.value.exit_code == 2


@pytest.mark.parametrize("num_kv_heads", [1, 3, 4, 12])
def test_every_query_head_lies_with_the_kv_head_that_it_reads(num_kv_heads):
    group = 12 // num_kv_heads
    for size in valid_tp_sizes(12, num_kv_heads):
        shards = [Shard(rank, size) for rank in range(size)]
        assert [head for shard in shards for head in shard.heads(12)] == list(range(12))
        for shard in shards:
            kv_heads, heads = shard.kv_heads(num_kv_heads), shard.heads(12)
            assert {head // group for head in heads} == set(kv_heads)
            # the kernel's rule: query heads of a rank are divided evenly among its KV heads
            each = len(heads) // len(kv_heads)
            assert [kv_heads[i // each] for i in range(len(heads))] == [h // group for h in heads]


@pytest.mark.parametrize(("total", "size"), [(1536, 3), (49152, 9), (100, 4), (97, 3), (5, 4)])
def test_pieces_cover_the_whole_and_differ_by_a_block(total, size):
    pieces = [Shard(rank, size).piece(total) for rank in range(size)]
    assert [i for piece in pieces for i in piece] == list(range(total))
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 2 * 16
    assert min(map(len, pieces)) > 0


def test_one_rank_has_everything():
    assert (WHOLE.heads(9), WHOLE.kv_heads(3), WHOLE.piece(7)) == (range(9), range(3), range(7))
