"""Token ids to text: that of the tokenizers library, and one U+FFFD for a character cut off."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from blendrun.data.detokenizer import Detokenizer
from blendrun.errors import InputError
from tiny_models import write_tokenizer
from tiny_tokenizers import byte_tokenizer, sentencepiece_tokenizer


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("bpe"))
    tokenizer.add_tokens(["<think me>", "<tool>"])
    return tokenizer


@given(ids=st.lists(st.integers(0, 330), max_size=12))
def test_any_tokens_of_byte_level_bpe_give_the_text_of_the_library(bpe: Tokenizer, ids: list[int]):
    assert Detokenizer(bpe).decode(ids) == bpe.decode(ids)


@given(text=st.text(max_size=20))
def test_text_survives_encoding_and_decoding(bpe: Tokenizer, text: str):
    assert Detokenizer(bpe).decode(bpe.encode(text).ids) == text


@given(text=st.text("athefox→é🙂 ", max_size=12))
def test_sentencepiece_texts_are_those_of_the_library(text: str):
    tokenizer = sentencepiece_tokenizer()
    vocab = tokenizer.get_vocab()
    ids = []
    for char in text:
        piece = char.replace(" ", "▁")
        ids += [vocab[piece]] if piece in vocab else [*char.encode()]
    assert Detokenizer(tokenizer).decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("make", [byte_tokenizer, sentencepiece_tokenizer])
def test_an_emoji_of_byte_tokens_is_one_character_and_half_of_one_a_single_mark(make):
    detokenizer = Detokenizer(make())
    emoji = [*"🙂".encode()]
    assert detokenizer.decode(emoji) == "🙂"
    for cut in (1, 2, 3):
        assert detokenizer.decode(emoji[:cut]) == "\ufffd"
        assert detokenizer.decode([*b"a", *emoji[:cut], *b"b"]) == "a\ufffdb"


def test_the_first_space_goes_once_where_the_tokenizer_takes_it_off():
    tokenizer = sentencepiece_tokenizer()
    ids = [tokenizer.token_to_id(piece) for piece in ("</s>", "▁", "▁the", "▁fox", "</s>")]
    assert Detokenizer(tokenizer).decode(ids) == tokenizer.decode(ids) == " the fox"


@given(ids=st.lists(st.integers(0, 330), max_size=12))
def test_another_decoder_is_left_to_the_library(bpe: Tokenizer, ids: list[int]):
    other = Tokenizer.from_str(bpe.to_str())
    other.decoder = decoders.Metaspace()
    detokenizer = Detokenizer(other)
    assert not detokenizer.has_pieces
    assert detokenizer.decode(ids) == other.decode(ids)


def test_a_tokenizer_without_a_decoder_is_left_to_the_library(bpe: Tokenizer):
    other = Tokenizer(bpe.model)
    assert Detokenizer(other).decode([40, 41]) == other.decode([40, 41])


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        Detokenizer.from_folder(tmp_path)
