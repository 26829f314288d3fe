"""The model to prune, opened from its folder: Leadline's own or a Hugging Face one, behind one interface."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from leadline.data import Batch, DataSet
from leadline.errors import LeadlineError, UsageError
from leadline.hub.agreement import check_logits, check_same_logits, check_same_weights
from leadline.hub.open import OpenedModel, open_model
from leadline.hub.text import Text, dataset_for, default_context, heldout_batches, training_batches
from leadline.models import Decoder, KVCache, cut
from leadline.pruning.text import Reading
from leadline.reading import read_json
from leadline.stacks import Stack, Unit, stack_of
from leadline.stacks.causal_lm import CausalLMStack
from leadline.training.gradient_file import gradient_path, load_gradient
from leadline.training.run_folder import read_run_file

HEAL_SHARE = 0.1
HEAL_RATE = 1e-4
RECORD = "prune.json"
CACHED = {torch.float64: 1e-8, torch.float32: 1e-3}
"""How far logits that are worked out token by token may be from those of the whole text, of the largest one; 0.1 for
narrower dtypes. Sums round differently there."""


class Subject(ABC):
    """A model, its tokenizer, and what its folder says of it.

    Args:
        opened: the model.
        layers: the name of its list of blocks, where that had to be said.

    Attributes:
        path: its folder.
        stack: the model as a stack of blocks, in evaluation mode.
        origin: where it comes from, as data that JSON can hold.
        healing_rate: the learning rate for healing, unless one is given.
    """

    def __init__(self, opened: OpenedModel, layers: str | None = None) -> None:
        self.opened = opened
        self.layers = layers
        self.path: Path = opened.path
        self.stack: Stack = opened.stack
        self.origin: dict[str, Any] = {"model": str(self.path), "kind": opened.kind, **earlier(self.path)}
        self.healing_rate = HEAL_RATE

    @property
    def context(self) -> int:
        """Predictions in a window, unless another number is given."""
        return default_context(self.opened)

    def data(self, name: str, say: Callable[[str], None] = lambda text: None) -> DataSet:
        """The data set called so, in that folder or made of those files, in this model's tokens.

        Args:
            say: told before text is tokenized, which takes a while.

        Raises:
            UsageError: there is none, or it was made with another tokenizer.
        """
        return dataset_for(self.opened, name, say)

    def heldout(self, data: DataSet, reading: Reading) -> Text:
        """The held-out text that perplexity is measured on."""
        return heldout_batches(
            self.opened,
            data,
            context=reading.context,
            tokens=reading.tokens,
            batch_size=reading.batch_size,
            stride=reading.stride,
        )

    def calibration(self, data: DataSet, reading: Reading, *, tokens: int, seed: int) -> list[Batch]:
        """The training text that criteria read."""
        return training_batches(
            self.opened, data, context=reading.context, tokens=tokens, batch_size=reading.batch_size, seed=seed
        )

    @property
    def parameters(self) -> int:
        """How many the model has, shared ones once."""
        return sum(parameter.numel() for parameter in self.stack.model.parameters())

    def gradient(self) -> dict[str, Any]:
        """The gradient shares that were recorded in training.

        Raises:
            UsageError: there is no record; it says how to make one.
        """
        try:
            return load_gradient(self.path)
        except UsageError as error:
            raise UsageError(f"--criterion cfp: {error}") from error

    @property
    def has_gradient(self) -> bool:
        """Whether there is a record for `gradient` to read, good or not."""
        try:
            return gradient_path(self.path).is_file()
        except UsageError:
            return False

    @abstractmethod
    def check_saving(self) -> None:
        """Raises LeadlineError where no model that this one is cut to could be saved, whatever goes."""

    @abstractmethod
    def check_cut(self, units: Sequence[Unit]) -> None:
        """Makes sure that these units can be cut, before anything is measured.

        Raises:
            UsageError: they can only be passed by.
            LeadlineError: what is left would not be what it is here.
        """

    @abstractmethod
    def cut(self, units: Sequence[Unit]) -> Stack:
        """A new model without these units, with tensors of its own."""

    @abstractmethod
    def save(
        self, smaller: Stack, units: Sequence[Unit], folder: Path, tokens: Tensor, *, healed: bool
    ) -> tuple[Stack, float]:
        """Saves a model that `cut` made, loads it again, and compares the two.

        Args:
            units: those that it is without.
            folder: is not there yet.
            tokens: (B, T) to compare with.
            healed: whether it was trained since.

        Returns:
            The model as loaded, and the largest difference of logits.

        Raises:
            LeadlineError: it does not come back the same, or generates otherwise with its cache than without.
        """


class OwnSubject(Subject):
    """One of Leadline's decoders: a run's folder, or one that `Decoder.save` or `leadline prune` wrote."""

    def __init__(self, opened: OpenedModel, layers: str | None = None) -> None:
        super().__init__(opened, layers)
        if opened.kind == "run":
            config: dict[str, Any] = {**read_run_file(self.path)["config"]}
            wanted = ("design", "preset", "data", "seed", "tokens")
            rate = config.get("lr")
            self.origin |= {**{name: config.get(name) for name in wanted}, "learning_rate": rate}
            if rate is not None and rate > 0:
                self.healing_rate = HEAL_SHARE * rate

    def check_saving(self) -> None:
        """Every decoder can be saved."""

    def check_cut(self, units: Sequence[Unit]) -> None:
        self.stack.check(units)

    def cut(self, units: Sequence[Unit]) -> Stack:
        model = cast(Decoder, self.stack.model)
        numbers: set[int] = set()
        for unit in units:
            attention, mlp = model.config.numbers[unit.block]
            named = {"attention": (attention,), "mlp": (mlp,), None: (attention, mlp)}[unit.sublayer]
            numbers.update(number for number in named if number is not None)
        return stack_of(cut(model, sorted(numbers)))

    def save(
        self, smaller: Stack, units: Sequence[Unit], folder: Path, tokens: Tensor, *, healed: bool
    ) -> tuple[Stack, float]:
        model = cast(Decoder, smaller.model)
        model.save(folder)
        self.opened.tokenizer.save(folder)
        loaded = Decoder.load(folder).to(smaller.device).eval()
        again = stack_of(loaded)
        with torch.no_grad():
            check_same_weights(model, loaded, "the model loaded again")
            difference = check_same_logits(smaller.logits(tokens), again.logits(tokens), "the model loaded again")
            cache = KVCache()
            steps = [loaded(tokens[:, i : i + 1], cache=cache) for i in range(tokens.shape[1])]
            step_by_step = torch.cat(steps, dim=1)
            check_logits(
                again.logits(tokens), step_by_step, CACHED.get(step_by_step.dtype, 1e-1), "generation with the cache"
            )
        if again.blocks != smaller.blocks or again.sublayers != smaller.sublayers:
            raise LeadlineError(f"{smaller.blocks} blocks were saved and {again.blocks} come back")
        return again, difference


class HubSubject(Subject):
    """A Hugging Face causal language model, as `save_pretrained` writes it."""

    def check_saving(self) -> None:
        from leadline.hub.saving import check_configurations
        from leadline.hub.surgery import operate

        check_configurations(self.stack.model)
        operate(self.stack.model, (), layers=self._list)

    def check_cut(self, units: Sequence[Unit]) -> None:
        from leadline.hub.surgery import blocks_of_units, operate

        operate(self.stack.model, blocks_of_units(self.stack.model, units), layers=self._list)

    @property
    def _list(self) -> str:
        """The name of the list that holds the stack's blocks; the largest list of a model may be another."""
        return cast(CausalLMStack, self.stack).path

    def cut(self, units: Sequence[Unit]) -> Stack:
        from leadline.hub.surgery import blocks_of_units, remove_blocks

        model = remove_blocks(self.stack.model, blocks_of_units(self.stack.model, units), layers=self._list)
        # Parted from the whole model, which is measured beside it while this one may be trained.
        return stack_of(copy.deepcopy(model), blocks=self.layers)

    def save(
        self, smaller: Stack, units: Sequence[Unit], folder: Path, tokens: Tensor, *, healed: bool
    ) -> tuple[Stack, float]:
        from leadline.hub.saving import save_checked, save_pruned
        from leadline.hub.surgery import blocks_of_units

        if healed or not units:
            loaded = save_checked(smaller.model, folder, tokenizer=self.path)
        else:
            blocks = blocks_of_units(self.stack.model, units)
            loaded = save_pruned(
                self.stack.model, blocks, folder, tokenizer=self.path, tokens=tokens, layers=self._list
            ).model
        again = stack_of(loaded.eval(), blocks=self.layers)
        with torch.no_grad():
            difference = check_same_logits(smaller.logits(tokens), again.logits(tokens), "the model loaded again")
        return again, difference


def open_subject(path: Path, device: str = "cpu", *, layers: str | None = None) -> Subject:
    """The model in a folder.

    Args:
        layers: the name of its list of blocks, such as "transformer.h", where it isn't found by itself.

    Raises:
        UsageError: there is no such folder, or it holds no model or no tokenizer; a device that can't be used.
        LeadlineError: a file in it is damaged.
    """
    opened = open_model(path, device, layers=layers)
    return HubSubject(opened, layers) if opened.kind == "hugging-face" else OwnSubject(opened, layers)


def earlier(path: Path) -> dict[str, Any]:
    """What an earlier cut left in the folder, if there was one."""
    if not (path / RECORD).is_file():
        return {}
    before = read_json(path / RECORD, dict[str, Any], advice="remove it to go on without it")
    return {"earlier": {name: before.get(name) for name in ("origin", "criterion", "unit", "cut", "kept")}}
