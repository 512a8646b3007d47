"""What the device can do at best: copies through its memory, bf16 products by shape."""

import torch

from blendrun.engine.stopwatch import seconds_of
from gpu_check.device import open_device
from gpu_check.options import CheckOptions
from gpu_check.results import Findings


def check(options: CheckOptions, findings: Findings) -> None:
    torch.manual_seed(0)
    device = open_device(options)
    findings.note(device=device.name, torch=torch.__version__, cuda=torch.version.cuda)
    copied = torch.zeros(2, options.copy_bytes, dtype=torch.int8, device=device.device)
    copy_s = seconds_of(lambda: copied[1].copy_(copied[0]), device.wait, options.measure_s)
    findings.note(copy_bytes_per_s=2 * options.copy_bytes / copy_s)  # read and written
    config = options.model_config
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"] + 2 * config["num_key_value_heads"]
    shapes = {
        "qkv": (heads * config["head_dim"], hidden),
        "out": (hidden, config["num_attention_heads"] * config["head_dim"]),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (config["vocab_size"], hidden),
    }
    rates: dict[str, dict[str, float]] = {}
    for name, shape in shapes.items():
        weight = torch.randn(shape, device=device.device).to(device.dtype)
        rates[name] = {}
        for tokens in options.gemm_tokens:
            x = torch.randn(tokens, shape[1], device=device.device).to(device.dtype)
            each_s = seconds_of(
                lambda x=x, weight=weight: torch.nn.functional.linear(x, weight),
                device.wait,
                options.measure_s,
            )
            rates[name][str(tokens)] = 2 * tokens * weight.numel() / each_s
            findings.note(gemm_flops=rates)
    findings.note(best_gemm_flops=max(max(by_tokens.values()) for by_tokens in rates.values()))
