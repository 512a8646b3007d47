import json
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from blendrun.data import prompts
from blendrun.data.columns import ColumnNames
from blendrun.data.gguf_tokenizer import build_tokenizer
from blendrun.data.rows import RowBatch
from blendrun.data.tokenizer import PromptTokenizer, TemplateError
from blendrun.errors import InputError
from tiny_models import write_tokenizer

TEXTS = ["", "the dog jumps", " 12 + 30 = 42\n", "<|im_start|>user\nnaïve 你好 🙂<|im_end|>"]
CHAT = [{"role": "user", "content": "the sum of 12"}, {"role": "assistant", "content": "is 42"}]


@pytest.fixture
def folder(tmp_path):
    write_tokenizer(tmp_path)
    return tmp_path


def change_config(folder, **values):
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(json.dumps(config), encoding="utf-8")


def reference(folder):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize(
    "flags", [{}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}]
)
def test_plain_text_gets_the_special_tokens_that_transformers_adds(folder, flags):
    change_config(folder, **flags)
    encoded = PromptTokenizer.from_folder(folder).encode_texts(TEXTS)
    theirs = reference(folder)
    assert [ids.tolist() for ids in encoded] == [theirs(text)["input_ids"] for text in TEXTS]
    assert all(ids.dtype == np.int32 for ids in encoded)


def test_a_post_processor_in_the_file_is_kept_where_no_flag_speaks(folder):
    from tokenizers.processors import TemplateProcessing

    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    special = [("<|im_start|>", 1)]
    tokenizer.post_processor = TemplateProcessing("<|im_start|> $A", special_tokens=special)
    tokenizer.save(path)
    ours = PromptTokenizer.from_folder(folder)
    assert ours.encode_texts(["the dog"])[0].tolist() == reference(folder)("the dog")["input_ids"]
    assert ours.encode_texts(["the dog"])[0][0] == 1
    assert ours.encode_rendered(["the dog"])[0][0] != 1


def test_a_chat_whose_template_begins_with_bos_has_exactly_one(folder):
    from tokenizers.processors import TemplateProcessing

    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    special = [("<|endoftext|>", 0)]
    tokenizer.post_processor = TemplateProcessing("<|endoftext|> $A", special_tokens=special)
    tokenizer.save(path)
    change_config(folder, chat_template="{{ bos_token }}{{ messages[0].content }}")
    ours = PromptTokenizer.from_folder(folder)
    assert ours.bos_id == 0
    rendered = ours.render_chat(CHAT)
    assert ours.encode_rendered([rendered])[0].tolist().count(0) == 1
    batch = RowBatch([1, 2], {"prompt": [rendered, "the dog"]}, {})
    as_text = prompts.prompt_tokens(batch, ColumnNames(), ours, 300, {}, {}).prompts
    assert np.flatnonzero(as_text.tokens == 0).tolist() == [0, as_text.lengths[0]]


def test_a_tokenizer_that_adds_nothing_has_no_bos(folder):
    assert PromptTokenizer.from_folder(folder).bos_id is None


def test_truncation_and_padding_stored_in_the_file_are_off(folder):
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5)
    tokenizer.save(path)
    lengths = [len(ids) for ids in PromptTokenizer.from_folder(folder).encode_texts(TEXTS)]
    assert lengths[0] == 0
    assert lengths[2] > 5


def test_chats_render_as_in_transformers(folder):
    tokenizer = PromptTokenizer.from_folder(folder)
    rendered = tokenizer.render_chat(CHAT)
    theirs = reference(folder)
    assert rendered == theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    ids = theirs.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert tokenizer.encode_rendered([rendered])[0].tolist() == ids


def test_templates_see_the_special_tokens(folder):
    change_config(folder, chat_template="{{ bos_token }}{{ eos_token }}{{ messages[0].content }}")
    rendered = PromptTokenizer.from_folder(folder).render_chat(CHAT)
    assert rendered == "<|endoftext|><|im_end|>the sum of 12"


def test_the_jinja_file_wins_and_named_templates_use_the_default(folder):
    named = [{"name": "tool_use", "template": "tool"}, {"name": "default", "template": "plain"}]
    change_config(folder, chat_template=named)
    assert PromptTokenizer.from_folder(folder).render_chat(CHAT) == "plain"
    assert PromptTokenizer.from_folder(folder).render_chat(CHAT, [{"name": "f"}]) == "tool"
    (folder / "chat_template.jinja").write_text("from file", encoding="utf-8")
    assert PromptTokenizer.from_folder(folder).render_chat(CHAT) == "from file"


def test_null_fields_of_a_message_are_absent_for_the_template(folder):
    change_config(folder, chat_template="{{ messages[0].name is defined }}")
    message = {"role": "user", "content": "hi", "name": None}
    assert PromptTokenizer.from_folder(folder).render_chat([message]) == "False"


def test_content_that_is_null_beside_calls_reaches_the_template(folder):
    change_config(folder, chat_template="{{ messages[0].content is none }}")
    message = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    assert PromptTokenizer.from_folder(folder).render_chat([message]) == "True"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "chat template"),
        ("{% if %}", "chat template"),
        ("{{ messages.__class__.__mro__ }}", "chat template"),
    ],
)
def test_a_chat_that_cannot_be_rendered_is_a_template_error(folder, template, message):
    change_config(folder, chat_template=template)
    with pytest.raises(TemplateError, match=message):
        PromptTokenizer.from_folder(folder).render_chat(CHAT)


