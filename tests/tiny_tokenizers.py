"""Small tokenizers: one of single bytes, and one as SentencePiece models have it."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

EOS, OTHER_EOS = 256, 257  # special tokens of `byte_tokenizer`


def byte_tokenizer() -> Tokenizer:
    """Token b is byte b; tokens 256 and 257 are special."""
    alphabet = _byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>", "<other>"])
    return tokenizer


def _byte_alphabet() -> list[str]:
    """The character for each byte, found out by encoding texts that hold it."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found: dict[int, str] = {}
    for code in [*range(0x800), *range(0x800, 0x110000, 0x400)]:
        if not 0xD800 <= code < 0xE000:
            ((chars, _),) = level.pre_tokenize_str(chr(code))
            found |= dict(zip(chr(code).encode(), chars, strict=True))
    unused = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(found.values()))
    missing = sorted(set(range(256)) - set(found))  # bytes that no text holds
    found |= dict(zip(missing, unused, strict=True))
    return [found[byte] for byte in range(256)]


def sentencepiece_tokenizer() -> Tokenizer:
    """A few words, single bytes as fallback, one space before a text that decoding takes off."""
    pieces = ["▁", "▁the", "▁fox", "the", "a", "é", "→", "▁a"]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {piece: 256 + i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer
