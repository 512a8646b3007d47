"""What this machine offers: cores, memory, NVIDIA GPUs. Asks the system, decides nothing."""

import os
import platform
import resource
import shutil
import subprocess
from pathlib import Path

from blendrun.units import KIB

_CPUINFO, _MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
_CGROUP_FILES = (  # limit, use; version 2, then version 1
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
_SMI_TIMEOUT_S = 20


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    """The CPU's name as the kernel tells it, else its architecture."""
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.machine()


def available_memory_bytes() -> int:
    """Memory that a new process can take: what the kernel estimates, within a container's limit."""
    free = [_meminfo_bytes()]
    for limit_file, use_file in _CGROUP_FILES:
        limit, use = _number(limit_file), _number(use_file)
        if limit is not None and use is not None:
            free.append(max(limit - use, 0))
    return min(free)


def peak_memory_bytes() -> int:
    """The most memory that this process has had resident, mapped files included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * KIB


def gpu_names() -> list[str]:
    """Names of the NVIDIA GPUs as their driver lists them; empty where there is none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        listing = subprocess.run(
            [command, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []  # a driver that does not answer is no GPU to plan for
    return [line.strip() for line in listing.stdout.splitlines() if line.strip()]


def _meminfo_bytes() -> int:
    if _MEMINFO.is_file():
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * KIB
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" = no limit
