"""OpenVINO GenAI's continuous batching on the CPU: activations, weights and KV cache in bf16,
shared prefixes cached.

The checkpoint is exported once to OpenVINO's format, beside it. The library keeps no count of
cached tokens.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from harness import Answers, Engine, Job, require, serve


class OpenVinoBatches:
    def __init__(self, options: argparse.Namespace) -> None:
        import numpy as np
        import openvino
        import openvino_genai

        self.version = openvino_genai.__version__
        self._np, self._tensor, self._genai = np, openvino.Tensor, openvino_genai
        self._folder = exported(options.model)
        self._scheduler = openvino_genai.SchedulerConfig()
        self._scheduler.cache_size = options.kv_gib
        self._scheduler.max_num_batched_tokens = options.max_num_batched_tokens
        self._scheduler.max_num_seqs = options.max_num_seqs
        self._scheduler.enable_prefix_caching = True
        self._scheduler.dynamic_split_fuse = True
        self.reset()

    def reset(self) -> None:
        self._pipeline = None  # frees the KV cache before the next one is made
        self._pipeline = self._genai.ContinuousBatchingPipeline(
            self._folder,
            self._scheduler,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "bf16",
                "KV_CACHE_PRECISION": "bf16",  # the default has 8 bits
                "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
            },
        )

    def generate(self, job: Job) -> Answers:
        ids = [self._tensor(self._np.array([prompt], self._np.int64)) for prompt in job.prompts]
        results = self._pipeline.generate(ids, [self._config(n) for n in job.max_tokens])
        return Answers([list(result.m_generation_ids[0]) for result in results])

    def _config(self, num_new: int) -> object:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = num_new
        config.ignore_eos = True
        config.do_sample = False
        return config


def exported(model: Path) -> Path:
    """The folder with the model in OpenVINO's format, made if it is not there yet."""
    folder = model.with_name(model.name + "-openvino")
    if not folder.is_dir():
        making = folder.with_suffix(".part")
        command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        task = ["--task", "text-generation-with-past", "--weight-format", "fp32"]
        subprocess.run([*command, "-m", str(model), *task, str(making)], check=True)
        making.rename(folder)
    return folder


def load(options: argparse.Namespace, _job: Job) -> Engine:
    for module in ("openvino_genai", "optimum.intel"):
        require(module)
    return OpenVinoBatches(options)


if __name__ == "__main__":
    serve(load, max_num_batched_tokens=2048, max_num_seqs=256)
