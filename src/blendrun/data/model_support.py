"""Which checkpoints blendrun runs, and a refusal by name for every other kind.

Works on the config and the names of the files beside it, so that a plan fails before any weight
is read. The decoder relies on what is checked here.
"""

from pathlib import Path
from typing import Any

from blendrun.errors import InputError

SUPPORTED = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_ROPE_NEEDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
          "vocab_size", "max_position_embeddings")  # fmt: skip
_EXPERT_SIZES = {
    "MixtralForCausalLM": ("num_local_experts", "num_experts_per_tok"),
    "Qwen3MoeForCausalLM": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
}
_MULTIMODAL = ("vision_config", "audio_config", "visual", "image_token_id", "mm_vision_tower")
_EMBEDDING_FILES = ("modules.json", "config_sentence_transformers.json", "1_Pooling")
_GENERATING_MODELS = ("LMHeadModel", "ChatModel", "ChatGLMModel", "OmniModel")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MISTRAL_WINDOW = 4096  # what transformers assumes where a Mistral config does not say


def check_supported(config: dict[str, Any], folder: Path) -> None:
    """Checks the model that `config` (a Hugging Face config.json) and `folder` describe.

    Raises:
        InputError: naming what is refused; for an architecture, with the list of supported ones.
    """
    _check_kind(config, folder)
    architecture(config)
    check_sizes(config)
    if config.get("hidden_act", "silu") != "silu":
        raise InputError(f"activation {config['hidden_act']!r} is not supported (only silu)")
    _check_rope(config)
    window = active_window(config)
    if window is not None:
        raise InputError(
            f"sliding-window attention ({window} tokens) is not supported",
            "use a model with full attention, or a config whose max_position_embeddings "
            "is at most the window",
        )


def check_generates(config: dict[str, Any], folder: Path) -> None:
    """Checks that `config` is of a model that generates, all that is asked where vLLM runs it.

    Raises:
        InputError: an embedding, encoder or classification model, or one of no kind.
    """
    names = _architectures(config)
    if not names and not config.get("model_type"):
        raise InputError("config.json lacks architectures and model_type")
    _check_task(config, folder, [name for name in names if not _may_generate(name)], None)


def check_files(folder: Path, weights: bool) -> None:
    """Checks that `folder` is a checkpoint whose weights, where there are some, are safetensors.

    Raises:
        InputError: a LoRA adapter, a folder without config.json, pickled weights, no weights.
    """
    if (folder / "adapter_config.json").is_file():
        raise InputError(f"{folder} is a LoRA adapter, not a model", "merge it into its base model")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json: it is no checkpoint folder")
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise InputError(
            f"{folder} holds pickled weights only ({pickles[0]}), which can run code when opened",
            "use a safetensors version of the model",
        )
    if weights:
        raise InputError(f"{folder} has no *.safetensors weights")


def architecture(config: dict[str, Any]) -> str:
    """The supported class name of a config, by `architectures`, else by `model_type`.

    Raises:
        InputError: the architecture is not supported.
    """
    names = config.get("architectures") or [
        name for name, model_type in SUPPORTED.items() if model_type == config.get("model_type")
    ]
    if len(names) != 1 or names[0] not in SUPPORTED:
        found = ", ".join(map(str, names)) or repr(config.get("model_type"))
        raise InputError(
            f"model architecture {found} is not supported", f"supported: {', '.join(SUPPORTED)}"
        )
    return str(names[0])


