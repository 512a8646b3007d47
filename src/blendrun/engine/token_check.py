"""Best tokens and draws of a device, held against those that plain torch makes on the CPU."""

import numpy as np
import torch

from blendrun.engine.sampler import SamplingColumns, TokenKernels, sample

_NUM_ROWS = 24  # so few that one is more than any tolerance of the checks
_MOST_COLUMNS = 9001  # several blocks of each kernel, and a last one that is not full


def differing_frac(
    kernels: TokenKernels, vocab_size: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Share of rows of random logits [24, vocab_size] (9001 at most) that give another token.

    Some are greedy, some are drawn, of all tokens, of the best ones by top_k, top_p and min_p.
    Rows in which some logits are no numbers must be told as such; their tokens are nobody's.
    """
    random, num_columns = torch.Generator().manual_seed(0), min(vocab_size, _MOST_COLUMNS)
    logits = (2 * torch.randn(_NUM_ROWS, num_columns, generator=random)).to(dtype)
    best = torch.randint(num_columns, (_NUM_ROWS, 1), generator=random)
    logits.scatter_(1, best, 12)  # any of equal ones would be right
    rows = np.arange(_NUM_ROWS)
    for row, value in ((3, torch.nan), (8, torch.inf), (14, -torch.inf)):
        logits[row, row * (num_columns - 1) // _NUM_ROWS] = value
    columns = SamplingColumns(
        temperature=np.where(rows < 6, 0, 1 + rows % 3).astype(np.float32),
        top_p=np.where(rows % 8 == 7, 0.9, 1).astype(np.float32),
        top_k=np.where(rows % 4 == 1, 5 + rows, 0).astype(np.int32),
        min_p=np.where(rows % 5 == 2, 1e-3, 0).astype(np.float32),
        seed=rows - 9,
        key=rows * 12345678901,
        sample=(rows % 2).astype(np.int32),
        position=100 + rows,
    )
    found = sample(logits.to(device), columns, kernels)
    expected = sample(logits, columns)
    is_other = (found.token_ids.cpu() != expected.token_ids) & ~expected.bad
    return float((is_other | (found.bad.cpu() != expected.bad)).double().mean())
