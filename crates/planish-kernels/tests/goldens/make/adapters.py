"""Writes adapters.json: LoRA, MLP and the gated delta rule with their gradients, by torch in f64.

pip install torch transformers; python adapters.py > ../adapters.json
Every input is a multiple of 1/64, which f32 holds exactly.
"""
import json

import torch
import torch.nn.functional as F
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

torch.manual_seed(1)


def draw(*shape, scale=1.0):
    x = torch.round(torch.randn(*shape, dtype=torch.float64) * scale * 64) / 64
    return x.requires_grad_()


def flat(**tensors):
    return {k: [float(v) for v in t.detach().flatten()] for k, t in tensors.items()}


def lora():
    rows, cols, outs, rank, scale = 3, 5, 4, 2, 0.75
    x, w, bias, a, b, dy = draw(rows, cols), draw(outs, cols), draw(outs), draw(rank, cols), draw(outs, rank), draw(rows, outs)
    y = F.linear(x, w, bias) + scale * F.linear(F.linear(x, a), b)
    y.backward(dy.detach())
    return flat(x=x, w=w, bias=bias, a=a, b=b, dy=dy, y=y, dx=x.grad, da=a.grad, db=b.grad)


def mlp():
    rows, cols, inter = 2, 4, 6
    x, wg, wu, wd = draw(rows, cols), draw(inter, cols), draw(inter, cols), draw(cols, inter)
    return flat(x=x, wg=wg, wu=wu, wd=wd, y=F.linear(F.silu(F.linear(x, wg)) * F.linear(x, wu), wd))


def norm():
    rows, cols, outs, rank = 2, 5, 3, 2
    x, gamma, w, a, b = draw(rows, cols), draw(cols), draw(outs, cols), draw(rank, cols), draw(outs, rank)
    n = F.rms_norm(x, (cols,), gamma, 1e-5)
    return flat(x=x, gamma=gamma, w=w, a=a, b=b, y=F.linear(n, w) + 0.75 * F.linear(F.linear(n, a), b))


def conv():
    batch, steps, channels, taps = 1, 5, 3, 4
    x, w = draw(batch, steps, channels), draw(channels, taps)
    y = F.conv1d(F.pad(x.transpose(1, 2), (taps - 1, 0)), w[:, None], groups=channels)
    return flat(x=x, w=w, y=F.silu(y).transpose(1, 2))


def delta(rule):
    batch, steps, heads, key_heads, key_dim, value_dim = 1, 5, 2, 1, 3, 2
    q, k = draw(batch, steps, key_heads, key_dim), draw(batch, steps, key_heads, key_dim, scale=0.6)
    v, g, beta = draw(batch, steps, heads, value_dim), draw(batch, steps, heads, scale=0.5), draw(batch, steps, heads)
    g, beta = (-g.abs()).detach().requires_grad_(), (beta.abs().clamp(max=1)).detach().requires_grad_()
    init, dy, ds = (draw(batch, heads, value_dim, key_dim) for _ in range(3))
    dy = draw(batch, steps, heads, value_dim)
    y, s = rule(q, k, v, g, beta, init, heads // key_heads)
    ((y * dy.detach()).sum() + (s * ds.detach()).sum()).backward()
    return flat(q=q, k=k, v=v, g=g, beta=beta, init=init, dy=dy, ds=ds, y=y, s=s, dq=q.grad, dk=k.grad, dv=v.grad,
                dg=g.grad, dbeta=beta.grad, dinit=init.grad)


def by_torch(q, k, v, g, beta, init, shared):
    q, k = q.repeat_interleave(shared, 2), k.repeat_interleave(shared, 2)
    s, out = init, []
    for t in range(q.shape[1]):
        s = s * g[:, t, :, None, None].exp()
        d = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhvk,bhk->bhv", s, k[:, t]))
        s = s + torch.einsum("bhv,bhk->bhvk", d, k[:, t])
        out.append(torch.einsum("bhvk,bhk->bhv", s, q[:, t]))
    return torch.stack(out, 1), s


def by_transformers(q, k, v, g, beta, init, shared):
    # It scales q itself, computes in f32, and keeps states the other way around.
    q, k = (q * q.shape[-1] ** 0.5).repeat_interleave(shared, 2), k.repeat_interleave(shared, 2)
    y, s = torch_recurrent_gated_delta_rule(q, k, v, g, beta, init.transpose(-1, -2), True)
    return y, s.transpose(-1, -2)


golden = {"lora": lora(), "mlp": mlp(), "rms_norm_lora": norm(), "conv1d": conv(), "gdn": delta(by_torch)}
torch.manual_seed(2)
golden["gdn_transformers"] = delta(by_transformers)
for name in ("dq", "dk", "dv", "dg", "dbeta", "dinit"):
    del golden["gdn_transformers"][name]
print("{\n" + ",\n".join(f' "{k}": {json.dumps(v)}' for k, v in golden.items()) + "\n}")
