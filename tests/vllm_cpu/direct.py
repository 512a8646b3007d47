"""`vllm.LLM.generate` on a job file: prints the tokens of each answer as one JSON line."""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def main() -> None:
    from vllm import LLM, SamplingParams

    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        job = json.load(file)
    llm = LLM(dtype="float32", kv_cache_memory_bytes=64 << 20, seed=0, **job["engine"])
    for more in job["params"]:  # JSON makes strings of keys
        if "logit_bias" in more:
            more["logit_bias"] = {int(token): bias for token, bias in more["logit_bias"].items()}
    params = [
        SamplingParams(temperature=0, ignore_eos=True, detokenize=False, **more)
        for more in job["params"]
    ]
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    print(json.dumps([list(output.outputs[0].token_ids) for output in outputs]))


if __name__ == "__main__":
    main()
