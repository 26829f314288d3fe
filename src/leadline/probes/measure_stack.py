"""Every measurement along depth of one model, as plain data: what `leadline probe` stores and draws.

    measure_stack(stack_of(model), batches, bytes_per_token=1.0)

The data, with L blocks, S = L + 1 states (what block 0 reads, then what each block leaves), N sublayers in all.
A part is None where it was not asked for or does not apply; so is a number that is not defined (the kurtosis of a
constant, the ratio to an update of zero). "per sublayer" is a list for each block, in the order of
`model.sublayers`. Nothing is NaN or infinite. `tests/support/probe_example.py` holds a whole example.

    model           blocks         L
                    sublayers      names, per sublayer: [["attention", "mlp"], …]
                    dim            D; None where no part saw a state
                    parameters     of the whole model, shared ones once
                    norms_scale    whether the norms ignore the size of what they read
    bytes_per_token                of the text

    activations     tokens         how many were seen
                    input          rms, max, median, kurtosis, massive_ratio of what block 0 reads: five numbers
                    blocks         the same five names, each L numbers: of what every block leaves
                    sublayers      the same five names, each per sublayer: of its output
                    residual_to_update   L numbers: ‖before‖ / ‖after − before‖
                    growth         value, low, high: the last block's rms over block 1's, with its 95 % interval over
                                   sequences; None as a whole with fewer than three blocks
    similarity      tokens
                    angular_distance     S × S in [0, 1]
                    block_influence      L numbers in [0, 2]: 1 − E cos(before, after)
                    place_low, place_high   L whole numbers: between which places block i's influence stands, 1 being
                                         the lowest, as far as sequences tell blocks apart (`leadline.probes.paired`)
                    window_influence     row n − 1 has L − n + 1 numbers: the same for n blocks in a row, from block i
                    cka                  S × S, at most 1, or None where no batch has four tokens; an entry is None
                                         where a state is constant
                    effective_rank       S numbers, at most min(D, tokens); None for a state of zeros
                    effective_rank_centred   the same with the mean taken off
    lens            tokens         whose targets count
                    loss, bits_per_byte, kl, agreement, entropy   L numbers each: of the model ended after block i,
                                         in nats but for bits per byte and the agreement, a share in [0, 1]
                    agreement_low, agreement_high   L numbers: its 95 % interval over sequences
                    final                loss, bits_per_byte, entropy: of the model itself
    gradients       batches, rank_batches
                    first_half     value, low, high: the share of the first L // 2 blocks, its interval over batches
                    blocks         parameters   L whole numbers
                                   norm, share, norm_per_parameter, share_per_parameter   L numbers; None where the
                                                block has no gradient
                                   missing, empty, zero   L whole numbers: parameters without a gradient, with an
                                                empty one (sharded away), with one that is exactly zero in all batches
                                   effective_rank   L numbers; None where no matrix has a gradient
                                   cosine           L numbers in [-1, 1]; None with fewer than two batches
                                   place_low, place_high   as for similarity, of the norm, over batches
                    sublayers      the same per sublayer, without effective_rank, cosine and places
    ablation        tokens, sequences   those that count
                    loss, bits_per_byte            of the whole model
                    blocks         nats, bits_per_byte: what the loss rises by without block i; nats_low, nats_high,
                                   bits_per_byte_low, bits_per_byte_high: its 95 % interval over sequences; L numbers
                                   each; bounds are None with one sequence
                                   place_low, place_high   as for similarity, of what the loss rises by
                    sublayers      the first six names per sublayer
                    first_half     value, low, high: what the first L // 2 blocks' nats sum to over what all do, with
                                   its 95 % interval over sequences; no bounds where the sum can't be told from zero
    fan_in          plain          L whole numbers: φ of a plain stack
    connection      tokens         None as a whole for a model without Leadline's connection sites
                    depth_weights  N + 1 rows, ragged: how a read divides itself over sources or streams
                    gates          N rows: how much a write replaces of each stream; [] where there is no gate
                    mixing         N matrices, streams × streams
                    stream_diversity     N numbers
                    stream_angular_distance   for each stream S × S; None where the stream is not there yet
    bhyt            tokens         None as a whole where no block has the norm or the factor of layer-norm scaling
                    kappa, bound   κ of the first such norm (None where there is none), and 1/√L
                    attention, mlp    lambda, ratio (λ/κ), below (|ratio| < bound): L entries each, None for others
                    variance       attention, mlp, blocks: L numbers each, over the width, averaged over tokens: of what
                                   attention and the MLP compute on (their norms' outputs) and of block outputs
                    second_moment  approximate, exact, ratio, ratio_low, ratio_high: L numbers each, of the norm
                                   before the MLP; None where it is exact
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from leadline.errors import UsageError, did_you_mean
from leadline.files import finite
from leadline.probes.ablation import ablation
from leadline.probes.activations import Activations
from leadline.probes.bhyt import bhyt
from leadline.probes.fan_in import fan_in
from leadline.probes.gradients import gradients
from leadline.probes.lens import LogitLens
from leadline.probes.passes import Measure, run_measures
from leadline.probes.similarity import Similarity
from leadline.probes.streams import connection_shown
from leadline.probes.watch import TokenBatch, has_sites
from leadline.stacks import Stack

PARTS = ("activations", "similarity", "lens", "gradients", "ablation", "connection", "bhyt")
"""What `measure_stack` can measure."""

Progress = Callable[[str, int, int], None]
"""Told which parts run, as "activations, similarity", how many batches are done, and of how many."""


def measure_stack(
    stack: Stack,
    batches: Sequence[TokenBatch],
    *,
    parts: Collection[str] = PARTS,
    bytes_per_token: float = 1.0,
    apart: Mapping[str, Sequence[TokenBatch]] | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Every measurement along depth of a model on the same batches; this file's first lines say what comes out.

    Memory does not grow with the number of batches. Activations, similarity and the lens share a pass where none of
    them has batches of its own. Gradients run a backward pass a batch, ablation one forward pass a unit and batch.

    Args:
        batches: read several times; each has `tokens` and `targets`, both (B, T) int64. Targets of -100 don't count in
            the lens, gradients and ablation; sizes and similarity take all tokens.
        parts: which to measure, of `PARTS`; the others are None.
        bytes_per_token: of the batches' text, 1 for the byte tokenizer.
        apart: batches of a part's own, by its name: fewer for ablation, which takes long.
        seed: of the bootstrap.

    Raises:
        UsageError: a part that isn't known, or batches that can't be read several times.
        LeadlineError: there are no tokens, or a part can't measure this model.
    """
    apart = apart or {}
    _check([*parts, *apart])
    used = {part: apart.get(part, batches) for part in PARTS}
    for read in (batches, *apart.values()):
        _check_batches(read)

    def teller(names: str, total: int) -> Callable[[], None]:
        done = 0

        def tell() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(names, done, total)

        return tell

    found: dict[str, Any] = dict.fromkeys(PARTS)
    measures: dict[str, Measure] = {}
    if "activations" in parts:
        measures["activations"] = Activations(stack)
    if "similarity" in parts:
        measures["similarity"] = Similarity(stack)
    if "lens" in parts:
        measures["lens"] = LogitLens(stack, bytes_per_token)
    for together in ([part for part in measures if part not in apart], *([part] for part in measures if part in apart)):
        if together:
            read = used[together[0]]
            passing = [measures[part] for part in together]
            run_measures(stack, read, passing, teller(", ".join(together), len(read)))
            found.update({part: measures[part].result() for part in together})

    def tell(part: str) -> Callable[[], None]:
        return teller(part, len(used[part]))

    if "gradients" in parts:
        found["gradients"] = gradients(stack, used["gradients"], on_batch=tell("gradients"))
    if "ablation" in parts:
        found["ablation"] = ablation(
            stack, used["ablation"], bytes_per_token=bytes_per_token, seed=seed, on_batch=tell("ablation")
        )
    if "connection" in parts and has_sites(stack.model):
        found["connection"] = connection_shown(stack, used["connection"], on_batch=tell("connection"))
    if "bhyt" in parts:
        found["bhyt"] = bhyt(stack, used["bhyt"], on_batch=tell("bhyt"))
    plain = {
        "model": _model(stack, measures),
        "bytes_per_token": bytes_per_token,
        **found,
        "fan_in": {"plain": fan_in(stack.blocks)},
    }
    return finite(plain)


def _check(parts: Collection[str]) -> None:
    for part in parts:
        if part not in PARTS:
            raise UsageError(f"{part!r} is not a part; {', '.join(PARTS)} work.{did_you_mean(part, PARTS)}")


def _check_batches(batches: Any) -> None:
    """The first one stands for all: a loader may have to make each of them."""
    if isinstance(batches, Iterator) or not hasattr(batches, "__len__"):
        raise UsageError(f"batches is a {type(batches).__name__}, which can be read once; a list of batches works")
    for batch in itertools.islice(batches, 1):
        if not (hasattr(batch, "tokens") and hasattr(batch, "targets")):
            raise UsageError(
                f"a batch is a {type(batch).__name__}; what has tokens and targets, such as leadline.data.Batch, works"
            )


def _model(stack: Stack, measures: Mapping[str, Measure]) -> dict[str, Any]:
    widths = [measure.width for measure in measures.values() if measure.width]
    return {
        "blocks": stack.blocks,
        "sublayers": [list(names) for names in stack.sublayers],
        "dim": widths[0] if widths else None,
        "parameters": sum(parameter.numel() for parameter in stack.model.parameters()),
        "norms_scale": stack.norms_scale,
    }
