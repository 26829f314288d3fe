"""A causal language model as it comes, Hugging Face's above all, as a stack of blocks.

Hooks stand on the blocks' inputs and outputs and on what joins the stream. A library's last hidden state isn't used:
that is behind the final norm.

Shapes: B batch, T time, D width, V vocabulary.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import UsageError
from leadline.stacks.anatomy import Anatomy, first_tensor, hidden_of
from leadline.stacks.base import Stack, StackWatcher, Unit, measuring, watched_once
from leadline.stacks.bypass import bypass, with_first
from leadline.stacks.finite import FirstNotFinite
from leadline.stacks.layout import QUIET, Passes, a_few_tokens, find_layout
from leadline.stacks.scale import ignores_size
from leadline.stacks.sites import replace

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
CONTEXT_OTHERWISE = 2048
"""Of a model that doesn't say for how many tokens it was made. [ours]"""

LENS_TOLERANCE = 64
"""Relative error of a check, in units of the dtype's precision, or float32's where the dtype is wider: final norms
compute in float32, and a lens gives them rows in another shape, which another processor may sum in another order."""

_SKIPPED: weakref.WeakKeyDictionary[nn.Module, frozenset[Unit]] = weakref.WeakKeyDictionary()


class CausalLMStack(Stack):
    """A causal language model, found by structure.

    Args:
        model: takes tokens (B, T), returns logits (B, T, V), plain or as `.logits`. It isn't changed; what
            `watching` and `skipping` put into it goes away again.
        blocks: the name of the list of blocks, such as "transformer.h", where the search fails.

    Attributes:
        path: the name of the list of blocks.
        layers: the blocks.
        layout: the blocks and what each is made of.
        additive: whether every block leaves its input plus its sublayers' outputs, checked by numbers.

    Raises:
        UsageError: the blocks aren't found, or the final norm and the head can't be told apart from them.
        LeadlineError: its values are not finite, from a block on that the message names.
    """

    def __init__(self, model: nn.Module, *, blocks: str | None = None) -> None:
        self.model = model
        self._takes_use_cache = "use_cache" in inspect.signature(model.forward).parameters
        tokens = a_few_tokens(self._embedded(), self.context, self.device)
        logits: list[Tensor] = []
        with measuring(model):
            self.layout = find_layout(model, lambda: logits.append(self._try(tokens)), blocks)
        self.path, self.layers = self.layout.path, self.layout.blocks
        self.blocks = len(self.layers)
        self.sublayers = self._names()
        self.additive = all(anatomy.additive for anatomy in self.layout.anatomies)
        self.width = self.layout.anatomies[-1].width
        self._vocab_size = logits[0].shape[-1]
        self._check_lens(tokens, logits[0])
        self.layout = self.layout._replace(anatomies=self._without_carriers(tokens))
        self.sublayers = self._names()

    @property
    def context(self) -> int:
        """Tokens that the model was made for, as its configuration says; 2048 where it doesn't say."""
        config = self._config()
        for name in CONTEXT_NAMES:
            value = getattr(config, name, None)
            if isinstance(value, int) and value > 0:
                return value - self._lost_places(value)
        return CONTEXT_OTHERWISE

    @property
    def vocab_size(self) -> int:
        """V: how many logits there are."""
        return self._vocab_size

    @property
    def norms_scale(self) -> bool:
        """Whether before every sublayer there is a norm, and it ignores the size of what it reads."""
        norms = [sublayer.norm for anatomy in self.layout.anatomies for sublayer in anatomy.sublayers]
        return bool(norms) and all(norm is not None and ignores_size(norm, self.width) for norm in norms)

    def parameters_of(self, unit: Unit) -> dict[str, nn.Parameter]:
        """The parameters of a block, or of a sublayer with the norms that are its alone."""
        self.check([unit])
        anatomy = self.layout.anatomies[unit.block]
        parts = {part for sublayer in anatomy.sublayers if sublayer.name == unit.sublayer for part in sublayer.parts}
        return self.parameters_under(f"{self.path}.{unit.block}.", None if unit.sublayer is None else parts)

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V), without a cache."""
        output = self.model(tokens, use_cache=False) if self._takes_use_cache else self.model(tokens)
        logits = first_tensor(getattr(output, "logits", output))
        if logits is None:
            raise UsageError(f"{type(self.model).__name__} returns no logits")
        return logits

    def lens(self, hidden: Tensor) -> Tensor:
        """What the model makes of `hidden` (..., D) behind its last block: (..., V).

        The model's own code runs, with all blocks skipped: whatever it does behind the head (soft caps, scales) is in
        the result.
        """
        rows = hidden.reshape(-1, 1, hidden.shape[-1])
        # Which token stands there makes no difference; one from the middle is not padding, of which the library warns.
        tokens = torch.full(rows.shape[:2], self._embedded() // 2, dtype=torch.int64, device=self.device)
        outer = self.model in QUIET
        with contextlib.ExitStack() as stack:
            QUIET.add(self.model)
            if not outer:
                stack.callback(QUIET.discard, self.model)
            for block, anatomy in zip(self.layers, self.layout.anatomies, strict=True):
                given = anatomy.wrapped(rows)
                replace(stack, block, "forward", lambda *args, given=given, **kwargs: given)
            logits = self.logits(tokens)
        return logits.reshape(*hidden.shape[:-1], logits.shape[-1])

    @contextlib.contextmanager
    def watching(self, watcher: StackWatcher) -> Iterator[None]:
        """Tells `watcher` of every forward pass until the context ends; see `Stack.watching`."""
        passes = Passes(self.model, self.layout)
        overwrites = any(anatomy.overwrites for anatomy in self.layout.anatomies)
        before: list[Tensor] = []
        joining: dict[str, list[Tensor]] = {}

        def tells(*units: Unit) -> bool:
            skipped = _SKIPPED.get(self.model, frozenset())
            return passes.running and self.model not in QUIET and not skipped.intersection(units)

        def on_input(block: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if self.model not in QUIET:
                hidden = hidden_of(args, kwargs)
                before[:] = [hidden.clone() if overwrites else hidden]
                joining.clear()

        def on_output(block: nn.Module, args: Any, output: Any) -> None:
            index = passes.block_of(block)
            own = [Unit(index, name) for name in self.sublayers[index]]
            skipped = _SKIPPED.get(self.model, frozenset())
            after = first_tensor(output)
            if tells(Unit(index)) and not (own and skipped.issuperset(own)) and before and after is not None:
                after = after.clone() if overwrites else after  # the next block may add to it
                watcher.on_block(index, before[0], after)
                if watcher.wants_exits:
                    watcher.on_exit(index, after)

        def on_join(module: nn.Module, args: Any, output: Any) -> None:
            index, sublayer, join = passes.place_of(module)
            given = first_tensor(output)
            if not tells(Unit(index), Unit(index, sublayer.name)) or given is None or not before:
                return
            given = given.clone() if join.overwritten else given
            given = given.view(before[0].shape)
            joining.setdefault(sublayer.name, []).append(given if join.factor == 1.0 else given * join.factor)
            if len(joining[sublayer.name]) == len(sublayer.joins):
                terms = joining.pop(sublayer.name)
                watcher.on_sublayer(index, sublayer.name, terms[0] if len(terms) == 1 else torch.stack(terms).sum(0))

        with contextlib.ExitStack() as stack:
            stack.enter_context(watched_once(self.model))
            stack.enter_context(passes.following())
            for block in dict.fromkeys(self.layers):
                stack.callback(block.register_forward_pre_hook(on_input, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(on_output).remove)
            for module in passes.joins:
                stack.callback(module.register_forward_hook(on_join).remove)
            yield

    @contextlib.contextmanager
    def skipping(self, units: Collection[Unit]) -> Iterator[None]:
        """Leaves units out of every forward pass until the context ends; see `Stack.skipping`.

        A block returns its input, a sublayer zeros. With a cache, a block that is left out still fills its entries, so
        that positions are counted right; nobody reads them, and generation is the same as without a cache.
        """
        self.check(units)
        left_out = frozenset(units)
        passes = Passes(self.model, self.layout)

        def skips(block: nn.Module) -> bool:
            return Unit(passes.block_of(block)) in left_out

        def zeroed(module: nn.Module, args: Any, output: Any) -> Any:
            index, sublayer, _ = passes.place_of(module)
            given = first_tensor(output)
            if Unit(index, sublayer.name) not in left_out or given is None:
                return output
            return with_first(output, torch.zeros_like(given))

        with contextlib.ExitStack() as stack:
            outer = _SKIPPED.get(self.model, frozenset())
            _SKIPPED[self.model] = outer | left_out
            stack.callback(_SKIPPED.__setitem__, self.model, outer)
            stack.enter_context(passes.following())
            for block, number in {self.layers[u.block]: u.block for u in left_out if u.sublayer is None}.items():
                bypass(stack, block, self.layout.anatomies[number], skips)
            for module, places in passes.joins.items():
                if any(Unit(index, sublayer.name) in left_out for index, (sublayer, _) in places.items()):
                    stack.callback(module.register_forward_hook(zeroed).remove)
            yield

    def _lost_places(self, told: int) -> int:
        """How many of `told` rows of a table of positions stand for no token: RoBERTa's begin behind the padding's."""
        tables = [
            module.padding_idx + 1
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Embedding)
            and "position" in name
            and module.num_embeddings == told
            and module.padding_idx is not None
        ]
        return max(tables, default=0)

    def _names(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(sublayer.name for sublayer in anatomy.sublayers) for anatomy in self.layout.anatomies)

    def _without_carriers(self, tokens: Tensor) -> tuple[Anatomy, ...]:
        """The anatomies, without sublayers in blocks where one of them carries the stream itself, as BERT's do.

        There the addition is inside the sublayer's module. Zeros in its place would not leave the sublayer out: they
        would wipe the stream out, and the block would return the same for every token.
        """
        found = list(self.layout.anatomies)
        for block, anatomy in enumerate(found):
            if not anatomy.additive and len(anatomy.sublayers) > 1:
                outputs = [self._output_without(Unit(block, name), tokens) for name in self.sublayers[block]]
                if any(output is not None and _same_everywhere(output) for output in outputs):
                    found[block] = anatomy._replace(sublayers=())
        return tuple(found)

    def _output_without(self, unit: Unit, tokens: Tensor) -> Tensor | None:
        kept = _LastOutput(unit.block)
        with measuring(self.model), self.skipping([unit]), self.watching(kept):
            self._try(tokens)
        return kept.output

    def _config(self) -> Any:
        config = getattr(self.model, "config", None)
        told = getattr(config, "get_text_config", None)
        return config if told is None else told()

    def _embedded(self) -> int:
        """How many tokens the model can be given."""
        value = getattr(self._config(), "vocab_size", None)
        if isinstance(value, int):
            return value
        tables = [module.num_embeddings for module in self.model.modules() if isinstance(module, nn.Embedding)]
        if not tables:
            raise UsageError(f"{type(self.model).__name__} has no embedding, so it is not a language model")
        return max(tables)

    def _try(self, tokens: Tensor) -> Tensor:
        try:
            return self.logits(tokens)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"{type(self.model).__name__} does not run on tokens alone, as causal language models do: {error}"
            ) from error

    def _check_lens(self, tokens: Tensor, logits: Tensor) -> None:
        """Makes sure that all values are finite, and the model's own logits come out of its last block's output."""
        last, seen = _LastOutput(self.blocks - 1), None
        with contextlib.suppress(TypeError, ValueError, RuntimeError, IndexError), measuring(self.model):
            with self.watching(last):
                self.logits(tokens)
            seen = None if last.output is None else self.lens(last.output)
        last.check(self.model, self.path, logits)
        if seen is not None and seen.shape == logits.shape:
            size, error = logits.float().abs().max(), (seen.float() - logits.float()).abs().max()
            precision = max(torch.finfo(dtype).eps for dtype in (logits.dtype, torch.float32))
            if bool(error <= LENS_TOLERANCE * precision * size):
                return
        raise UsageError(
            f"{self.path} of {type(self.model).__name__} is not all there is between the embedding and the final norm: "
            "its logits don't follow from the output of the last block there. If these aren't the blocks, point at "
            'them with --layers NAME, in Python stack_of(model, blocks="transformer.h")'
        )


class _LastOutput(FirstNotFinite):
    """Also keeps what one block leaves behind."""

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block = block
        self.output: Tensor | None = None

    def on_block(self, block: int, before: Tensor, after: Tensor) -> None:
        super().on_block(block, before, after)
        if block == self.block:
            self.output = after


def _same_everywhere(output: Tensor) -> bool:
    """Whether all tokens have the same vector, in (B, T, D)."""
    vectors = output.cpu().double().flatten(0, -2)
    return bool((vectors - vectors[0]).abs().max() <= 1e-6 * vectors.abs().max())
