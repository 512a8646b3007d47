"""The parameters of one request as vLLM takes them.

Ends are found as for the native engine (`generations.py`): vLLM gets end-of-sequence tokens as stop
tokens, so that it lets go of a request in the step in which it ends, and no stop strings.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from blendrun.data.structures import Structure
from blendrun.engine.requests import EngineRequests

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_STRUCTURE_FIELDS = {"json_schema": "json", "regex": "regex", "grammar": "grammar"}


@dataclass(frozen=True, slots=True)
class ParamsFactory:
    """Makes `vllm.SamplingParams`; equal ones may be one object, which vLLM copies."""

    requests: EngineRequests
    eos_token_ids: tuple[int, ...]

    def make(self, request: int, num_begun: int) -> Any:
        """Of a request that has `num_begun` output tokens already.

        Raises:
            what vLLM raises for values that it refuses.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        columns = self.requests
        temperature = float(columns.temperature[request])
        structure = columns.structure.get(request)
        stops = set(columns.stop_token_ids.get(request, ()))
        if structure is not None or not columns.ignore_eos[request]:
            stops.update(self.eos_token_ids)
        asked: dict[str, Any] = {
            "temperature": temperature,
            "max_tokens": max(int(columns.max_tokens[request]) - num_begun, 1),
            "stop_token_ids": sorted(stops),
            "ignore_eos": True,  # what vLLM believes to be one; ours are among the stops
            "detokenize": False,
            "output_kind": RequestOutputKind.DELTA,
        }
        if temperature > 0:
            asked |= {
                "top_p": float(columns.top_p[request]),
                "top_k": int(columns.top_k[request]),
                "min_p": float(columns.min_p[request]),
                "seed": draw_seed(columns, request),
            }
        if columns.has_edits[request]:
            asked |= {name: float(getattr(columns, name)[request]) for name in _PENALTIES}
            asked["logit_bias"] = dict(columns.logit_bias.get(request, ())) or None
        if columns.logprobs[request] >= 0:
            asked["logprobs"] = int(columns.logprobs[request])
        if columns.score_start[request] >= 0:
            asked["prompt_logprobs"] = 1  # the best one tells whether the token is
        elif columns.prompt_logprobs[request] >= 0:
            asked["prompt_logprobs"] = int(columns.prompt_logprobs[request])
        if structure is not None:
            asked["structured_outputs"] = _structured(structure)
        return SamplingParams(**asked)


def draw_seed(requests: EngineRequests, request: int) -> int:
    """A seed for vLLM's draws: of seed, content of the row and which of its answers it is."""
    parts = (requests.seed[request], requests.draw_key[request], requests.sample[request])
    digest = blake2b(np.array(parts, np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _structured(structure: Structure) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    kind, text = structure
    return StructuredOutputsParams(**{_STRUCTURE_FIELDS[kind]: text})


def can_continue(requests: EngineRequests, request: int) -> bool:
    """Whether an answer that has begun can go on as a longer prompt and come out the same.

    vLLM takes the tokens so far for a part of the prompt: its draws begin anew, and so do
    structures and the penalties that count outputs only.
    """
    counts_output = (
        requests.presence_penalty[request] != 0 or requests.frequency_penalty[request] != 0
    )
    is_drawn = requests.temperature[request] > 0
    return not (is_drawn or counts_output or requests.has_structure[request])
