"""What a check is of: a device and sizes, real or tiny. Travels to each section as JSON."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

# Llama-3.1-8B, as its config.json has it
LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
TINY = {
    **LLAMA_8B,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 384,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


@dataclass(frozen=True, slots=True)
class CheckOptions:
    dry_run: bool
    work: Path  # folder for what sections leave to each other
    requests: int  # of the job
    length_frac: float  # of the job's prompts and outputs
    copy_bytes: int
    gemm_tokens: tuple[int, ...]
    policies: tuple[str, ...]
    max_seqs: int
    measure_s: float  # for each figure
    attention: str = field(default="auto", kw_only=True)  # of profile and job
    cached_tokens: int  # of KV that calibration reads
    prefill_tokens: int
    long_len: int  # tokens of context of a decode there
    product_tokens: tuple[int, ...]  # of products there
    decodes: tuple[int, ...]  # of the steps whose overlap is measured
    chunk_tokens: tuple[int, ...]

    @classmethod
    def real(cls, work: Path) -> Self:
        return cls(
            dry_run=False,
            work=work,
            requests=600,
            length_frac=1.0,
            copy_bytes=4 << 30,
            gemm_tokens=(1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
            policies=("blend", "dfs", "arrival", "random"),
            max_seqs=512,
            measure_s=0.2,
            cached_tokens=256 * 1024,
            prefill_tokens=1024,
            long_len=1024,
            product_tokens=(1, 8, 32, 64, 128, 256, 384, 512, 768, 1024, 2048),
            decodes=(64, 256),
            chunk_tokens=(0, 512, 2048),
        )

    @classmethod
    def dry(cls, work: Path) -> Self:
        return cls(
            dry_run=True,
            work=work,
            requests=8,
            length_frac=0.02,
            copy_bytes=1 << 20,
            gemm_tokens=(1, 16),
            policies=("blend", "dfs", "arrival", "random"),
            max_seqs=8,
            measure_s=0.0,
            cached_tokens=1024,
            prefill_tokens=32,
            long_len=128,
            product_tokens=(1, 16),
            decodes=(4,),
            chunk_tokens=(0, 8),
        )

    @property
    def model_config(self) -> dict[str, Any]:
        return TINY if self.dry_run else LLAMA_8B

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"work": str(self.work)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        table = json.loads(text)
        lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
        return cls(**{**table, **lists, "work": Path(table["work"])})
