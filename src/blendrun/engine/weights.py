"""Weights of the Llama family from safetensors files, or drawn at random, in the decoder's order.

Every tensor of the checkpoint is copied straight into its place (cast on the way), so that the
peak is the model plus one tensor; of a tensor-parallel rank, its shard plus one part of a tensor,
and nothing else is read. Computes nothing.
"""

import zlib
from pathlib import Path

import torch

from blendrun.cost.tensor_shards import WHOLE, Shard
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.decoder_weights import DecoderWeights, empty_weights
from blendrun.engine.weight_files import StoredTensor, stored_tensors, weight_files
from blendrun.engine.weight_targets import Target, expert_spelling, targets_of
from blendrun.errors import InputError

_RANDOM_STD = 0.02  # as models are usually initialised


def load_weights(
    folder: Path,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    shard: Shard = WHOLE,
) -> DecoderWeights:
    """The weights in checkpoint `folder` as `dtype` on `device`, or a `shard` of them.

    `config` is that of the whole model.

    Raises:
        InputError: tensors are missing, unexpected or of the wrong shape, or a file is broken.
    """
    weights, files = empty_weights(config, dtype, device, shard), weight_files(folder)
    names = {stored.name for path in files for stored in stored_tensors(path)}
    targets = targets_of(weights, config, shard, expert_spelling(names))
    unexpected = {name for name in names - set(targets) if not _is_ignorable(name, config, shard)}
    for problem, found in (("lacks", set(targets) - names), ("has unexpected", unexpected)):
        if found:
            raise InputError(
                f"the checkpoint {folder} {problem} tensors: {_some(found)}",
                "its config.json and its weights do not belong together",
            )
    for path in files:
        for stored in stored_tensors(path):
            for target in targets.get(stored.name, ()):
                _fill(target, stored)
    return weights


def random_weights(
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    shard: Shard = WHOLE,
) -> DecoderWeights:
    """Weights of the right shapes and the usual size: for timing, where no checkpoint is at hand.

    The same for every shard on devices of one kind: a tensor's numbers depend on its name only.
    """
    weights = empty_weights(config, dtype, device, shard)
    random = torch.Generator(device)
    for name, targets in targets_of(weights, config, shard, "each").items():
        tensor = torch.empty(targets[0].shape, dtype=dtype, device=device)
        if tensor.dim() > 1:
            limit = _RANDOM_STD * 3**0.5
            tensor.uniform_(-limit, limit, generator=random.manual_seed(zlib.crc32(name.encode())))
        else:
            tensor.fill_(0.0 if name.endswith("bias") else 1.0)
        for target in targets:
            target.tensor.copy_(tensor[target.part])
    return weights


def _fill(target: Target, stored: StoredTensor) -> None:
    if target.shape != stored.shape:
        raise InputError(
            f"tensor {stored.name} in {stored.path} has shape {list(stored.shape)}, "
            f"the config asks for {list(target.shape)}"
        )
    tensor = stored.read(target.part)
    if not tensor.is_floating_point():
        raise InputError(
            f"tensor {stored.name} in {stored.path} is {tensor.dtype}: quantised weights"
        )
    target.tensor.copy_(tensor)


def _is_ignorable(name: str, config: DecoderConfig, shard: Shard) -> bool:
    """What says nothing new (stored rope frequencies, a copy of a tied head) or the first rank has.

    That is, biases of what the ranks add up.
    """
    if shard.rank > 0 and name.endswith(("o_proj.bias", "down_proj.bias")):
        return True
    return name.endswith("rotary_emb.inv_freq") or (
        config.tied_embeddings and name == "lm_head.weight"
    )


def _some(names: set[str]) -> str:
    shown = sorted(names)[:5]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
