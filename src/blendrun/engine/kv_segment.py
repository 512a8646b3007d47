"""The edge of a prefix-tree node that owns KV pages."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Segment:
    """Tokens at positions [start, end), in pages from start // page_size on."""

    start: int
    end: int
    node: int
    filled: int = 0  # tokens whose K and V exist (or will when this step reads them)
    pages: list[int] = field(default_factory=list)
    step: int = -1  # last step that computed tokens of it, …
    step_start: int = 0  # … from this position on, …
    step_base: int = 0  # … position p as token step_base + p of the batch

    def fill(self, start: int, end: int, step: int, token_idx: int) -> None:
        """Note that `step` computes positions [start, end); `start` is token `token_idx`."""
        if self.step != step:
            self.step, self.step_start, self.step_base = step, start, token_idx - start
        self.filled = end - self.start

    def computed_in(self, step: int, start: int, end: int) -> range:
        """The positions in [start, end) that `step` computes."""
        if self.step != step:
            return range(0)
        return range(max(start, self.step_start, self.start), min(end, self.start + self.filled))
