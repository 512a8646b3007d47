"""Kernels compiled for GPUs that are not there, and what the compiled code needs of them.

`python -m blendrun.kernels.triton.compiled_ahead` prints a table of all launches that models
make (`model_launches.py`). Needs Triton, whose package has NVIDIA's assembler, and no GPU. Knows
nothing of speed.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from blendrun.kernels.triton.launch import Launch
from blendrun.kernels.triton.model_launches import model_launches

# bytes of shared memory that a block may have; CUDA C++ Programming Guide, compute capabilities
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
_WARP_SIZE = 32
_TYPES = {
    torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int32: "i32",
    torch.int64: "i64",
}
_USAGE = re.compile(r"\bREG:(\d+) STACK:(\d+)\b.*\bLOCAL:(\d+)\b")


class Resources(NamedTuple):
    """What one program of a compiled kernel needs."""

    registers: int  # per thread
    spilled_bytes: int  # per thread, in local memory
    shared_bytes: int
    num_warps: int

    def misfit(self, arch: int) -> str | None:
        """Why a GPU of that compute capability should not run it; None: nothing is wrong."""
        if self.spilled_bytes:
            return f"{self.spilled_bytes} bytes of registers spilled"
        if self.shared_bytes > SHARED_BYTES[arch]:
            return f"{self.shared_bytes} bytes of shared memory, of {SHARED_BYTES[arch]}"
        return None


def compile_launch(launch: Launch, arch: int) -> Resources:
    """Compiles a launch for compute capability `arch`: 80, 90 or 100.

    Specialised as a launch on a device is: strides that 16 divides, and None or 1 as constants.

    Raises:
        RuntimeError: Triton runs its interpreter in this process and compiles nothing.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: nothing is compiled in this process")
    signature: dict[str, str] = {}
    constants: dict[tuple[int], object] = {}
    attributes: dict[tuple[int], list[list[object]]] = {}
    for place, parameter in enumerate(launch.kernel.params):
        value = launch.args[parameter.name]
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            signature[parameter.name] = "constexpr"
            constants[(place,)] = value
            continue
        signature[parameter.name] = _type_of(value)
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, attributes)
    target = GPUTarget("cuda", arch, _WARP_SIZE)
    compiled = triton.compile(source, target, launch.options())
    registers, spilled_bytes = _usage(compiled.asm["cubin"])
    metadata = compiled.metadata
    return Resources(registers, spilled_bytes, metadata.shared, metadata.num_warps)


def _type_of(value: object) -> str:
    if isinstance(value, Tensor):
        return f"*{_TYPES[value.dtype]}"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack and local memory, of the only function in a cubin."""
    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(program), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (found,) = _USAGE.findall(text)
    return int(found[0]), int(found[1]) + int(found[2])


def main(argv: Iterable[str] | None = None) -> int:
    """Prints the table; 1 where something spills or does not fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", type=int, action="append", choices=sorted(SHARED_BYTES))
    parser.add_argument("--match", default="", help="only launches whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="compilations at once")
    options = parser.parse_args(None if argv is None else list(argv))
    work = [
        (name, launch, arch)
        for arch in options.arch or sorted(SHARED_BYTES)
        for name, launch in model_launches(arch).items()
        if options.match in name
    ]
    print(f"{'launch':60} {'sm':>4} {'warps':>5} {'registers':>9} {'spilled':>7} {'shared':>7}")
    misfits = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for (name, _, arch), made in zip(
            work, pool.map(lambda item: compile_launch(*item[1:]), work), strict=True
        ):
            print(
                f"{name:60} {arch:4} {made.num_warps:5} {made.registers:9} "
                f"{made.spilled_bytes:7} {made.shared_bytes:7}",
                flush=True,
            )
            reason = made.misfit(arch)
            if reason is not None:
                misfits += 1
                print(f"{name} on sm_{arch}: {reason}", file=sys.stderr)
    print(f"{len(work)} compiled, {misfits} that do not fit")
    return int(misfits > 0)


if __name__ == "__main__":
    sys.exit(main())
