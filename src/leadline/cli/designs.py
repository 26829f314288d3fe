"""`leadline designs`: the designs by name, or one of them in detail."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from leadline.designs import Design, Part, Preset

MOST_TOKENS = 1 << 32
"""As many as a data set can tell apart."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """List the depth designs, or show one in detail: its configuration, parameters and FLOPs.

    A design is a name or an expression of names: mgr(streams=8, gate=independent), mgr + bhyt. Quote it in a shell.

    Example: leadline designs "mgr(streams=8) + bhyt" --preset S
    """

    design: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """A design to show in detail; without it, all names are listed."""

    preset: str = "tiny"
    """The shape to count at: tiny, S, M, L, 374M, 1B or 3B."""

    vocab_size: int | None = None
    """Tokens in the vocabulary; the preset's usual one unless given."""

    json: Path | None = None
    """Write the same as JSON to this file."""


def run(arguments: Arguments) -> int:
    """Prints, and writes JSON where asked. Returns 0."""
    from leadline.designs import PARTS, preset_named, resolve
    from leadline.errors import UsageError
    from leadline.files import write_json

    preset = preset_named(arguments.preset)
    if arguments.design is None:
        parts = list(PARTS.values())
        _print_list(parts)
        result: Any = [describe_part(part) for part in parts]
    else:
        vocab_size = preset.vocab_size if arguments.vocab_size is None else arguments.vocab_size
        if vocab_size > MOST_TOKENS:
            raise UsageError(f"--vocab-size {vocab_size} is too large; 1 to {MOST_TOKENS} work")
        result = describe_design(resolve(arguments.design), preset, vocab_size)
        _print_design(result)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return 0


def describe_part(part: Part) -> dict[str, Any]:
    """A part as plain data: name, what it decides, options with their defaults, summary, source."""
    from leadline.config import to_dict

    options = to_dict(part.make({}))
    options.pop("kind", None)
    return {
        "name": part.name,
        "decides": list(part.slots),
        "options": options,
        "summary": part.summary,
        "source": part.source,
    }


def describe_design(design: Design, preset: Preset, vocab_size: int) -> dict[str, Any]:
    """A design at a preset as plain data: configuration, counts, settings and notes."""
    from leadline.config import to_dict
    from leadline.designs import count_flops, count_parameters, settings

    config = design.decoder(preset, vocab_size)
    parameters, flops, chosen = count_parameters(config), count_flops(config), settings(design, preset)
    return {
        "name": design.name,
        "expression": design.expression,
        "slug": design.slug,
        "summary": design.summary,
        "source": design.source,
        "placement": design.placement,
        "connection": to_dict(config.connection),
        "norm": to_dict(design.norm_for(preset.blocks)),
        "final_norm": to_dict(config.final_norm),
        "embedding_norm": to_dict(config.embedding_norm),
        "embedding_scale": config.embedding_scale,
        "qk_norm": design.qk_norm,
        "init": to_dict(config.init),
        "learning_rate": chosen.learning_rate,
        "learning_rate_source": chosen.source,
        "preset": to_dict(preset),
        "vocab_size": vocab_size,
        "parameters": {"total": parameters.total, **dataclasses.asdict(parameters)},
        "flops_per_token": {
            "forward_matrix_products": flops.matmul,
            "forward_depth_operators": flops.depth,
            "training_matrix_products": flops.training,
            "training_depth_operators": flops.training_depth,
            "training_total": flops.training_total,
        },
        "notes": design.notes(preset),
    }


_HEADINGS = {
    "connection": "Connections",
    "norm": "Norms",
    "placement": "Placements",
    "attention": "Switches",
    "init": "Switches",
}


def _print_list(parts: list[Part]) -> None:
    width = max(len(part.name) for part in parts)
    for heading in dict.fromkeys(_HEADINGS.values()):
        print(f"{heading}:")
        for part in parts:
            if _HEADINGS[part.slots[0]] == heading:
                print(f"  {part.name:<{width}}  {part.summary} [{part.source}]")
        print()
    print('Join parts with +, and give options in parentheses: "mgr(streams=8, gate=independent) + bhyt".')
    print("leadline designs NAME shows one in detail.")


def _print_design(result: dict[str, Any]) -> None:
    preset, parameters, flops = result["preset"], result["parameters"], result["flops_per_token"]
    print(f"{result['expression']}: {result['summary']}")
    print(f"Source: {result['source']}")
    rows = {
        "connection": _inline(result["connection"]),
        "norm": _inline(result["norm"]),
        "placement": result["placement"],
        "final norm": _inline(result["final_norm"]),
        "embedding": _embedding(result),
        "qk-norm": "yes" if result["qk_norm"] else "no",
        "init": _inline(result["init"]),
        "learning rate": f"{result['learning_rate']:g} ({result['learning_rate_source']})",
        "preset": f"{preset['name']}: {preset['blocks']} blocks of width {preset['dim']}, {preset['context']} tokens, "
        f"vocabulary {result['vocab_size']} ({preset['source']})",
        "parameters": f"{parameters['total']:,} (embedding {parameters['embedding']:,}, matrices "
        f"{parameters['matrices']:,}, norms {parameters['norms']:,}, connection {parameters['connection']:,})",
        "FLOPs per token": f"{flops['training_total']:,} in training: matrix products "
        f"{flops['training_matrix_products']:,}, depth operators {flops['training_depth_operators']:,}",
    }
    for name, text in rows.items():
        print(textwrap.fill(text, 100, initial_indent=f"  {name:<16} ", subsequent_indent=" " * 19))
    for note in result["notes"]:
        print(f"Note: {note}.")


def _embedding(result: dict[str, Any]) -> str:
    if result["embedding_norm"] is not None:
        return f"normalised: {_inline(result['embedding_norm'])}"
    return "times a learned scalar" if result["embedding_scale"] else "as it is"


def _inline(config: dict[str, Any]) -> str:
    values = {key: value for key, value in config.items() if key != "kind" and value is not None}
    inside = ", ".join(f"{key}={str(v).lower() if isinstance(v, bool) else v}" for key, v in values.items())
    name = config.get("kind", "")
    return f"{name}({inside})" if name and inside else name or inside
