"""A run of tokens that owns KV pages: the edge of a prefix-tree node, or a request's own tokens."""

from dataclasses import dataclass, field

NOBODY = -1
UNBOUNDED = 2**31


@dataclass(slots=True)
class Segment:
    """Tokens at positions [start, end), in pages from start // page_size on."""

    start: int
    end: int  # UNBOUNDED for a request's own tokens
    node: int
    filled: int = 0  # tokens whose K and V exist (or will when this step reads them)
    pages: list[int] = field(default_factory=list)
    owner: int = NOBODY  # slot that is computing it
    step: int = -1  # last step that computed tokens of it, …
    step_start: int = 0  # … from this position on, …
    step_base: int = 0  # … position p as token step_base + p of the batch

    @property
    def is_full(self) -> bool:
        return self.start + self.filled == self.end

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


def num_pages(start: int, end: int, page_size: int) -> int:
    """Pages of a segment that starts at `start` and is filled up to `end`."""
    return (end - 1) // page_size - start // page_size + 1 if end > start else 0
