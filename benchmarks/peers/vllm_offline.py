"""vLLM's offline engine, in this process: prompts go in at once, and shared prefixes are cached.

What its CPU build wants of the environment (`contenders.vllm_environment`) must be set before.
"""

import argparse

from harness import Answers, Engine, Job, require, serve


class VllmOffline:
    def __init__(self, options: argparse.Namespace, job: Job) -> None:
        import vllm

        self.version = vllm.__version__
        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(
            model=str(options.model),
            dtype="bfloat16",
            enable_prefix_caching=True,
            max_model_len=job.max_len + 1,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            seed=0,
        )

    def reset(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache could not be emptied")

    def generate(self, job: Job) -> Answers:
        prompts = [{"prompt_token_ids": ids} for ids in job.prompts]
        params = [
            self._params(temperature=0.0, ignore_eos=True, max_tokens=n, detokenize=False)
            for n in job.max_tokens
        ]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return Answers(
            [list(output.outputs[0].token_ids) for output in outputs],
            sum(len(o.prompt_token_ids) - (o.num_cached_tokens or 0) for o in outputs),
        )


def load(options: argparse.Namespace, job: Job) -> Engine:
    require("vllm")
    return VllmOffline(options, job)


if __name__ == "__main__":
    serve(load, max_num_batched_tokens=4096, max_num_seqs=256)
