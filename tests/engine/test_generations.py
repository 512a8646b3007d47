"""When a request is over, and what its answer then is. Tokens here are bytes."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blendrun.data.detokenizer import Detokenizer
from blendrun.engine.generations import NON_FINITE, Generation, Generations
from tiny_tokenizers import EOS, OTHER_EOS, byte_tokenizer

PROMPT = [65, 66]
DETOKENIZER = Detokenizer(byte_tokenizer())


def make(max_tokens=1000, stop=(), ignore_eos=False, num_requests=1, eos=(EOS,), stop_token_ids=()):
    every = range(num_requests)
    requests = SimpleNamespace(
        max_tokens=np.full(num_requests, max_tokens, np.int32),
        ignore_eos=np.full(num_requests, ignore_eos),
        stop=dict.fromkeys(every, tuple(stop)) if stop else {},
        stop_token_ids=dict.fromkeys(every, tuple(stop_token_ids)) if stop_token_ids else {},
        has_structure=np.zeros(num_requests, bool),
        logprobs=np.full(num_requests, -1, np.int8),
        has_stops=np.full(num_requests, bool(stop or stop_token_ids)),
        prompt=lambda request: np.array(PROMPT, np.int32) + request,
    )

    class Sized(SimpleNamespace):
        def __len__(self) -> int:
            return num_requests

    return Generations(Sized(**vars(requests)), eos, DETOKENIZER)


def feed(generations: Generations, tokens) -> tuple[Generation | None, int]:
    """The end of request 0 and how many tokens it took; None if it goes on."""
    for count, token in enumerate(tokens, start=1):
        over, ended = generations.add(
            np.array([0], np.int32), np.array([token], np.int32), np.zeros(1, np.bool_)
        )
        assert over.tolist() == [bool(ended)]
        if ended:
            return ended[0], count
    return None, len(tokens)


def test_end_of_sequence_ends_and_stays_in_the_ids():
    end, _ = feed(make(), [*b"hi", EOS, *b"more"])
    assert end == Generation(0, [*b"hi", EOS], "hi", "stop")


def test_each_end_of_sequence_token_counts():
    assert feed(make(eos=(EOS, OTHER_EOS)), [*b"hi", OTHER_EOS])[0].finish_reason == "stop"


def test_end_of_sequence_is_ignored_where_asked():
    end, _ = feed(make(max_tokens=4, ignore_eos=True), [*b"hi", EOS, *b"more"])
    assert end == Generation(0, [*b"hi", EOS, *b"m"], "him", "length")


def test_max_tokens_ends_with_length():
    end, count = feed(make(max_tokens=3), b"hello")
    assert (end.text, end.finish_reason, count) == ("hel", "length", 3)


def test_end_of_sequence_as_the_last_allowed_token_is_a_stop():
    assert feed(make(max_tokens=3), [*b"hi", EOS])[0].finish_reason == "stop"


def test_a_stop_string_over_several_tokens_is_cut_and_its_tokens_kept():
    end, _ = feed(make(stop=["END"]), b"answer END more")
    assert end == Generation(0, list(b"answer END"), "answer ", "stop", stop_reason="END")


def test_a_stop_string_as_the_last_allowed_token_is_a_stop():
    end, _ = feed(make(max_tokens=3, stop=["c"]), b"abc")
    assert (end.text, end.finish_reason) == ("ab", "stop")


@pytest.mark.parametrize("stops", [("ab", "abc"), ("abc", "ab")])
def test_of_two_stops_the_shorter_prefix_ends_first(stops):
    end, count = feed(make(stop=stops), b"xxabc")
    assert (end.text, count) == ("xx", 4)


def test_a_begun_stop_that_breaks_off_does_not_hide_the_next():
    end, _ = feed(make(stop=["aab"]), b"xaaab")
    assert end.text == "xa"


def test_a_stop_string_of_several_bytes_a_character():
    end, _ = feed(make(stop=["→ö"]), "ä→→öz".encode())
    assert (end.text, end.finish_reason) == ("ä→", "stop")


def test_half_a_character_is_no_stop():
    end, count = feed(make(max_tokens=3, stop=["ö"]), "äö".encode())
    assert (count, end.finish_reason) == (3, "length")


@given(
    text=st.text("aböc", min_size=1, max_size=30),
    stops=st.lists(st.text("aböc", min_size=1, max_size=5), min_size=1, max_size=3),
)
@example(text="a" * 30, stops=["b", "aaaaa"])
def test_the_answer_ends_where_a_stop_is_first_complete(text: str, stops: list[str]):
    tokens = text.encode()
    end, count = feed(make(max_tokens=len(tokens), stop=stops), tokens)
    lengths = [n for n in range(1, len(text) + 1) if any(s in text[:n] for s in stops)]
    if not lengths:
        assert (end.text, end.finish_reason) == (text, "length")
        return
    shown = text[: lengths[0]]
    assert count == len(shown.encode())
    assert end.token_ids == list(shown.encode())
    assert end.text == shown[: min(shown.find(s) for s in stops if s in shown)]
    assert end.finish_reason == "stop"


def test_a_stop_token_ends_and_stays_in_the_ids_but_not_in_the_text():
    end, _ = feed(make(stop_token_ids=[ord("."), 7]), b"a. b")
    assert end == Generation(0, [*b"a."], "a", "stop", stop_reason=str(ord(".")))


def test_a_stop_token_counts_where_end_of_sequence_is_ignored():
    end, _ = feed(make(ignore_eos=True, stop_token_ids=[EOS]), [*b"a", EOS, *b"b"])
    assert (end.text, end.stop_reason) == ("a", str(EOS))
    end, _ = feed(make(stop_token_ids=[EOS]), [*b"a", EOS, *b"b"])
    assert (end.text, end.stop_reason) == ("a", None)  # the model's own end


def test_a_token_that_ends_the_answer_completes_no_stop_string():
    end, _ = feed(make(stop=["ab"], stop_token_ids=[ord("b")]), b"xab")
    assert (end.text, end.stop_reason) == ("xa", str(ord("b")))


def test_no_tokens_are_asked_for_and_none_come():
    assert feed(make(max_tokens=0), [EOS])[0] == Generation(0, [], "", "length")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_an_answer_cut_inside_a_character_ends_in_one_mark(cut):
    tokens = [*b"a", *"🙂".encode()][: 1 + cut]
    end, _ = feed(make(max_tokens=1 + cut), tokens)
    assert end == Generation(0, tokens, "a\ufffd", "length")


def test_logits_that_are_no_numbers_make_an_error():
    generations = make(num_requests=2)
    over, ended = generations.add(
        np.array([0, 1], np.int32), np.array([0, 104], np.int32), np.array([True, False])
    )
    assert over.tolist() == [True, False]
    assert ended == [Generation(0, [], None, None, NON_FINITE)]


def test_known_tokens_are_prompt_and_answer():
    generations = make(num_requests=2)
    generations.add(np.array([0, 1]), np.array([7, 8]), np.zeros(2, np.bool_))
    generations.add(np.array([1, 0]), np.array([9, 10]), np.zeros(2, np.bool_))
    assert generations.tokens(0, 0, 4).tolist() == [65, 66, 7, 10]
    assert generations.tokens(1, 1, 3).tolist() == [67, 8]
    assert generations.tokens(0, 1, 2).tolist() == [66]
    assert generations.last_tokens(np.array([1, 0])).tolist() == [9, 10]
