"""Leadline builds, trains, compares and measures the depth of Transformers.

    import leadline as ll
    depth = ll.MultiGate(streams=4, gate="competitive").build(dim=512, sublayers=24)

Names load what they need when they are first used, so that `import leadline` is quick.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leadline import (
        bench,
        connections,
        data,
        designs,
        experiments,
        hub,
        models,
        norms,
        ops,
        probes,
        pruning,
        stacks,
        training,
    )
    from leadline.config import from_dict, to_dict
    from leadline.connections import (
        Additive,
        AttentionResiduals,
        Connection,
        Depth,
        HyperConnections,
        ManifoldHyperConnections,
        MultiGate,
        Readout,
        Site,
        State,
    )
    from leadline.designs import PRESETS, Design
    from leadline.designs import resolve as design
    from leadline.errors import LeadlineError, UsageError
    from leadline.experiments.calls import compare, probe, prune, study, train
    from leadline.models import (
        AttentionConfig,
        Decoder,
        DecoderConfig,
        EarlyExit,
        InitConfig,
        KVCache,
        LayerConfig,
        MLPConfig,
        RepeatConfig,
        cut,
        fold,
        generate,
        stream_early,
        stream_tokens,
    )
    from leadline.norms import BHyT, Derf, DyT, LayerNorm, NoNorm, NormConfig, RMSNorm
    from leadline.stacks import Stack, StackWatcher, Unit, stack_of
    from leadline.training import RunConfig, param_groups

__version__ = "0.1.0"

_HOMES = {
    "leadline.config": ("from_dict", "to_dict"),
    "leadline.connections": (
        "Additive",
        "AttentionResiduals",
        "Connection",
        "Depth",
        "HyperConnections",
        "ManifoldHyperConnections",
        "MultiGate",
        "Readout",
        "Site",
        "State",
    ),
    "leadline.designs": ("PRESETS", "Design", "design"),
    "leadline.errors": ("LeadlineError", "UsageError"),
    "leadline.models": (
        "AttentionConfig",
        "Decoder",
        "DecoderConfig",
        "EarlyExit",
        "InitConfig",
        "KVCache",
        "LayerConfig",
        "MLPConfig",
        "RepeatConfig",
        "cut",
        "fold",
        "generate",
        "stream_early",
        "stream_tokens",
    ),
    "leadline.norms": ("BHyT", "Derf", "DyT", "LayerNorm", "NoNorm", "NormConfig", "RMSNorm"),
    "leadline.stacks": ("Stack", "StackWatcher", "Unit", "stack_of"),
    "leadline.experiments.calls": ("compare", "probe", "prune", "study", "train"),
    "leadline.training": ("RunConfig", "param_groups"),
}
_PARTS = (
    "bench",
    "connections",
    "data",
    "designs",
    "experiments",
    "hub",
    "models",
    "norms",
    "ops",
    "probes",
    "pruning",
    "stacks",
    "training",
)
"""Whole parts of the library, as in `ll.probes.record(model)`."""
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_NAMES_AT_HOME = {"design": "resolve"}
"""What a name is called in its home, where that differs."""
_DEPRECATED = {"resolve": "design"}
"""Old names and the new ones."""

__all__ = [
    "PRESETS",
    "Additive",
    "AttentionConfig",
    "AttentionResiduals",
    "BHyT",
    "Connection",
    "Decoder",
    "DecoderConfig",
    "Depth",
    "Derf",
    "Design",
    "DyT",
    "EarlyExit",
    "HyperConnections",
    "InitConfig",
    "KVCache",
    "LayerConfig",
    "LayerNorm",
    "LeadlineError",
    "MLPConfig",
    "ManifoldHyperConnections",
    "MultiGate",
    "NoNorm",
    "NormConfig",
    "RMSNorm",
    "Readout",
    "RepeatConfig",
    "RunConfig",
    "Site",
    "Stack",
    "StackWatcher",
    "State",
    "Unit",
    "UsageError",
    "__version__",
    "bench",
    "compare",
    "connections",
    "cut",
    "data",
    "design",
    "designs",
    "experiments",
    "fold",
    "from_dict",
    "generate",
    "hub",
    "models",
    "norms",
    "ops",
    "param_groups",
    "probe",
    "probes",
    "prune",
    "pruning",
    "stack_of",
    "stacks",
    "stream_early",
    "stream_tokens",
    "study",
    "to_dict",
    "train",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _DEPRECATED:
        new = _DEPRECATED[name]
        message = f"leadline.{name} is now leadline.{new}; the old name will be removed in 0.2"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        name = new
    if name in _PARTS:
        return importlib.import_module(f"leadline.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'leadline' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), _NAMES_AT_HOME.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
