"""nanoGPT's model, whose blocks own their attention and MLP, before and after another depth.

    python examples/nanogpt_block.py

trains the model as it is, loads its weights into the same model with Attention Residuals and with Multi-Gate Residuals,
compares the logits (they are the same), and trains on from there. The parts are those of github.com/karpathy/nanoGPT
(MIT licence), in its names.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn
from torch.nn import functional as F

import leadline as ll


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 256
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 64
    dropout: float = 0.0
    bias: bool = True


class LayerNorm(nn.Module):
    """LayerNorm with an optional bias."""

    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("bias", mask.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    """Before: the block adds to the residual stream itself."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x  # noqa: RET504


class DepthBlock(nn.Module):
    """After: the block owns its two sites in depth, and each `x = x + f(x)` is a call of one."""

    def __init__(self, config, attn_site, mlp_site):
        super().__init__()
        self.attn_site, self.mlp_site = attn_site, mlp_site
        self.ln_1 = attn_site.norm(LayerNorm(config.n_embd, bias=config.bias))
        self.attn = CausalSelfAttention(config)
        self.ln_2 = mlp_site.norm(LayerNorm(config.n_embd, bias=config.bias))
        self.mlp = MLP(config)

    def forward(self, state):
        state = self.attn_site(state, lambda h: self.attn(self.ln_1(h)))
        state = self.mlp_site(state, lambda h: self.mlp(self.ln_2(h)))
        return state  # noqa: RET504


class GPT(nn.Module):
    """nanoGPT's model: with a connection it uses `DepthBlock`, without one `Block`."""

    def __init__(self, config, connection=None):
        super().__init__()
        self.config, self.connection = config, connection
        if connection is None:
            blocks = [Block(config) for _ in range(config.n_layer)]
            ln_f = LayerNorm(config.n_embd, bias=config.bias)
        else:
            depth = connection.build(dim=config.n_embd, sublayers=2 * config.n_layer)
            pairs = zip(depth.sites[0::2], depth.sites[1::2], strict=True)
            blocks = [DepthBlock(config, *pair) for pair in pairs]
            self.readout = depth.readout
            ln_f = depth.readout.norm(LayerNorm(config.n_embd, bias=config.bias))
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList(blocks),
                "ln_f": ln_f,
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * config.n_layer))

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        if self.connection is None:
            for block in self.transformer.h:
                x = block(x)
        else:
            state = self.connection.open(x)
            for block in self.transformer.h:
                state = block(state)
            x = self.readout(state)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

    def configure_optimizers(self, weight_decay, learning_rate, betas):
        groups = ll.param_groups(self, weight_decay)  # matrices, but no connection's, no norm's, no embedding
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)


def start_from(trained, connection):
    """The model with another depth and the trained weights: the same logits where the connection starts as PreNorm."""
    model = GPT(trained.config, connection)
    missing, unexpected = model.load_state_dict(trained.state_dict(), strict=False)
    new = [name for name in missing if ".attn_site." not in name and ".mlp_site." not in name]
    assert not unexpected
    assert all(name.startswith("readout.") for name in new)
    return model


def train(model, text, steps, batch_size=16):
    """Trains on random pieces of `text`, byte numbers, and returns the loss of each step."""
    generator = torch.Generator().manual_seed(0)
    length = model.config.block_size
    optimizer = model.configure_optimizers(weight_decay=0.1, learning_rate=1e-3, betas=(0.9, 0.95))
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - length, (batch_size,), generator=generator).tolist()
        pieces = torch.stack([text[start : start + length + 1] for start in starts])
        loss = model(pieces[:, :-1], pieces[:, 1:])[1]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    text = torch.tensor(list(Path(__file__).read_bytes()))
    torch.manual_seed(0)
    prenorm = GPT(GPTConfig())
    print(f"{'PreNorm':>20}: loss {train(prenorm, text, steps=100)[-1]:.3f}")
    for connection in (ll.AttentionResiduals(), ll.MultiGate(gate_init="prenorm")):
        model = start_from(prenorm, connection)
        with torch.no_grad():
            difference = (model(text[None, :64])[0] - prenorm(text[None, :64])[0]).abs().max().item()
        loss = train(model, text, steps=100)[-1]
        print(f"{type(connection).__name__:>20}: logits differ by {difference:.0e}; loss {loss:.3f}")


if __name__ == "__main__":
    main()
