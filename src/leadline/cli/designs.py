"""`leadline designs`: the designs by name, one of them in detail, or one at the cost of another."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from leadline.designs import Design, Part, Preset, ShapeConfig

MOST_TOKENS = 1 << 32
"""As many as a data set can tell apart."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """List the depth designs, or show one in detail: its configuration, parameters and FLOPs.

    A design is a name or an expression of names: mgr(streams=8, gate=independent), mgr + bhyt. Quote it in a shell.
    With --equal: what makes its training cost what another design's costs.

    Example: leadline designs "mgr(streams=8) + bhyt" --preset S

    Example: leadline designs cascade-a2 --equal prenorm --by depth+tokens --tokens 512k
    """

    design: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """A design to show in detail; without it, all names are listed."""

    preset: str = "tiny"
    """The shape to count at: tiny, S, M, L, 374M, 1B or 3B."""

    blocks: int | None = None
    """Another depth than the preset's."""

    dim: int | None = None
    """Another width than the preset's; the MLP follows, and heads keep their width where that fits."""

    heads: int | None = None
    """Another number of attention heads than the preset's; they share the width."""

    vocab_size: int | None = None
    """Tokens in the vocabulary; the preset's usual one unless given."""

    equal: str | None = None
    """A reference design: solve for the training FLOPs that it takes."""

    by: Literal["tokens", "depth", "width", "depth+tokens", "width+tokens"] = "tokens"
    """With --equal: what may differ. width is the MLP's; +tokens takes what is left over up in tokens."""

    tokens: str | None = None
    """With --equal: the reference's training tokens, such as 1.2M; the preset's unless given."""

    json: Path | None = None
    """Write the same as JSON to this file."""


def run(arguments: Arguments) -> int:
    """Prints, and writes JSON where asked. Returns 0."""
    from leadline.designs import PARTS, preset_named, reshaped, resolve
    from leadline.errors import UsageError
    from leadline.files import write_json

    preset = preset_named(arguments.preset)
    shape = reshaped(preset.shape, blocks=arguments.blocks, dim=arguments.dim, heads=arguments.heads)
    vocab_size = preset.vocab_size if arguments.vocab_size is None else arguments.vocab_size
    if vocab_size > MOST_TOKENS:
        raise UsageError(f"--vocab-size {vocab_size} is too large; 1 to {MOST_TOKENS} work")
    if arguments.equal is not None and arguments.design is None:
        raise UsageError(f"--equal {arguments.equal} needs the design to solve for: leadline designs NAME --equal …")
    if arguments.equal is None and (arguments.tokens is not None or arguments.by != "tokens"):
        raise UsageError("--by and --tokens belong to --equal, which is not given")
    if arguments.design is None:
        parts = list(PARTS.values())
        _print_list(parts)
        result: Any = [describe_part(part) for part in parts]
    elif arguments.equal is not None:
        result = _balance(arguments, preset, shape, vocab_size)
    else:
        result = describe_design(resolve(arguments.design), preset, vocab_size, shape)
        _print_design(result)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return 0


def _balance(arguments: Arguments, preset: Preset, shape: ShapeConfig, vocab_size: int) -> dict[str, Any]:
    """Solves for equal training FLOPs, prints both models and returns them, with what is left over, as plain data."""
    from leadline.counts import parse_count
    from leadline.designs import Side, resolve, solve
    from leadline.designs.equal import describe

    batch_tokens = preset.batch_size * shape.context
    wanted = preset.tokens if arguments.tokens is None else parse_count(arguments.tokens, "--tokens")
    tokens = max(1, -(-wanted // batch_tokens)) * batch_tokens
    balance = solve(
        Side(design=resolve(arguments.equal or ""), shape=shape, tokens=tokens),
        resolve(arguments.design or ""),
        vocab_size=vocab_size,
        batch_tokens=batch_tokens,
        by=arguments.by,
    )
    print(describe(balance))
    reference, variant = balance.rows()
    return {"by": balance.by, "residual": balance.residual, "reference": reference, "variant": variant}


def describe_part(part: Part) -> dict[str, Any]:
    """A part as plain data: name, what it decides, options with their defaults, summary, source."""
    from leadline.config import to_dict

    options = to_dict(part.make({}))
    options.pop("kind", None)
    return {
        "name": part.name,
        "decides": list(part.slots),
        "options": options,
        "summary": part.summary(),
        "source": part.source,
    }


def describe_design(
    design: Design, preset: Preset, vocab_size: int, shape: ShapeConfig | None = None
) -> dict[str, Any]:
    """A design at a preset, or at another shape of it, as plain data: configuration, counts, settings and notes."""
    from leadline.config import to_dict
    from leadline.designs import count_flops, count_parameters, settings

    shape = preset.shape if shape is None else shape
    config = design.decoder(shape, vocab_size)
    parameters, flops, chosen = count_parameters(config), count_flops(config), settings(design, preset, shape)
    return {
        "name": design.name,
        "expression": design.expression,
        "slug": design.slug,
        "summary": design.summary,
        "source": design.source,
        "placement": design.placement,
        "connection": to_dict(config.connection),
        "norm": to_dict(design.norm_for(shape.blocks)),
        "final_norm": to_dict(config.final_norm),
        "embedding_norm": to_dict(config.embedding_norm),
        "embedding_scale": config.embedding_scale,
        "qk_norm": design.qk_norm,
        "init": to_dict(config.init),
        "taper": {
            **to_dict(design.taper),
            "layers": [width._asdict() for width in design.taper.widths(shape)],
        },
        "learning_rate": chosen.learning_rate,
        "learning_rate_source": chosen.source,
        "preset": {**to_dict(preset), **to_dict(shape)},
        "vocab_size": vocab_size,
        "parameters": {"total": parameters.total, **dataclasses.asdict(parameters)},
        "flops_per_token": {
            "forward_matrix_products": flops.matmul,
            "forward_depth_operators": flops.depth,
            "training_matrix_products": flops.training,
            "training_depth_operators": flops.training_depth,
            "training_total": flops.training_total,
        },
        "notes": design.notes(shape),
    }


_HEADINGS = {
    "connection": "Connections",
    "norm": "Norms",
    "placement": "Placements",
    "attention": "Switches",
    "init": "Switches",
    "taper": "Tapers",
}


def _print_list(parts: list[Part]) -> None:
    width = max(len(part.name) for part in parts)
    for heading in dict.fromkeys(_HEADINGS.values()):
        print(f"{heading}:")
        for part in parts:
            if _HEADINGS[part.slots[0]] == heading:
                print(f"  {part.name:<{width}}  {part.summary()} [{part.source}]")
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
        "taper": _taper(result["taper"]),
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


def _taper(taper: dict[str, Any]) -> str:
    shown = [f"{name}={taper[name]}" for name in ("heads", "mlp") if taper[name] != "1"]
    return ", ".join(shown) or "none: all layers are as wide"


def _inline(config: dict[str, Any]) -> str:
    values = {key: v for key, v in config.items() if key != "kind" and v is not None}
    inside = ", ".join(f"{key}={str(v).lower() if isinstance(v, bool) else v}" for key, v in values.items())
    name = config.get("kind", "")
    return f"{name}({inside})" if name and inside else name or inside
