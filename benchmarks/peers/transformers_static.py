"""transformers' `generate` in static batches, as well as a sensible user would do it.

    python benchmarks/peers/transformers_static.py JOB.json --model CHECKPOINT_FOLDER

bfloat16, left padding, rows sorted by how much they ask for and then by prompt length, so that
the rows of a batch end together; of several batch sizes, the fastest on a sample. A batch runs to
the largest `max_tokens` in it; only the tokens that a row asked for are counted. The last line
printed is JSON.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

Request = tuple[list[int], int]  # prompt, max_tokens


def in_order(request: Request) -> tuple[int, int]:
    """Longest answers first, then longest prompts."""
    return -request[1], -len(request[0])


@torch.inference_mode()
def run_batch(model: PreTrainedModel, batch: list[Request]) -> None:
    """One call of `generate`; the prompts are padded on the left to the longest."""
    width = max(len(prompt) for prompt, _ in batch)
    num_new = max(max_tokens for _, max_tokens in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, (prompt, _) in enumerate(batch):
        ids[i, width - len(prompt) :] = torch.tensor(prompt)
        mask[i, width - len(prompt) :] = 1
    # no end-of-sequence token: every row makes num_new tokens
    config = GenerationConfig(
        do_sample=False, max_new_tokens=num_new, min_new_tokens=num_new, pad_token_id=0
    )
    out = model.generate(ids, attention_mask=mask, generation_config=config)
    if out.shape[1] != width + num_new:
        raise RuntimeError(f"{out.shape[1] - width} tokens were generated, not {num_new}")


def run(model: PreTrainedModel, requests: list[Request], batch_size: int) -> float:
    """Seconds for all requests."""
    begin = time.perf_counter()
    arranged = sorted(requests, key=in_order)
    for i in range(0, len(arranged), batch_size):
        run_batch(model, arranged[i : i + batch_size])
        print(f"\r{i + batch_size} of {len(arranged)}", end="", file=sys.stderr, flush=True)
    return time.perf_counter() - begin


def choose(
    model: PreTrainedModel, requests: list[Request], sizes: list[int], num_sample: int
) -> tuple[int, dict[int, float]]:
    """The batch size that is fastest on evenly spaced requests, and the seconds of each."""
    if len(sizes) == 1:
        return sizes[0], {}
    arranged = sorted(requests, key=in_order)
    count = min(num_sample, len(arranged))
    sample = [arranged[i * len(arranged) // count] for i in range(count)]
    tried = {size: run(model, sample, size) for size in sizes}
    return min(tried, key=lambda size: tried[size]), tried


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("job", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch-sizes", default="8,16,32")
    parser.add_argument("--sample-rows", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    options = parse()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    job = json.loads(options.job.read_text(encoding="utf-8"))
    requests: list[Request] = list(zip(job["prompts"], job["max_tokens"], strict=True))
    begin = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype)
    ).eval()
    model.generation_config = GenerationConfig()
    load_s = time.perf_counter() - begin
    sizes = [int(size) for size in options.batch_sizes.split(",")]
    run_batch(model, requests[:1])  # warm up
    size, tried = choose(model, requests, sizes, options.sample_rows)
    seconds = [run(model, requests, size) for _ in range(options.repeats)]
    print(
        json.dumps(
            {
                "version": transformers.__version__,
                "load_s": load_s,
                "generate_s": seconds,
                "output_tokens": sum(job["max_tokens"]),
                "note": f"batches of {size}",
                "tried_s": tried,
            }
        )
    )


if __name__ == "__main__":
    main()
