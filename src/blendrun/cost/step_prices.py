"""What the parts of a step cost, as plain numbers for compiled code."""

from dataclasses import dataclass, replace

from blendrun.cost.cost_model import CostModel

_USUAL_TOKENS = 256  # of a step, which decides how many experts it touches


@dataclass(frozen=True, slots=True)
class StepPrices:
    """Seconds on one rank. A chunk [a, b) of a prompt takes token_s (b - a) + pair_s (b² - a²)."""

    token_s: float
    pair_s: float
    head_s: float  # output head, for one token
    decode_s: float  # compute of a decode token, head included
    context_s: float  # reading K and V of one token of context
    weight_s: float  # reading the weights: no step takes less
    spared_s: float = 0.0  # of context_s, where another decode of the step reads that token anyway

    @classmethod
    def of(cls, cost: CostModel) -> "StepPrices":
        one, two = float(cost.prefill_s(0, 1)), float(cost.prefill_s(0, 2))
        pair_s = (two - 2 * one) / 2  # two tokens: 2 token_s + 4 pair_s; one: token_s + pair_s
        head_s = float(cost.head_s(1))
        token_s = one - pair_s
        return cls(
            token_s=token_s,
            pair_s=pair_s,
            head_s=head_s,
            decode_s=token_s + head_s,
            context_s=cost.context_s,
            weight_s=float(cost.step_weight_read_s(_USUAL_TOKENS)),
            spared_s=cost.spared_frac * cost.context_s,
        )

    def scaled(self, factor: float) -> "StepPrices":
        """The same with all compute `factor` times as dear."""
        return replace(
            self,
            token_s=factor * self.token_s,
            pair_s=factor * self.pair_s,
            head_s=factor * self.head_s,
            decode_s=factor * self.decode_s,
        )
