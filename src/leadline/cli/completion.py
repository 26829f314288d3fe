"""`leadline completion`: a script with which a shell completes verbs, options and their values."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

import tyro


@dataclass(frozen=True)
class Arguments:
    """Print a script with which your shell completes leadline's verbs, options and values.

    Example: leadline completion bash > ~/.local/share/bash-completion/completions/leadline

    Example: leadline completion zsh > ~/.zfunc/_leadline

    Example: leadline completion fish > ~/.config/fish/completions/leadline.fish
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """Which shell."""


def run(arguments: Arguments) -> int:
    """Prints the script. Returns 0."""
    from leadline.cli.main import VERBS
    from leadline.cli.options import each_dataclass, without_none

    verbs: list[Any] = []
    for verb, summary in VERBS.items():
        parsed = importlib.import_module(f"leadline.cli.{verb}").Arguments
        for each in each_dataclass(parsed):
            without_none(each)
        verbs.append(Annotated[parsed, tyro.conf.subcommand(verb, description=summary)])
    try:
        tyro.cli(  # type: ignore[call-overload]
            Union[tuple(verbs)],  # noqa: UP007 (made of a list)
            prog="leadline",
            args=["--tyro-print-completion", arguments.shell],
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
        )
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
