"""Logit lens by depth: what the model would say if it ended after each block.

At every exit the state goes through the final norm and the head. The norm recomputes its statistics on that
state: RMSNorm divides by that state's own size, so an early, small state isn't drowned by the size of the last one.
With p the model's own distribution and q that of an exit, means over tokens whose target counts, in nats:

    loss       cross-entropy of q against the targets
    kl         KL(p ‖ q)
    agreement  the share of tokens whose likeliest next token is the same under p and q
    entropy    of q

Source: nostalgebraist, "interpreting GPT: the logit lens" (2020); KL(p ‖ q) as in arXiv 2303.08112.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from leadline.errors import LeadlineError
from leadline.probes.paired import PairedMeans
from leadline.probes.passes import Measure, mean_bits
from leadline.probes.watch import IGNORED, TokenBatch
from leadline.stacks import Stack

MOST_TOKENS = 256
"""Tokens at a time: logits of all exits of a whole batch would not fit."""


class LogitLens(Measure):
    """Keeps a few numbers an exit and, during a batch, its exits (L, B, T, D).

    Args:
        bytes_per_token: of the batches' text, for bits per byte.
    """

    wants_exits: ClassVar[bool] = True

    def __init__(self, stack: Stack, bytes_per_token: float = 1.0) -> None:
        super().__init__(stack)
        self.bytes_per_token = bytes_per_token
        self._exits: dict[int, Tensor] = {}
        # Loss, KL, agreement, entropy of each exit; the last row is the model itself.
        self._sums = torch.zeros(stack.blocks + 1, 4, dtype=torch.float64)
        self._seen = torch.zeros(stack.blocks + 1, dtype=torch.float64)
        self._agreement = PairedMeans(stack.blocks)

    def on_exit(self, block: int, hidden: Tensor) -> None:
        self.width = hidden.shape[-1]
        self._exits[block] = hidden.detach()

    @torch.no_grad()
    def end_batch(self, batch: TokenBatch, logits: Tensor) -> None:
        exits, self._exits = self._exits, {}
        targets = batch.targets.to(logits.device).flatten()
        counts = (targets != IGNORED).nonzero().squeeze(1)
        if len(counts) == 0:
            return
        finals = logits.flatten(0, -2)
        flat = {block: hidden.flatten(0, -2) for block, hidden in exits.items()}
        sequences = (counts // batch.targets.shape[1]).cpu()
        agreed = torch.zeros(len(batch.targets), self.stack.blocks, dtype=torch.float64)
        for at, of in zip(counts.split(MOST_TOKENS), sequences.split(MOST_TOKENS), strict=True):
            own = _Said.of(finals[at])
            self._sums[-1] += _scores(own, own, targets[at]).sum(dim=1)
            for block, hidden in flat.items():
                scores = _scores(own, _Said.of(self.stack.lens(hidden[at.to(hidden.device)])), targets[at])
                self._sums[block] += scores.sum(dim=1)
                agreed[:, block].index_add_(0, of, scores[2])
        self._agreement.add(agreed.numpy(), sequences.bincount(minlength=len(agreed)).numpy())
        self._seen[[*exits, self.stack.blocks]] += len(counts)
        self.tokens += len(counts)

    def result(self) -> dict[str, Any]:
        """See `measure_stack`; None at a block that was left out."""
        if not self.tokens:
            raise LeadlineError("there are no tokens to measure on")
        means = (self._sums / self._seen.unsqueeze(1)).tolist()
        shown = [row if seen else [None] * 4 for row, seen in zip(means, self._seen.tolist(), strict=True)]
        *exits, final = [dict(zip(("loss", "kl", "agreement", "entropy"), row, strict=True)) for row in shown]
        for row in (*exits, final):
            row["bits_per_byte"] = None if row["loss"] is None else mean_bits(row["loss"], self.bytes_per_token)
        names = ("loss", "bits_per_byte", "kl", "agreement", "entropy")
        within = self._agreement.intervals()
        return {
            "tokens": self.tokens,
            **{name: [row[name] for row in exits] for name in names},
            "agreement_low": [bounds.low for bounds in within],
            "agreement_high": [bounds.high for bounds in within],
            "final": {name: final[name] for name in ("loss", "bits_per_byte", "entropy")},
        }


class _Said(NamedTuple):
    """What a model says of the next token: n tokens, V of the vocabulary.

    Attributes:
        log_p: (n, V) float32 or wider, finite.
        p: (n, V).
        likeliest: (n,).
        entropy: (n,) in nats.
    """

    log_p: Tensor
    p: Tensor
    likeliest: Tensor
    entropy: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> _Said:
        logits = logits if logits.dtype == torch.float64 else logits.float()
        # A model may rule tokens out with minus infinity, which times a probability of 0 would be NaN.
        log_p = logits.log_softmax(dim=1).clamp_(min=-1e30)
        p = log_p.exp()
        return cls(log_p, p, log_p.argmax(dim=1), -torch.linalg.vecdot(p, log_p))


def _scores(final: _Said, exit_: _Said, target_n: Tensor) -> Tensor:
    """Loss, KL, agreement and entropy of every token, (4, n) float64 on the CPU."""
    loss = -exit_.log_p.gather(1, target_n.unsqueeze(1)).squeeze(1)
    # Exactly 0 for the model itself.
    kl = -torch.linalg.vecdot(final.p, exit_.log_p) - final.entropy
    # NaN has no likeliest token, though argmax names one.
    agreement = torch.where(kl.isnan(), kl, (final.likeliest == exit_.likeliest).to(kl.dtype))
    return torch.stack([value.double() for value in (loss, kl, agreement, exit_.entropy)]).cpu()
