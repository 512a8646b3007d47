"""vLLM's offline engine on a token job; the last line printed is JSON with its times.

    PYTHON_WITH_VLLM vllm_offline.py JOB.json --model CHECKPOINT_FOLDER

Runs in an environment of its own, so it imports nothing of blendrun. Prompts go in at once, in
file order, as token ids; end-of-sequence is ignored, and shared prefixes are cached.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import vllm
from vllm import LLM, SamplingParams


def load(options: argparse.Namespace, job: dict[str, Any]) -> LLM:
    lengths = [len(p) + n for p, n in zip(job["prompts"], job["max_tokens"], strict=True)]
    asked = {
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_num_seqs": options.max_num_seqs,
    }
    return LLM(
        model=options.model,
        dtype=options.dtype,
        enable_prefix_caching=True,
        max_model_len=max(lengths) + 1,
        seed=0,
        **{name: value for name, value in asked.items() if value is not None},
    )


def generate(llm: LLM, job: dict[str, Any]) -> tuple[float, int]:
    """Seconds and output tokens of the whole job, with an empty prefix cache to begin with."""
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    params = [
        SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=n, detokenize=False)
        for n in job["max_tokens"]
    ]
    llm.reset_prefix_cache()
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed_s = time.perf_counter() - begin
    return elapsed_s, sum(len(output.outputs[0].token_ids) for output in outputs)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("job", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--max-num-seqs", type=int)
    return parser.parse_args()


def main() -> None:
    options = parse()
    job = json.loads(options.job.read_text(encoding="utf-8"))
    begin = time.perf_counter()
    llm = load(options, job)
    load_s = time.perf_counter() - begin
    generate(llm, {"prompts": [[1, 2, 3, 4]], "max_tokens": [4]})  # warm up
    runs = [generate(llm, job) for _ in range(options.repeats)]
    print(
        json.dumps(
            {
                "version": vllm.__version__,
                "load_s": load_s,
                "generate_s": [seconds for seconds, _ in runs],
                "output_tokens": runs[-1][1],
            }
        )
    )


if __name__ == "__main__":
    main()
