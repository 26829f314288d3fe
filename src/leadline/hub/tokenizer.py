"""A Hugging Face model's tokenizer: read from its folder, put into another one, and found the same there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from leadline.data import FileTokenizer, Tokenizer, load_tokenizer
from leadline.data.tokenizers import FILE
from leadline.errors import LeadlineError, UsageError
from leadline.hub.library import one_line

FILES = (
    "*tokenizer*", "*tekken*", "*tokens*.json", "vocab*", "merges*", "*.model", "*.spm", "*.tiktoken", "*.codes",
    "*chat_template*", "additional_chat_templates/*.jinja",
)  # fmt: skip
"""What the files of tokenizers are called."""

NEVER = (".py", ".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf")
"""Endings of code and weights, whatever else their names say."""

TEXT = "By the deep, six! Où est la sonde? 12 fathoms, 0.5 knots.\n\tאמת — 深さ"

Eos = int | list[int] | None
"""What ends a document, as a model's configuration says it."""


def read_tokenizer(path: Path, eos: Eos) -> tuple[Tokenizer, int | None]:
    """The tokenizer in a model's folder, and the token that it would begin every text with, if any.

    Args:
        eos: used where the tokenizer's own files don't say what ends a document.

    Raises:
        UsageError: there is none that can be read, or nothing says what ends a document.
        LeadlineError: a file is damaged.
    """
    import tokenizers

    if not (path / FILE).is_file():
        return _from_other_files(path)
    try:
        content = (path / FILE).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise LeadlineError(f"can't read {path / FILE}: {error}") from error
    try:
        tokenizer = load_tokenizer(path)
    except UsageError:
        # It doesn't say what ends a document; the model's configuration may.
        number = (eos[0] if eos else None) if isinstance(eos, list) else eos
        name = (
            None
            if not isinstance(number, int) or number < 0
            else tokenizers.Tokenizer.from_str(content).id_to_token(number)
        )
        if name is None:
            raise
        tokenizer = load_tokenizer(path, separator=name)
    return tokenizer, _begins(content)


def write_tokenizer(tokenizer: Any, folder: Path, eos: Eos) -> None:
    """Puts a tokenizer into a model's folder and reads it there again.

    Args:
        tokenizer: the folder that holds its files, or a tokenizer of the library. One whose own files can't be read
            here comes along as it is.
        folder: a model's, with its `config.json`.
        eos: see `read_tokenizer`.

    Raises:
        LeadlineError: it comes back as another one, or not at all.
    """
    expected: Any
    found: Any
    if isinstance(tokenizer, str | Path):
        source = Path(tokenizer)
        for path in {path for pattern in FILES for path in source.glob(pattern)}:
            if path.is_file() and path.suffix not in NEVER:
                target = folder / path.relative_to(source)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, target)
        try:
            expected = _identity(source, eos)
        except LeadlineError:
            return
        try:
            found = _identity(folder, eos)
        except LeadlineError as error:
            raise LeadlineError(
                f"the tokenizer cannot be read from the new folder, so a file of it is called otherwise than is known "
                f"here: {error}"
            ) from error
    else:
        tokenizer.save_pretrained(folder)
        if not (folder / FILE).is_file():  # one in Python, which this library doesn't read
            return
        expected, found = tokenizer(TEXT, add_special_tokens=False)["input_ids"], _tokens(folder / FILE)
    if found != expected:
        raise LeadlineError("the tokenizer comes back as another one")


def _identity(path: Path, eos: Eos) -> tuple[str, int | None]:
    tokenizer, begins = read_tokenizer(path, eos)
    return tokenizer.hash, begins


def _tokens(file: Path) -> list[int]:
    import tokenizers

    found: list[int] = tokenizers.Tokenizer.from_file(str(file)).encode(TEXT, add_special_tokens=False).ids
    return found


def _from_other_files(path: Path) -> tuple[Tokenizer, int | None]:
    """A tokenizer that is stored in other files than `tokenizer.json`, as transformers converts it."""
    from transformers import AutoTokenizer

    try:
        load: Any = AutoTokenizer.from_pretrained
        found = load(str(path), local_files_only=True, trust_remote_code=False)
        content = found.backend_tokenizer.to_str()
    except Exception as error:  # whatever the library objects to is the reason
        raise UsageError(
            f"there is no tokenizer in {path} that can be read ({FILE} is missing): {one_line(error)}"
        ) from error
    return FileTokenizer(content, separator=found.eos_token, name=FILE, where=str(path)), _begins(content)


def _begins(content: str) -> int | None:
    import tokenizers

    inner = tokenizers.Tokenizer.from_str(content)
    whole, plain = inner.encode("a").ids, inner.encode("a", add_special_tokens=False).ids
    return int(whole[0]) if whole and whole[0] not in plain[:1] else None
