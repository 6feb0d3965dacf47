#!/usr/bin/env python3
"""Writes ../attention.json: attention and its gradients in float64 by torch, with bottom-right masks.

Without a soft cap the outputs are those of scaled_dot_product_attention with an explicit mask, else of the definition;
gradients are autograd's. Inputs have two decimals. Needs torch; run it from anywhere.
"""
import json
import pathlib

import torch
import torch.nn.functional as F

torch.manual_seed(5)
HEADS, KV_HEADS, DIM = 4, 2, 3


def case(queries, keys, causal, window, softcap):
    def rows(heads, n):
        return (torch.randn(heads, n, DIM, dtype=torch.float64) * 100).round() / 100

    q, k, v, d_o = rows(HEADS, queries), rows(KV_HEADS, keys), rows(KV_HEADS, keys), rows(HEADS, queries)
    for x in (q, k, v):
        x.requires_grad_()
    i, j = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)[None, :]
    sees = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        sees &= j <= i
    if window:
        sees &= j > i - window
    scale = 0.75
    scores = scale * q @ k.repeat_interleave(HEADS // KV_HEADS, 0).transpose(1, 2)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~sees, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    if softcap:
        weights = torch.exp(scores - torch.where(lse.isinf(), 0, lse)[..., None])
        o = weights @ v.repeat_interleave(HEADS // KV_HEADS, 0)
    else:
        o = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=sees, scale=scale, enable_gqa=True)[0]
    gradients = torch.autograd.grad((o * d_o).sum(), (q, k, v))
    out = dict(queries=queries, keys=keys, causal=causal, window=window, scale=scale, softcap=softcap)
    flat = lambda x, digits: [round(e, digits) for e in x.detach().flatten().tolist()]
    for name, x in (("q", q), ("k", k), ("v", v), ("d_o", d_o)):
        out[name] = flat(x, 2)
    out["lse"] = [None if l == float("-inf") else round(l, 12) for l in lse.flatten().tolist()]
    for name, x in zip(("o", "d_q", "d_k", "d_v"), (o, *gradients)):
        out[name] = flat(x, 12)
    return out


cases = [
    case(3, 5, True, 0, 0.0),
    case(4, 2, True, 0, 0.0),
    case(4, 4, True, 2, 1.5),
    case(3, 4, False, 3, 0.0),
]
text = json.dumps(dict(heads=HEADS, kv_heads=KV_HEADS, dim=DIM, cases=cases), separators=(",", ":"))
pathlib.Path(__file__).parents[1].joinpath("attention.json").write_text(text.replace('{"queries', '\n{"queries') + "\n")
