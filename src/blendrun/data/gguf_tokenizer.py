"""`tokenizer.json` and `tokenizer_config.json` out of GGUF metadata.

Two kinds: byte-level BPE ("gpt2") with the pre-tokenizer that the file names, and SentencePiece
BPE with byte fallback ("llama"), whose merges follow from the scores. Knows no weights.
"""

from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from blendrun.errors import InputError

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_SPECIAL_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token",
                  "padding": "pad_token"}  # fmt: skip

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_REGEX_SPLITS = {
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "smaug-bpe": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "tekken": _TEKKEN_SPLIT,
}
_GPT2_SPLITS = ("gpt-2", "default", "smollm")
_WHOLE_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3", "tekken")
_NFC = ("qwen2", "deepseek-r1-qwen")


def build_tokenizer(metadata: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer and its `tokenizer_config.json`.

    Raises:
        InputError: a tokenizer kind or pre-tokenizer that is not supported.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata)
    else:
        raise InputError(
            f"GGUF tokenizer {kind!r} is not supported",
            "supported: gpt2 (BPE), llama (SentencePiece)",
        )
    _add_special_tokens(tokenizer, metadata)
    config = _tokenizer_config(metadata)
    tokenizer.post_processor = _flag_processor(config, tokenizer)
    return tokenizer, config


def _flag_processor(config: dict[str, Any], tokenizer: Tokenizer) -> TemplateProcessing:
    """Post-processor for the flags add_bos_token and add_eos_token of a tokenizer_config."""
    bos = token_text(config.get("bos_token")) if config.get("add_bos_token") else None
    eos = token_text(config.get("eos_token")) if config.get("add_eos_token") else None
    pieces = [token for token in (bos, "$A", eos) if token is not None]
    special = [(token, tokenizer.token_to_id(token)) for token in (bos, eos) if token is not None]
    return TemplateProcessing(single=" ".join(pieces), special_tokens=special)


def token_text(token: Any) -> str | None:
    """The text of a special token, which a config writes as a string or as a table."""
    return token.get("content") if isinstance(token, dict) else token


def _byte_level(metadata: dict[str, Any]) -> Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre")
    known = (*_GPT2_SPLITS, *_REGEX_SPLITS)
    if pre not in known:
        raise InputError(
            f"GGUF pre-tokenizer {pre!r} is not supported", f"supported: {', '.join(sorted(known))}"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    model = BPE(vocab=_vocab(metadata), merges=merges, ignore_merges=pre in _WHOLE_WORDS_FIRST)
    tokenizer = Tokenizer(model)
    if pre in _REGEX_SPLITS:
        split = pre_tokenizers.Split(Regex(_REGEX_SPLITS[pre]), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    if pre in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: dict[str, Any]) -> Tokenizer:
    tokens, types = metadata["tokenizer.ggml.tokens"], _types(metadata)
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    model = BPE(
        vocab=_vocab(metadata),
        merges=_merges_from_scores(tokens, metadata["tokenizer.ggml.scores"], types),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first" if prefix else "never", split=False
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*steps, decoders.Strip(content=" ", left=1)] if prefix else steps
    )
    return tokenizer


def _merges_from_scores(
    tokens: list[str], scores: list[float], types: list[int]
) -> list[tuple[str, str]]:
    """Pairs that make a token, the best score first: SentencePiece merges by score."""
    skipped = (_UNKNOWN, _CONTROL, _UNUSED, _BYTE)
    score_of = {
        token: score
        for token, score, kind in zip(tokens, scores, types, strict=True)
        if kind not in skipped
    }
    merges = [
        (-score, -cut, token[:cut], token[cut:])
        for token, score in score_of.items()
        for cut in range(1, len(token))
        if token[:cut] in score_of and token[cut:] in score_of
    ]
    return [(left, right) for _, _, left, right in sorted(merges, key=lambda merge: merge[:2])]


def _vocab(metadata: dict[str, Any]) -> dict[str, int]:
    tokens, types = metadata["tokenizer.ggml.tokens"], _types(metadata)
    # Unused entries pad the embedding matrix; no text may become one of them.
    pairs: Iterable[tuple[int, str, int]] = zip(range(len(tokens)), tokens, types, strict=True)
    return {token: token_id for token_id, token, kind in pairs if kind != _UNUSED}


def _types(metadata: dict[str, Any]) -> list[int]:
    tokens = metadata["tokenizer.ggml.tokens"]
    return metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)


def _add_special_tokens(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    tokens, types = metadata["tokenizer.ggml.tokens"], _types(metadata)
    pairs = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens(
        [
            AddedToken(t, normalized=False, special=True)
            for t, k in pairs
            if k in (_CONTROL, _UNKNOWN)
        ]
    )
    # A SentencePiece spelling of a space inside one would not match the text: left to the merges.
    plain = [
        AddedToken(t, normalized=False) for t, k in pairs if k == _USER_DEFINED and "▁" not in t
    ]
    tokenizer.add_tokens(plain)


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    sentencepiece = metadata["tokenizer.ggml.model"] == "llama"
    # llama.cpp's own defaults where the file is silent.
    add_bos = sentencepiece or metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS_FIRST
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", add_bos),
        "add_eos_token": metadata.get("tokenizer.ggml.add_eos_token", False),
    }
    for kind, name in _SPECIAL_NAMES.items():
        token_id = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if token_id is not None and token_id < len(tokens):
            config[name] = tokens[token_id]
    for flag, name in (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")):
        config[flag] = bool(config[flag]) and name in config
    if isinstance(metadata.get("tokenizer.chat_template"), str):
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config
