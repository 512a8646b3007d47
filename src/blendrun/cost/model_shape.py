"""The figures of a model that decide what it costs: widths, layers, parameters, KV bytes.

Comes from a Hugging Face config or from a file in `configs/models`; no weights are needed.
Knows nothing of machines or requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from blendrun.config import from_table, read_toml, shipped_config, shipped_names
from blendrun.cost.arrays import Floats, Numbers, as_floats
from blendrun.cost.hf_config import LATENT_TYPES, Fields
from blendrun.cost.param_count import count_params
from blendrun.cost.tensor_shards import valid_tp_sizes
from blendrun.errors import InputError

BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class _ShapeFile:
    """What a file in `configs/models` holds; `config` uses the field names of `config.json`."""

    name: str
    source: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of a decoder-only model. Widths count elements, parameters count weights."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    body_params: int  # the layers' parameters that one token passes through (active experts)
    head_params: int  # vocab × hidden, also where the head is the embedding table
    total_params: int  # everything in memory
    latent_width: int = 0  # MLA: elements cached per token and layer; 0 = K and V heads
    num_experts: int = 0
    experts_per_token: int = 0
    num_expert_layers: int = 0
    expert_params: int = 0  # of one routed expert of one layer
    layer_weight_bits: float | None = None  # of quantised layers; None: as wide as the rest

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], name: str = "model") -> Self:
        """Shape from the table of a `config.json`.

        Raises:
            InputError: a field is missing or unusable, or the family is not known here.
        """
        fields = Fields(config, name)
        model_type = fields.model_type
        params = count_params(fields)
        return cls(
            name=name,
            num_layers=fields.integer("num_hidden_layers"),
            hidden_size=fields.integer("hidden_size"),
            num_heads=fields.integer("num_attention_heads"),
            num_kv_heads=1 if model_type in LATENT_TYPES else fields.num_kv_heads,
            head_dim=fields.head_dim,
            intermediate_size=fields.integer("intermediate_size"),
            vocab_size=fields.integer("vocab_size"),
            max_position=fields.integer("max_position_embeddings"),
            latent_width=fields.latent_width,
            layer_weight_bits=fields.layer_weight_bits,
            **{field: getattr(params, field) for field in params.__slots__},
        )

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Shape from a file with `name`, `source` and a `[config]` table.

        Raises:
            InputError: the file cannot be read, or has unknown, missing or unusable entries.
        """
        file = from_table(_ShapeFile, read_toml(path), str(path))
        return cls.from_hf_config(file.config, file.name)

    @classmethod
    def load(cls, spec: str) -> Self:
        """Shape from the path of a TOML file, or from the name of a shipped one.

        `configs/models/NAME.toml` finds the shipped file from any folder.

        Raises:
            InputError: neither exists, or the file is unusable.
        """
        path = Path(spec)
        if path.is_file():
            return cls.from_toml(path)
        shipped = shipped_config("models", path.name.removesuffix(".toml"))
        if shipped is None or path.parent.as_posix() not in (".", "configs/models"):
            raise InputError(
                f"no model shape {spec!r}", f"shipped: {', '.join(shipped_names('models'))}"
            )
        return cls.from_toml(shipped)

    def touched_bytes(self, num_tokens: Numbers) -> Floats:
        """Bytes of `touched_params`; what is not quantised is bf16."""
        layers = self.touched_params(num_tokens) - self.head_params
        return as_floats(self._bytes(layers, self.head_params, BF16_BYTES))

    def _bytes(self, layers: Any, others: int, element_bytes: int) -> Any:
        if self.layer_weight_bits is None:
            return (layers + others) * element_bytes
        return layers * self.layer_weight_bits / 8 + others * element_bytes

    @property
    def query_width(self) -> int:
        """Width of all query heads; may differ from the hidden width."""
        return self.num_heads * self.head_dim

    def weight_bytes(self, element_bytes: int = BF16_BYTES) -> int:
        """Memory of all weights, before they are divided among ranks.

        `element_bytes`: of one that is not quantised, which embedding and head never are.
        """
        unused = (self.num_experts - self.experts_per_token) * self.expert_params
        layers = self.body_params + self.num_expert_layers * unused
        return int(self._bytes(layers, self.total_params - layers, element_bytes))

    def kv_bytes_per_token(self, tp: int = 1, element_bytes: int = BF16_BYTES) -> int:
        """Bytes that one cached token takes on one of `tp` ranks, over all layers.

        Ranks beyond the number of KV heads repeat heads, and a latent cache (MLA) lies on every
        rank in full: neither gets smaller with more ranks.
        """
        width = self.latent_width or 2 * -(-self.num_kv_heads // tp) * self.head_dim
        return self.num_layers * width * element_bytes

    def valid_tp_sizes(self) -> tuple[int, ...]:
        """Tensor-parallel sizes that divide the heads evenly, ascending."""
        return valid_tp_sizes(self.num_heads, self.num_kv_heads)

    def touched_params(self, num_tokens: Numbers) -> Floats:
        """Weights that a step over `num_tokens` tokens reads: layers and output head.

        With experts, those that at least one token is expected to choose when choices are
        uniform and independent; dense models read the same whatever the number.
        """
        read = as_floats(self.body_params + self.head_params)
        if not self.num_experts:
            return read + np.zeros_like(as_floats(num_tokens))
        miss = (1 - self.experts_per_token / self.num_experts) ** as_floats(num_tokens)
        more = self.num_experts * (1 - miss) - self.experts_per_token
        return read + self.num_expert_layers * self.expert_params * more
