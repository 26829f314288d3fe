"""A Llama of transformers with another depth: its own attention, MLP, norms, mask and cache, and its own weights.

    python examples/llama_layer.py

puts Attention Residuals and Multi-Gate Residuals into a small Llama, compares the logits (they are the same), and
generates with the KV cache. Needs `pip install "leadline[hf]"`; nothing is downloaded.
"""

import copy

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import leadline as ll

# Before, as in transformers, `LlamaDecoderLayer.forward` adds to the residual stream itself:
#
#     residual = hidden_states
#     hidden_states = self.input_layernorm(hidden_states)
#     hidden_states, _ = self.self_attn(hidden_states=hidden_states, attention_mask=..., cache=..., ...)
#     hidden_states = residual + hidden_states
#     residual = hidden_states
#     hidden_states = self.post_attention_layernorm(hidden_states)
#     hidden_states = self.mlp(hidden_states)
#     hidden_states = residual + hidden_states


class DepthLayer(nn.Module):
    """After: the same attention, MLP and norms between two sites. Between layers a state of depth travels.

    LlamaModel hands every layer what the one before returned, so the first layer opens depth and the last one reads it
    out. Keys of the state dict stay, but for the connection's own.
    """

    def __init__(self, layer, attn_site, mlp_site, open=None, readout=None):
        super().__init__()
        self.attn_site, self.mlp_site = attn_site, mlp_site
        self.input_layernorm = attn_site.norm(layer.input_layernorm)
        self.self_attn = layer.self_attn
        self.post_attention_layernorm = mlp_site.norm(layer.post_attention_layernorm)
        self.mlp = layer.mlp
        self.open, self.readout = open, readout

    def forward(self, state: ll.State, **kwargs) -> ll.State:  # attention_mask, position_embeddings, the cache, ...
        if self.open is not None:
            state = self.open(state)
        state, _ = self.attn_site(state, self.attention, **kwargs)
        state = self.mlp_site(state, lambda h: self.mlp(self.post_attention_layernorm(h)))
        return state if self.readout is None else self.readout(state)

    def attention(self, h, **kwargs):
        return self.self_attn(self.input_layernorm(h), **kwargs)  # (output, attention weights)


def with_depth(model: LlamaForCausalLM, connection: ll.Connection) -> LlamaForCausalLM:
    """A copy of the model on another connection, with the same weights."""
    model = copy.deepcopy(model)
    layers = model.model.layers
    depth = connection.build(dim=model.config.hidden_size, sublayers=2 * len(layers), device=model.device)
    pairs = zip(depth.sites[0::2], depth.sites[1::2], strict=True)
    model.model.layers = nn.ModuleList(DepthLayer(layer, *pair) for layer, pair in zip(layers, pairs, strict=True))
    model.model.layers[0].open = connection.open
    model.model.layers[-1].readout = depth.readout
    model.model.norm = depth.readout.norm(model.model.norm)
    return model


def small_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def main() -> None:
    torch.manual_seed(0)
    prenorm = small_llama()
    tokens = torch.randint(3, 256, (2, 10))
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0  # the first text is shorter, padded on the left
    options = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False}
    with torch.no_grad():
        expected, text = prenorm(tokens, attention_mask=mask).logits, prenorm.generate(tokens, **options)
        for connection in (ll.AttentionResiduals(), ll.MultiGate(gate_init="prenorm")):
            model = with_depth(prenorm, connection)
            difference = (model(tokens, attention_mask=mask).logits - expected).abs().max().item()
            same = torch.equal(model.generate(tokens, **options), text)
            print(f"{type(connection).__name__:>20}: logits differ by {difference:.0e}; same text generated: {same}")


if __name__ == "__main__":
    main()
