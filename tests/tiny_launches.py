"""A FlashInfer that counts what is run."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import flashinfer_stand_in

_KINDS = {
    "BatchDecodeWithPagedKVCacheWrapper": "decode",
    "BatchPrefillWithPagedKVCacheWrapper": "prefill",
    "MultiLevelCascadeAttentionWrapper": "cascade",
    "BatchPODWithPagedKVCacheWrapper": "pod",
}


def counting() -> tuple[Any, Counter[str]]:
    """The stand-in, and the launches of its wrappers by kind."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> type:
        class Counted(getattr(flashinfer_stand_in, name)):
            def run(self, *args: Any, **kwargs: Any) -> Any:
                counts[_KINDS[name]] += 1
                return super().run(*args, **kwargs)

        return Counted

    others = {name: getattr(flashinfer_stand_in, name) for name in flashinfer_stand_in.__all__}
    return SimpleNamespace(**others | {name: counted(name) for name in _KINDS}), counts