def rope_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Rope settings in transformers 5's spelling, whichever spelling `config` uses.

    Always has rope_type and rope_theta; other keys as the type needs them.
    """
    settings = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    legacy_type = settings.pop("type", None)
    settings.setdefault("rope_type", legacy_type or "default")
    settings.setdefault("rope_theta", config.get("rope_theta") or 10000.0)
    settings.setdefault("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
    if settings["rope_type"] in ("llama3", "yarn"):
        original = config.get("original_max_position_embeddings")
        settings.setdefault(
            "original_max_position_embeddings", original or config["max_position_embeddings"]
        )
    return settings


def active_window(config: dict[str, Any]) -> int | None:
    """Window in tokens of sliding attention that some context would reach, else None."""
    kind = architecture(config)
    if kind == "LlamaForCausalLM":
        return None
    if kind == "MistralForCausalLM":
        window = config.get("sliding_window", _MISTRAL_WINDOW)
    elif kind == "MixtralForCausalLM":
        window = config.get("sliding_window")
    elif kind == "Qwen3MoeForCausalLM":  # all layers or none
        window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    elif config.get("use_sliding_window", False):
        layer_types = config.get("layer_types")
        num_layers = config["num_hidden_layers"]
        if layer_types is None and config.get("max_window_layers", 28) >= num_layers:
            return None
        if layer_types is not None and "sliding_attention" not in layer_types:
            return None
        window = config.get("sliding_window", 4096)
    else:
        window = None
    reachable = window is not None and window < config["max_position_embeddings"]
    return int(window) if reachable else None


def _check_kind(config: dict[str, Any], folder: Path) -> None:
    if config.get("auto_map"):
        raise InputError("the model needs its own code (trust_remote_code), which is never run")
    quantised = config.get("quantization_config")
    if quantised or (folder / "quantize_config.json").is_file():
        method = (quantised or {}).get("quant_method", "unknown method")
        raise InputError(
            f"quantised checkpoints ({method}) are not supported",
            "use the bf16 version, or a GGUF file",
        )
    names = _architectures(config)
    vision = [key for key in _MULTIMODAL if key in config]
    if vision or any(name.endswith("ForConditionalGeneration") for name in names):
        raise InputError(
            f"vision and other multimodal models are not supported ({', '.join(vision or names)})",
            f"supported: {', '.join(SUPPORTED)}",
        )
    wrong_task = [name for name in names if not name.endswith("ForCausalLM")]
    _check_task(config, folder, wrong_task, f"supported: {', '.join(SUPPORTED)}")


def _check_task(
    config: dict[str, Any], folder: Path, wrong_task: list[str], hint: str | None
) -> None:
    embedding = [name for name in _EMBEDDING_FILES if (folder / name).exists()]
    if embedding or wrong_task or config.get("is_encoder_decoder"):
        found = wrong_task or embedding or _architectures(config)
        raise InputError(
            "only causal language models generate text; embedding, encoder and classification "
            f"models are not supported ({', '.join(found)})",
            hint,
        )


def _architectures(config: dict[str, Any]) -> list[str]:
    return [str(name) for name in config.get("architectures") or ()]


def _may_generate(name: str) -> bool:
    """Whether a class of this name may be one that vLLM generates with, which knows many kinds."""
    if name.endswith("Model"):
        return name.endswith(_GENERATING_MODELS)
    return "For" not in name or "ForCausalLM" in name or name.endswith("ForConditionalGeneration")


def check_sizes(config: dict[str, Any]) -> None:
    """Checks that the config of a supported architecture has all sizes that the decoder needs.

    Raises:
        InputError: naming what is missing.
    """
    missing = [key for key in _SIZES if not isinstance(config.get(key), int)]
    if missing:
        raise InputError(f"config.json lacks {', '.join(missing)}")
    keys = _EXPERT_SIZES.get(architecture(config))
    if keys is None:
        return
    # transformers 5 writes num_local_experts for every family
    sizes: dict[str, Any] = {keys[0]: config.get("num_local_experts"), **config}
    missing = [key for key in keys if not isinstance(sizes.get(key), int)]
    if missing:
        raise InputError(f"config.json lacks {', '.join(missing)}")
    num_experts, chosen = sizes[keys[0]], sizes["num_experts_per_tok"]
    if not 0 < chosen <= num_experts:
        raise InputError(f"config.json has each token visit {chosen} of {num_experts} experts")


def _check_rope(config: dict[str, Any]) -> None:
    rope = rope_settings(config)
    if rope["rope_type"] not in ROPE_TYPES:
        raise InputError(
            f"rope type {rope['rope_type']!r} is not supported",
            f"supported: {', '.join(ROPE_TYPES)}",
        )
    if rope["partial_rotary_factor"] != 1.0:
        raise InputError("partial rotary embeddings are not supported")
    missing = [key for key in _ROPE_NEEDS.get(rope["rope_type"], ()) if key not in rope]
    if missing:
        raise InputError(
            f"rope type {rope['rope_type']!r} lacks {', '.join(missing)} in config.json"
        )
