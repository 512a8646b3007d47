"""transformers' `generate` in static batches, as well as a sensible user would do it.

bfloat16, left padding, rows sorted by how much they ask for and then by prompt length, so that
the rows of a batch end together. A batch runs to the largest `max_tokens` in it; only the tokens
that a row asked for are counted.
"""

import argparse

from harness import Answers, Engine, Job, require, serve


class StaticBatches:
    def __init__(self, options: argparse.Namespace) -> None:
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        self.version = transformers.__version__
        self._torch = torch
        self._config = transformers.GenerationConfig
        self._batch_size = options.batch_size
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=torch.bfloat16
        ).eval()
        self._model.generation_config = self._config()  # no sampling defaults of the model

    def reset(self) -> None:
        pass  # nothing outlives a batch

    def generate(self, job: Job) -> Answers:
        order = sorted(
            range(len(job.prompts)), key=lambda i: (-job.max_tokens[i], -len(job.prompts[i]))
        )
        tokens: list[list[int]] = [[] for _ in order]
        for begin in range(0, len(order), self._batch_size):
            batch = order[begin : begin + self._batch_size]
            answers = self._run(
                [job.prompts[i] for i in batch], max(job.max_tokens[i] for i in batch)
            )
            for i, answer in zip(batch, answers, strict=True):
                tokens[i] = answer[: job.max_tokens[i]]
        return Answers(tokens, sum(map(len, job.prompts)))

    def _run(self, prompts: list[list[int]], num_new: int) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = self._torch.zeros(len(prompts), width, dtype=self._torch.int64)
        mask = self._torch.zeros_like(ids)
        for i, prompt in enumerate(prompts):
            ids[i, width - len(prompt) :] = self._torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        # no end-of-sequence token: every row makes num_new tokens
        config = self._config(
            do_sample=False, max_new_tokens=num_new, min_new_tokens=num_new, pad_token_id=0
        )
        with self._torch.inference_mode():
            out = self._model.generate(ids, attention_mask=mask, generation_config=config)
        answers: list[list[int]] = out[:, width:].tolist()
        return answers


def load(options: argparse.Namespace, _job: Job) -> Engine:
    require("transformers")
    return StaticBatches(options)


if __name__ == "__main__":
    serve(load, batch_size=8)
