"""Stop strings against the whole text, read again after every token by the tokenizers library."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from blendrun.data.detokenizer import Detokenizer
from blendrun.engine.stop_strings import Stopped, StopSearch
from tiny_models import write_tokenizer
from tiny_tokenizers import byte_tokenizer, sentencepiece_tokenizer


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_tokenizer(tmp_path_factory.mktemp("bpe"))


def search(tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...]) -> tuple[int, Stopped]:
    """How many tokens it took, and what was found."""
    searching = StopSearch(stops, Detokenizer(tokenizer))
    for count in range(1, len(ids) + 1):
        found = searching.add(ids[:count])
        if found is not None:
            return count, found
    return len(ids), None


def expected(tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...]) -> tuple[int, Stopped]:
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        found = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
        if found:
            _, start, stop = min(found)
            return count, Stopped(text[:start], stop)
    return len(ids), None


words = st.text("the dogjumps42→ö🙂", max_size=30)
stop_lists = st.lists(
    st.sampled_from(["the", "he ", "h", "dog", "→", "ö🙂", "🙂", " ", "mps4", "e d", "ps"])
    | st.text("the →ö🙂", min_size=1, max_size=4),
    min_size=1,
    max_size=4,
    unique=True,
)


@settings(max_examples=300)
@given(text=words, cut=st.integers(0, 60), stops=stop_lists)
def test_a_text_of_byte_level_bpe(bpe: Tokenizer, text: str, cut: int, stops: list[str]):
    ids = bpe.encode(text).ids[: cut or None]
    assert search(bpe, ids, tuple(stops)) == expected(bpe, ids, tuple(stops))


@settings(max_examples=300)
@given(ids=st.lists(st.integers(0, 319), max_size=25), stops=stop_lists)
def test_any_tokens_of_byte_level_bpe(bpe: Tokenizer, ids: list[int], stops: list[str]):
    assert search(bpe, ids, tuple(stops)) == expected(bpe, ids, tuple(stops))


@settings(max_examples=300)
@given(ids=st.lists(st.integers(0, 319), max_size=25), cut=st.integers(0, 25), stops=stop_lists)
def test_an_answer_that_goes_on_finds_what_it_would_have_found(
    bpe: Tokenizer, ids: list[int], cut: int, stops: list[str]
):
    count, found = search(bpe, ids, tuple(stops))
    cut = min(cut, count - 1 if found else count)
    searching = StopSearch(tuple(stops), Detokenizer(bpe))
    searching.catch_up(ids[:cut])
    again = [searching.add(ids[:n]) for n in range(cut + 1, count + 1)]
    assert [one for one in again if one] == ([found] if found else [])
    if found:
        assert again[-1] == found


@given(ids=st.lists(st.integers(256, 264), max_size=25), stops=stop_lists)
def test_words_of_sentencepiece(ids: list[int], stops: list[str]):
    tokenizer = sentencepiece_tokenizer()
    assert search(tokenizer, ids, tuple(stops)) == expected(tokenizer, ids, tuple(stops))


@given(ids=st.lists(st.integers(0, 319), max_size=12), stops=stop_lists)
def test_a_tokenizer_that_only_the_library_can_read(
    bpe: Tokenizer, ids: list[int], stops: list[str]
):
    other = Tokenizer.from_str(bpe.to_str())
    other.decoder = decoders.Metaspace()
    assert search(other, ids, tuple(stops)) == expected(other, ids, tuple(stops))


@pytest.mark.parametrize("stops", [("b", "ab"), ("ab", "b")])
def test_of_stops_complete_at_the_same_place_the_longest_counts(stops: tuple[str, ...]):
    assert search(byte_tokenizer(), [*b"xxab"], stops) == (4, Stopped("xx", "ab"))


@pytest.mark.parametrize("stops", [("ab", "abc"), ("abc", "ab")])
def test_a_stop_that_begins_another_ends_the_answer_first(stops: tuple[str, ...], bpe: Tokenizer):
    assert search(byte_tokenizer(), [*b"xxabc"], stops) == (4, Stopped("xx", "ab"))
    # also where one token brings both to an end
    (token,) = bpe.encode(" jumps").ids
    assert search(bpe, [token], (" jumps", " jump")) == (1, Stopped("", " jump"))


def test_a_stop_longer_than_any_token_is_found_over_special_tokens():
    stop = "0123456789" * 30
    ids = [token for byte in b"x" + stop.encode() for token in (byte, 256)]
    assert search(byte_tokenizer(), ids, (stop,)) == (len(ids) - 1, Stopped("x", stop))


def test_a_stop_whose_bytes_lie_in_several_tokens():
    ids = [*"a🙂".encode(), *"→b".encode()]
    assert search(byte_tokenizer(), ids, ("→",)) == (8, Stopped("a🙂", "→"))
    # its first bytes alone are no stop, and half a character before it is one mark
    assert search(byte_tokenizer(), [*"→".encode()][:2], ("→",)) == (2, None)
    assert search(byte_tokenizer(), [0xF0, 0x9F, *"→".encode()], ("→",))[1] == Stopped(
        "\ufffd", "→"
    )


def test_a_mark_for_bytes_that_are_no_text_can_be_part_of_a_stop():
    assert search(byte_tokenizer(), [*b"a", 0xF0, *b"bc"], ("\ufffdb",)) == (
        3,
        Stopped("a", "\ufffdb"),
    )
    # a character that is not complete yet is no mark
    assert search(byte_tokenizer(), [*"a🙂b".encode(), 0xFF], ("\ufffd",)) == (
        7,
        Stopped("a🙂b", "\ufffd"),
    )
