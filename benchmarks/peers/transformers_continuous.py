"""transformers' continuous batching (what `generate_batch` runs), with paged attention by SDPA
and shared prefixes kept in full pages.

Requests are added one by one, because `generate_batch` knows one `max_new_tokens` for all.
"""

import argparse

from harness import Answers, Engine, Job, kv_tokens, require, serve

PAGE_TOKENS = 32  # a prefix is shared in whole pages; the default is 256


class ContinuousBatches:
    def __init__(self, options: argparse.Namespace, job: Job) -> None:
        import torch
        import transformers
        from transformers.generation import ContinuousBatchingConfig

        transformers.utils.logging.set_verbosity_error()
        self.version = transformers.__version__
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
        self._greedy = transformers.GenerationConfig(do_sample=False, eos_token_id=-1)
        self._config = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=min(kv_tokens(options) // PAGE_TOKENS, whole_pages(job)),
            max_batch_tokens=options.max_batch_tokens,
            max_requests_per_batch=options.max_requests,
            allow_block_sharing=True,
        )

    def reset(self) -> None:
        pass  # each run has a manager, and so a cache, of its own

    def generate(self, job: Job) -> Answers:
        answers: dict[str, list[int]] = {}
        with self._model.continuous_batching_context_manager(
            generation_config=self._greedy, continuous_batching_config=self._config
        ) as manager:
            ids = [
                manager.add_request(prompt, max_new_tokens=num_new)
                for prompt, num_new in zip(job.prompts, job.max_tokens, strict=True)
            ]
            while len(answers) < len(ids):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    if result.error is not None:
                        raise RuntimeError(result.error)
                    answers[result.request_id] = result.generated_tokens
                elif result is None and not manager.is_running():
                    raise RuntimeError("continuous batching stopped before the job's end")
        return Answers([answers[i] for i in ids])


def whole_pages(job: Job) -> int:
    """Pages for all requests at once; with more, only the attention mask would grow."""
    lengths = (len(p) + n for p, n in zip(job.prompts, job.max_tokens, strict=True))
    return sum(length // PAGE_TOKENS + 1 for length in lengths)


def load(options: argparse.Namespace, job: Job) -> Engine:
    require("transformers")
    return ContinuousBatches(options, job)


if __name__ == "__main__":
    serve(load, max_batch_tokens=512, max_requests=32)
