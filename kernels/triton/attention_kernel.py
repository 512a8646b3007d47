"""Attention of one tile of packed query rows over a part of a paged context, in Triton.

`attention_tiles.py` says what a tile is, `attention.py` launches. Scores are kept as powers of
two: score * log2(e), so the log-sum-exp is base 2.
"""

import triton
import triton.language as tl

from blendrun.kernels.triton.interpreted import matmul, rounded


@triton.jit
def attend_tile(
    q,  # [T, Hq, D]
    k_cache,  # [P, PAGE_SIZE, Hkv, D]
    v_cache,
    pages,  # int32, all sequences
    tiles,  # int32 [n, 9], see `attention_tiles.COLUMNS`
    out,  # [T, Hq, D]
    lse,  # float32 [T, Hq] or None
    state_values,  # float32 [N, Hq, D]
    state_lse,  # float32 [N, Hq]
    score_scale,  # times log2(e)
    v_scale,
    q_row_stride,
    q_head_stride,
    kv_page_stride,
    kv_token_stride,
    kv_head_stride,
    out_row_stride,
    out_head_stride,
    lse_row_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Grid: tiles times KV heads; heads of a tile lie side by side, as in the cache."""
    tile = tiles + tl.program_id(0) // NUM_KV_HEADS * 9
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    q_first = tl.load(tile)
    q_len = tl.load(tile + 1)
    first_row = tl.load(tile + 2)
    page_first = tl.load(tile + 3)
    kv_len = tl.load(tile + 4)
    kv_begin = tl.load(tile + 5)
    kv_end = tl.load(tile + 6)
    state = tl.load(tile + 7)
    num_chunks = tl.load(tile + 8)

    rows = first_row + tl.arange(0, BLOCK_M)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    dims = tl.arange(0, BLOCK_D)
    is_row = token < q_len
    is_value = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    q_row = (q_first + token).to(tl.int64)
    q_place = q_row * q_row_stride + head * q_head_stride
    queries = tl.load(q + q_place[:, None] + dims[None, :], mask=is_value, other=0.0)

    # Row i of n sees the first kv_len - n + i + 1 tokens, and of those what is in this chunk.
    if CAUSAL:
        before = kv_len - q_len + 1
        last_token = tl.minimum((first_row + BLOCK_M - 1) // GROUP, q_len - 1)
        seen = tl.minimum(before + token, kv_end)
        all_see = tl.minimum(before + first_row // GROUP, kv_end)
        some_see = tl.minimum(before + last_token, kv_end)
    else:
        seen = tl.full([BLOCK_M], 0, tl.int32) + kv_end
        all_see = kv_end
        some_see = kv_end
    unmasked_end = kv_begin + tl.maximum(all_see - kv_begin, 0) // BLOCK_N * BLOCK_N

    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    values = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    pages += page_first
    k_head = k_cache + kv_head * kv_head_stride
    v_head = v_cache + kv_head * kv_head_stride
    for start in tl.range(kv_begin, unmasked_end, BLOCK_N, num_stages=NUM_STAGES):
        highest, total, values = _add_block(
            queries, k_head, v_head, pages, start, seen, some_see, highest, total, values,
            score_scale, kv_page_stride, kv_token_stride,
            HEAD_DIM, BLOCK_D, PAGE_SIZE, BLOCK_N, False,
        )  # fmt: skip
    for start in tl.range(unmasked_end, some_see, BLOCK_N, num_stages=1):  # few: not pipelined
        highest, total, values = _add_block(
            queries, k_head, v_head, pages, start, seen, some_see, highest, total, values,
            score_scale, kv_page_stride, kv_token_stride,
            HEAD_DIM, BLOCK_D, PAGE_SIZE, BLOCK_N, True,
        )  # fmt: skip

    # Rows that see nothing give zeros, and minus infinity as their log-sum-exp.
    divisor = tl.where(total > 0, total, 1.0)
    values *= (v_scale / divisor)[:, None]
    row_lse = tl.where(total > 0, highest + tl.log2(divisor), float("-inf"))
    if num_chunks > 1:
        num_heads = NUM_KV_HEADS * GROUP
        state_row = (state + token * num_chunks).to(tl.int64) * num_heads + head
        state_place = state_row[:, None] * HEAD_DIM + dims[None, :]
        tl.store(state_values + state_place, values, mask=is_value)
        tl.store(state_lse + state_row, row_lse, mask=is_row)
    else:
        out_place = (q_row * out_row_stride + head * out_head_stride)[:, None] + dims[None, :]
        tl.store(out + out_place, rounded(values, out.dtype.element_ty), mask=is_value)
        if lse is not None:
            tl.store(lse + q_row * lse_row_stride + head, row_lse, mask=is_row)


@triton.jit
def _add_block(
    queries,
    k_head,
    v_head,
    pages,
    start,
    seen,
    some_see,
    highest,
    total,
    values,
    score_scale,
    kv_page_stride,
    kv_token_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The state of the rows after BLOCK_N more tokens; unmasked where all rows see all of them."""
    tokens = start + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    is_token = tokens < some_see
    if MASKED:
        page = tl.load(pages + tokens // PAGE_SIZE, mask=is_token, other=0)
    else:
        page = tl.load(pages + tokens // PAGE_SIZE)
    place = page.to(tl.int64) * kv_page_stride + tokens % PAGE_SIZE * kv_token_stride
    place = place[:, None] + dims[None, :]
    # What is masked is not read: unwritten slots may hold NaN, and zero times NaN is NaN.
    if MASKED:
        is_read = is_token[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(k_head + place, mask=is_read, other=0.0)
        v = tl.load(v_head + place, mask=is_read, other=0.0)
    elif HEAD_DIM != BLOCK_D:
        k = tl.load(k_head + place, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        v = tl.load(v_head + place, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    else:
        k = tl.load(k_head + place)
        v = tl.load(v_head + place)
    scores = tl.zeros([queries.shape[0], BLOCK_N], tl.float32)
    scores = matmul(queries, tl.trans(k.to(queries.dtype)), scores) * score_scale
    if MASKED:
        scores = tl.where(tokens[None, :] < seen[:, None], scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    base = new_highest
    if MASKED:  # a row that has seen nothing yet: minus infinity less itself is no number
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(highest - base)
    total = total * shrink + tl.sum(weights, 1)
    weights = rounded(weights, queries.dtype)
    values = matmul(weights, v.to(queries.dtype), values * shrink[:, None])
    return new_highest, total, values
