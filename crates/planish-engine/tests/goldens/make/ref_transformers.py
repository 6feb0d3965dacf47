"""transformers' own model classes, in float64, on the dequantised weights of a GGUF file.

The module tree, masks, caches and activations are transformers' code. Three of its steps are fixed to float32 whatever
the dtype of the model (RMS norm, rotary tables, softmax in eager attention); `exact=True` replaces the first two by the
same formula in float64 and uses the sdpa attention, which has no such cast. `exact=False` leaves the library as it is.
"""
import types

import numpy as np
import torch
import transformers

from ref_numpy import Params

torch.set_grad_enabled(False)
NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "post_attention_norm": "post_attention_layernorm"}
# ffn_norm is the norm before the feed-forward: gemma3 has another name for it, and two post norms.
FFN_NORM = {True: "pre_feedforward_layernorm", False: "post_attention_layernorm"}


def hf_name(name, gemma):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    if name == "output.weight":
        return "lm_head.weight"
    _, layer, part, kind = name.split(".")
    part = {"ffn_norm": FFN_NORM[gemma], "post_ffw_norm": "post_feedforward_layernorm"}.get(part) or NAMES[part]
    return f"model.layers.{layer}.{part}.{kind}"


def unpermute(w, n_head):
    """Inverse of the converter's row order: back to transformers' halves."""
    return w.reshape(n_head, w.shape[0] // n_head // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def state_dict(g, dtype=np.float64):
    p, out = Params(g), {}
    for name in g.raw:
        if name == "rope_freqs.weight":
            continue
        w = g.tensor(name, dtype)
        if p.arch == "llama" and (".attn_q." in name or ".attn_k." in name):
            w = unpermute(w, p.heads if ".attn_q." in name else p.kv_heads)
        if p.gemma and name.endswith("norm.weight"):
            w = w - 1  # transformers adds the 1 itself
        out[hf_name(name, p.gemma)] = torch.from_numpy(np.ascontiguousarray(w))
    return out


def config(g, rope_parameters=None):
    p = Params(g)
    common = dict(vocab_size=g.vocab_size, hidden_size=p.hidden, intermediate_size=g.get("feed_forward_length"),
                  num_hidden_layers=p.layers, num_attention_heads=p.heads, num_key_value_heads=p.kv_heads,
                  head_dim=p.head_dim, rms_norm_eps=float(p.eps), max_position_embeddings=g.get("context_length"),
                  tie_word_embeddings="output.weight" not in g.raw, bos_token_id=None, eos_token_id=None,
                  pad_token_id=None)
    rope = rope_parameters or {"rope_type": "default", "rope_theta": float(p.base)}
    if p.gemma:
        kinds = ["sliding_attention" if p.windowed(i) else "full_attention" for i in range(p.layers)]
        local = {"rope_type": "default", "rope_theta": float(p.base_local)}
        return transformers.Gemma3TextConfig(**common, layer_types=kinds, sliding_window=p.window,
                                             query_pre_attn_scalar=p.head_dim,
                                             rope_parameters={"full_attention": rope, "sliding_attention": local})
    kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}
    return kind[p.arch](**common, rope_parameters=rope)


def exact_norm(self, x):
    w = self.weight + 1 if self.__class__.__name__.startswith("Gemma3") else self.weight
    eps = self.eps if hasattr(self, "eps") else self.variance_epsilon
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def exact_rotary(g):
    p = Params(g)

    def forward(self, x, position_ids, layer_type=None):
        base = p.base_local if layer_type == "sliding_attention" else p.base
        half = p.head_dim // 2
        freq = torch.tensor(float(base), dtype=torch.float64) ** (-torch.arange(half, dtype=torch.float64) / half)
        if "rope_freqs.weight" in g.raw:
            freq = freq / torch.from_numpy(g.tensor("rope_freqs.weight"))
        angle = position_ids[..., None].double() * freq
        angle = torch.cat((angle, angle), -1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return forward


def build(g, dtype=torch.float64, exact=True, rope_parameters=None, attention="sdpa"):
    """The transformers model of GGUF `g`. Its exact form never uses the library's float32 steps."""
    cfg = config(g, rope_parameters)
    cfg._attn_implementation = attention
    kind = {"llama": transformers.LlamaForCausalLM, "qwen2": transformers.Qwen2ForCausalLM,
            "qwen3": transformers.Qwen3ForCausalLM, "gemma3": transformers.Gemma3ForCausalLM}[g.arch]
    with torch.device("meta"):
        model = kind(cfg)
    # Buffers (rotary tables, embedding scale) cannot stay on the meta device: take them from a small twin.
    model = model.to_empty(device="cpu").to(dtype).eval()
    fill_buffers(model, cfg, kind)
    weights = {k: v.to(dtype) for k, v in state_dict(g, np.float64 if dtype == torch.float64 else np.float32).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    if exact:
        for m in model.modules():
            if m.__class__.__name__.endswith("RMSNorm"):
                m.forward = types.MethodType(exact_norm, m)
            elif m.__class__.__name__.endswith("RotaryEmbedding"):
                m.forward = types.MethodType(exact_rotary(g), m)
            elif m.__class__.__name__ == "Gemma3TextScaledWordEmbedding":
                m.embed_scale = torch.tensor(cfg.hidden_size**0.5, dtype=dtype)
    return model


def fill_buffers(model, cfg, kind):
    small = {**cfg.to_dict(), "num_hidden_layers": 2, "vocab_size": 8}
    # gemma3 makes a rotary table per kind of layer, so the twin has one layer of each.
    small["layer_types"] = ["sliding_attention", "full_attention"] if cfg.model_type == "gemma3_text" else None
    have = dict(kind(cfg.__class__(**small)).named_buffers())
    for name, _ in list(model.named_buffers()):
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, have[name].clone())


def run(model, ids):
    """(logits [n, vocab], hidden states: embedding, after each layer, after the last norm)."""
    hidden, hooks = [], []

    def keep(_module, _inputs, output):
        hidden.append((output[0] if isinstance(output, tuple) else output)[0].clone())
    for m in (model.model.embed_tokens, *model.model.layers, model.model.norm):
        hooks.append(m.register_forward_hook(keep))
    out = model(input_ids=torch.tensor([list(ids)]), use_cache=False)
    for h in hooks:
        h.remove()
    return out.logits[0].numpy(), [h.numpy() for h in hidden]
