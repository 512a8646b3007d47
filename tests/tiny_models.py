"""Tiny checkpoints with random weights, made on the spot with transformers.

`make_checkpoint` writes what a real one has: safetensors, config, generation config, a byte-level
tokenizer with a chat template.
"""

import json
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TRAINING_TEXT = (
    "the quick brown fox jumps over the lazy dog and then the dog jumps over the fox again",
    "question: what is the sum of 12 and 30? answer: the sum is 42, because 12 + 30 = 42.",
)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 2,
    # Far from the usual 0.02, so that logits of different tokens differ plainly.
    "initializer_range": 0.15,
}


def make_checkpoint(
    folder: Path, architecture: str = "LlamaForCausalLM", seed: int = 0, **overrides: Any
) -> Path:
    """Writes a tiny `architecture` checkpoint (float32) into `folder` and returns `folder`.

    `overrides` are keys of the Hugging Face config, e.g. tie_word_embeddings=True.
    """
    import torch
    import transformers

    tokenizer = write_tokenizer(folder)
    model_class = getattr(transformers, architecture)
    own = {"sliding_window": None} if architecture == "MistralForCausalLM" else {}
    settings = {**_SIZES, "vocab_size": tokenizer.get_vocab_size(), **own, **overrides}
    config = model_class.config_class(**settings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder, safe_serialization=True)
    return folder


def tiny_config(architecture: str = "LlamaForCausalLM", **overrides: Any) -> Any:
    """The `DecoderConfig` of such a checkpoint, with `overrides` of the Hugging Face config."""
    from blendrun.engine.decoder_config import DecoderConfig

    own = {"architectures": [architecture], "vocab_size": 320, "rms_norm_eps": 1e-5}
    return DecoderConfig.from_hf({**_SIZES, **own, **overrides})


def write_tokenizer(folder: Path) -> Any:
    """Writes tokenizer.json and tokenizer_config.json; returns the `tokenizers.Tokenizer`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tokenizer
