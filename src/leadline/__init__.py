"""Leadline builds, trains, compares and measures the depth of Transformers.

    import leadline as ll
    depth = ll.MultiGate(streams=4, gate="competitive").build(dim=512, sublayers=24)

Names load what they need when they are first used, so that `import leadline` is quick.
"""

from __future__ import annotations

import importlib
import importlib.util
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

_HOMES = ("errors", "config", "norms", "connections", "models", "designs", "stacks", "experiments.calls", "training")
"""Where names are looked for, in this order: what imports little comes first, and `train` is that of the calls."""

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
    if name == "resolve":
        message = "leadline.resolve is now leadline.design; the old name will be removed in 0.2"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        name = "design"
    if name not in __all__:
        raise AttributeError(f"module 'leadline' has no attribute {name!r}")
    if importlib.util.find_spec(f"leadline.{name}") is not None:  # a whole part, as in `ll.probes.record(model)`
        return importlib.import_module(f"leadline.{name}")
    at_home = "resolve" if name == "design" else name
    homes = (importlib.import_module(f"leadline.{home}") for home in _HOMES)
    value = globals()[name] = next(getattr(home, at_home) for home in homes if hasattr(home, at_home))
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