def test_an_empty_chat_is_a_template_error(folder):
    with pytest.raises(TemplateError, match="no messages"):
        PromptTokenizer.from_folder(folder).render_chat([])


def test_decode_gives_the_text_back_without_special_tokens(folder):
    tokenizer = PromptTokenizer.from_folder(folder)
    ids = tokenizer.encode_texts(["naïve 你好 🙂<|im_end|>"])[0]
    assert tokenizer.decode(ids) == "naïve 你好 🙂"
    assert tokenizer.decode([]) == ""
    assert (
        tokenizer.vocab_size == Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    )


def test_many_texts_keep_their_order_across_batches(folder, monkeypatch):
    monkeypatch.setattr("blendrun.data.tokenizer._BATCH_CHARS", 20)
    tokenizer = PromptTokenizer.from_folder(folder)
    texts = [f"the dog {index}" for index in range(30)]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_texts(texts)] == texts


def test_a_folder_without_a_fast_tokenizer_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        PromptTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="not a usable tokenizer"):
        PromptTokenizer.from_folder(tmp_path)


def test_rendering_works_silently_without_torch(folder):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from blendrun.data.tokenizer import PromptTokenizer\n"
        "t = PromptTokenizer.from_folder(Path(sys.argv[1]))\n"
        "print(t.render_chat([{'role': 'user', 'content': 'hi'}]), end='')\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def sentencepiece_metadata(**overrides):
    pieces = ["▁", "t", "h", "e", "▁t", "he", "▁the", "o", "g", "d", "▁d", "og", "▁dog"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    # Real files number the pieces by merge order; characters come last, with the worst scores.
    order = ["he", "▁t", "▁the", "og", "▁d", "▁dog", *"▁theogd"]
    scores = [0.0] * 259 + [-float(order.index(piece)) for piece in pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **overrides,
    }


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes():
    tokenizer, config = build_tokenizer(sentencepiece_metadata())
    assert config["add_bos_token"]
    assert tokenizer.encode("the dog").tokens == ["<s>", "▁the", "▁dog"]
    assert tokenizer.encode("é").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    text = "the é dog 你"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_equals_transformers_reading_of_the_same_vocabulary():
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    metadata = sentencepiece_metadata()
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    vocab = {token: index for index, token in enumerate(tokens)}
    theirs = LlamaTokenizer(
        vocab=vocab, merges=generate_merges(vocab, dict(zip(tokens, scores, strict=True)))
    )
    ours, _ = build_tokenizer(metadata)
    for text in ["the dog", " the  dog", "hothed get", "thé\n", "dog<s>the</s> the"]:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False).ids == expected, text


def test_sentencepiece_without_the_space_prefix():
    metadata = sentencepiece_metadata(**{"tokenizer.ggml.add_space_prefix": False})
    tokenizer, _ = build_tokenizer(metadata)
    assert tokenizer.encode("the dog", add_special_tokens=False).tokens == ["t", "he", "▁dog"]


def byte_level_metadata(pre, **overrides):
    from tokenizers.pre_tokenizers import ByteLevel

    words = ["12", "123", "Ġt", "he", "Ġthe"]
    tokens = [*sorted(ByteLevel.alphabet()), *words, "<|end|>", "<think>", "[PAD7]"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*[1] * (len(tokens) - 3), 3, 4, 5],
        "tokenizer.ggml.merges": ["1 2", "12 3", "Ġ t", "h e", "Ġt he"],
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        **overrides,
    }


@pytest.mark.parametrize(
    ("pre", "digits"),
    [
        ("gpt-2", ["123", "12"]),
        ("smollm", ["1", "2", "3", "1", "2"]),
        ("llama-bpe", ["123", "12"]),
        ("qwen2", ["1", "2", "3", "1", "2"]),
        ("tekken", ["1", "2", "3", "1", "2"]),
    ],
)
def test_pre_tokenizers_split_digits_as_their_models_do(pre, digits):
    tokenizer, _ = build_tokenizer(byte_level_metadata(pre))
    assert tokenizer.encode("12312", add_special_tokens=False).tokens == digits
    assert tokenizer.encode("x the", add_special_tokens=False).tokens == ["x", "Ġthe"]


def test_only_llama3_and_tekken_add_bos_where_the_file_is_silent():
    for pre, adds in (("llama-bpe", True), ("tekken", True), ("qwen2", False), ("smollm", False)):
        tokenizer, config = build_tokenizer(byte_level_metadata(pre))
        assert config["add_bos_token"] is adds
        assert (tokenizer.encode("x").tokens[0] == "<|end|>") is adds
    silent = byte_level_metadata("llama-bpe", **{"tokenizer.ggml.add_bos_token": False})
    assert build_tokenizer(silent)[0].encode("x").tokens == ["x"]


def test_token_types_make_special_added_and_unused_tokens():
    tokenizer, _ = build_tokenizer(byte_level_metadata("gpt-2"))
    ids = tokenizer.encode("a<think>b<|end|>[PAD7]").ids
    tokens = byte_level_metadata("gpt-2")["tokenizer.ggml.tokens"]
    assert tokens.index("<think>") in ids
    assert tokens.index("<|end|>") in ids
    assert len(tokens) - 1 not in ids
    assert tokenizer.decode(ids) == "a<think>b[PAD7]"


@pytest.mark.parametrize(
    "metadata", [{"tokenizer.ggml.model": "t5"}, byte_level_metadata("viking")]
)
def test_other_tokenizers_are_refused_by_name(metadata):
    with pytest.raises(InputError, match=r"'(t5|viking)' is not supported"):
        build_tokenizer(metadata)
