"""Makes ../losses.json: gated units, norms, cross entropies and rotary tables by torch (f64) and transformers (f32).

Needs torch and transformers; run from anywhere with `python losses.py`.
"""

import json
import pathlib
import types

import torch
import torch.nn.functional as F
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

torch.manual_seed(5)


def draw(*shape):
    return (torch.randn(*shape, dtype=torch.float64) * 100).round() / 100


def flat(t):
    return t.detach().reshape(-1).tolist()


def glu(gate):
    a, b, dy = (draw(6) for _ in range(3))
    a[:2] = torch.tensor([-30.0, 30.0])
    a.requires_grad_(), b.requires_grad_()
    y = (F.silu(a) if gate == "silu" else F.gelu(a, approximate="tanh")) * b
    da, db = torch.autograd.grad(y, (a, b), dy)
    return dict(gate=gate, a=flat(a), b=flat(b), dy=flat(dy), y=flat(y), da=flat(da), db=flat(db))


def norm():
    x, w, dy = draw(3, 5), draw(5), draw(3, 5)
    x[1] = 0
    x.requires_grad_(), w.requires_grad_()
    y = F.rms_norm(x, (5,), w, 1e-5)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    return dict(x=flat(x), w=flat(w), dy=flat(dy), y=flat(y), dx=flat(dx), dw=flat(dw))


def loss(reduction, scale=1.0, cap=0.0, smooth=0.0, z=0.0):
    tokens, hidden, vocab = 5, 3, 7
    h, w, bias = draw(tokens, hidden), draw(vocab, hidden), draw(vocab)
    targets = torch.tensor([6, -100, 0, 3, 3])
    up = draw(tokens) if reduction == "none" else draw(1)
    for t in (h, w, bias):
        t.requires_grad_()
    x = h @ w.T + bias
    c = scale * x
    c = cap * torch.tanh(c / cap) if cap else c
    live = (targets != -100).double()
    lse = torch.logsumexp(c, -1)
    losses = F.cross_entropy(c, targets, label_smoothing=smooth, reduction="none") + live * z * lse**2
    total = losses.sum() / (live.sum() if reduction == "mean" else 1)
    end = (losses * up).sum() if reduction == "none" else total * up[0]
    grads = torch.autograd.grad(end, (x, h, w, bias))
    names = ("dx", "dh", "dw", "dbias")
    return dict(
        reduction=reduction, scale=scale, cap=cap, smooth=smooth, z=z, vocab=vocab,
        targets=[t % 2**32 for t in targets.tolist()], h=flat(h), w=flat(w), bias=flat(bias), up=flat(up),
        loss=flat(losses), lse=flat(lse * live), total=total.item(), **{n: flat(g) for n, g in zip(names, grads)},
    )


def table(kind, dims=16, base=10000.0, context=None, **parameters):
    config = types.SimpleNamespace(
        hidden_size=2 * dims, num_attention_heads=2, head_dim=dims,
        max_position_embeddings=parameters.pop("limit", 4096),
        partial_rotary_factor=1.0, rope_theta=base,
        rope_parameters=dict(rope_type=kind, rope_theta=base, **parameters), standardize_rope_params=lambda: None,
    )
    if "original_max_position_embeddings" in parameters:
        config.original_max_position_embeddings = parameters["original_max_position_embeddings"]
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config, device="cpu", seq_len=context)
    parameters.pop("rope_theta", None)
    return dict(kind=kind, dims=dims, base=base, context=context or 0, limit=config.max_position_embeddings,
                frequencies=flat(frequencies), magnitude=float(magnitude), **parameters)


def rotation(pairs):
    tokens, heads, dim = 3, 2, 8
    x = draw(tokens, heads, dim)
    positions = torch.tensor([0, 5, 4000])
    frequencies = 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    angles = (positions.float()[:, None] * frequencies.float()[None]).double()
    if pairs == "halves":
        full = torch.cat([angles, angles], -1)[None]
        y, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], full.cos(), full.sin())
        y = y[0].transpose(0, 1)
    else:
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]
        y = torch.view_as_real(torch.view_as_complex(x.reshape(tokens, heads, 4, 2)) * turn).reshape(x.shape)
    return dict(pairs=pairs, positions=positions.tolist(), frequencies=flat(frequencies.float()), x=flat(x), y=flat(y))


def tables():
    short, long = [1.0 + 0.1 * i for i in range(8)], [2.0 + 0.5 * i for i in range(8)]
    extended = dict(short_factor=short, long_factor=long, original_max_position_embeddings=4096, limit=131072)
    yield table("linear", factor=4.0)
    yield table("dynamic", factor=2.0, context=10000)
    yield table("dynamic", factor=2.0, context=1000)
    yield table("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, base=500000.0, dims=64,
                original_max_position_embeddings=8192)
    yield table("yarn", factor=16.0, dims=64, original_max_position_embeddings=4096)
    yield table("yarn", factor=40.0, mscale=1.0, mscale_all_dim=0.8, original_max_position_embeddings=4096)
    yield table("yarn", factor=32.0, truncate=False, base=150000.0, dims=64, original_max_position_embeddings=4096)
    yield table("longrope", context=1000, **extended)
    yield table("longrope", context=9000, **extended)
    if "proportional" in ROPE_INIT_FUNCTIONS:
        yield table("proportional", factor=1.0, partial_rotary_factor=0.25, base=1000000.0, dims=64)


made = dict(
    glu=[glu("silu"), glu("gelu")],
    norm=[norm()],
    loss=[
        loss("mean"),
        loss("sum", smooth=0.2),
        loss("none", scale=0.5, cap=2.0),
        loss("mean", scale=2.0, cap=3.0, smooth=0.1, z=0.01),
    ],
    rotation=[rotation("halves"), rotation("neighbours")],
    table=list(tables()),
)
path = pathlib.Path(__file__).parent.parent / "losses.json"
lines = [f'  "{k}": [\n' + ",\n".join("    " + json.dumps(c) for c in v) + "\n  ]" for k, v in made.items()]
path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
