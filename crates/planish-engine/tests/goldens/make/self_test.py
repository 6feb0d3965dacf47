#!/usr/bin/env python3
"""Tests the goldens and their judge with the reference as the engine: what must pass does, and what must not does not.

  files     every model has the hash that its expected file names
  repeat    ref_numpy.py in float64 gives the stored logits again, at every position
  modes     in each working precision, with noise that the bounds were not made from, it passes compare_logits.py's judge
  faults    each planted fault below is noticed in f32 mode on every model that it can touch

Run:  python self_test.py        Exit 0: all of it holds.
"""
import contextlib
import hashlib
import json
import math
import sys
from pathlib import Path

import numpy as np

import ref_numpy as R
from compare_logits import judge

ROOT = Path(__file__).resolve().parent.parent
norm, rope, attention, params, forward = R.rms_norm, R.rope, R.attention, R.Params, R.forward


def with_params(**change):
    """Params with some of its values or methods replaced; each replacement is made from the true Params."""
    class Changed(params):
        def __init__(self, g):
            super().__init__(g)
            for k, f in change.items():
                setattr(self, k, f(self))
    return Changed


def grouped_wrongly(q, k, v, window):
    """Query head h reads kv head h % kv_heads."""
    heads, kv = q.shape[1], k.shape[1]
    order = [h for g in range(kv) for h in range(g, heads, kv)]
    out = attention(q[:, order], k, v, window).reshape(len(q), heads, -1)
    back = np.empty_like(out)
    back[:, order] = out
    return back.reshape(len(q), -1)


def erf_gelu(x):
    return (x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))).astype(x.dtype)


def without(part):
    """The reference on a file that lacks the tensors whose name contains `part`."""
    def run(g, *a, **k):
        kept = g.raw
        g.raw = {n: t for n, t in kept.items() if part not in n}
        try:
            return forward(g, *a, **k)
        finally:
            g.raw = kept
    return run


def early(p):
    return lambda layer: (layer + 1) % p.pattern < p.pattern - 1


FAULTS = [  # what, what a model's name must contain one of, {attribute of ref_numpy: replacement}
    ("rotary pairs of the other kind", "", dict(rope=lambda x, b, f, i: rope(x, b, f, not i))),
    ("rotary base 10000 everywhere", "qwen2 qwen3 llama3rope gemma3", dict(Params=with_params(base=lambda p: 10000.0))),
    ("rope_freqs.weight ignored", "llama3rope", dict(rope=lambda x, b, f, i: rope(x, b, None, i))),
    ("rotary base 0.1% off", "", dict(rope=lambda x, b, f, i: rope(x, b * 1.001, f, i))),
    ("norm epsilon 1e-5 <-> 1e-6", "", dict(Params=with_params(eps=lambda p: 1e-6 if p.eps > 5e-6 else 1e-5))),
    ("query heads on the wrong kv head", "", dict(attention=grouped_wrongly)),
    ("last key left out", "", dict(attention=lambda q, k, v, w: attention(q, np.concatenate([k[:-1], k[-2:-1]]), v, w))),
    ("k bias left out", "qwen2", dict(forward=without("attn_k.bias"))),
    ("q and k norms left out", "qwen3 gemma3", dict(forward=without("attn_q_norm"))),
    ("window one key too wide", "gemma3", dict(Params=with_params(window=lambda p: p.window + 1))),
    ("window one key too narrow", "gemma3", dict(Params=with_params(window=lambda p: p.window - 1))),
    ("every layer global", "gemma3", dict(Params=with_params(pattern=lambda p: 1))),
    ("global layer one too early", "gemma3", dict(Params=with_params(windowed=early))),
    ("global rotary base in windowed layers", "gemma3", dict(Params=with_params(base_local=lambda p: p.base))),
    ("embedding not scaled", "gemma3", dict(Params=with_params(hidden=lambda p: 1))),
    ("GELU by erf instead of tanh", "gemma3", dict(gelu_tanh=erf_gelu)),
    ("SiLU with 0.1% error", "llama qwen", dict(silu=lambda x: x / (1 + np.exp(-x)) * x.dtype.type(1.001))),
]


@contextlib.contextmanager
def planted(changes):
    saved = {k: getattr(R, k) for k in changes}
    for k, v in changes.items():
        setattr(R, k, v)
    try:
        yield
    finally:
        for k, v in saved.items():
            setattr(R, k, v)


def dump(g, ids, **how):
    with np.errstate(all="ignore"):
        logits = R.forward(g, ids, **how)[0].astype(np.float64)
    return {"logits": logits[-1], "positions": logits}


def positive(e, g):
    """Reasons why the true reference would not pass on the model of expected file `e`."""
    why = []
    if hashlib.sha256((ROOT / "tiny" / e["model"]).read_bytes()).hexdigest() != e["sha256"]:
        why.append("the file is not the one that its expected values belong to")
    for p in e["prompts"]:
        d = dump(g, p["ids"])
        off = np.abs(d["logits"] - p["logits_last"]).max()
        off_probe = np.abs(d["positions"][:, p["probe_ids"]] - p["probe_logits_all"]).max()
        if off > 5.1e-8 or off_probe > 5.1e-6:  # half a unit of the last stored digit, for logits below 100
            why.append(f"{p['name']}: float64 is {off:.1e} from the stored logits, {off_probe:.1e} from the probes")
        for name, mode in R.MODES.items():
            noise = R.noise(g, mode)
            how = dict(jitter=noise, rng=np.random.default_rng(1000)) if noise else {}
            why += [f"{p['name']} {name}: {w}" for w in judge(p, dump(g, p["ids"], **mode, **how), name)[1]]
    return why


def touches(what, names, e, g):
    if "wrong kv head" in what:
        return g.get("attention.head_count_kv") not in (1, g.get("attention.head_count"))
    return not names or any(n in e["model"] for n in names.split())


def noticed(e, g, changes):
    with planted(changes):
        return any(judge(p, dump(g, p["ids"], **R.MODES["f32"]), "f32")[1] for p in e["prompts"])


def main():
    expected = [json.loads(p.read_text()) for p in sorted((ROOT / "tiny_expected").glob("*.json"))]
    files = [(e, R.Gguf(ROOT / "tiny" / e["model"], keep=True)) for e in expected]
    bad = 0
    for e, g in files:
        why = positive(e, g)
        bad += bool(why)
        print("; ".join([f"{'FAIL' if why else 'ok  '} {e['model']}", *why]), flush=True)
    for what, names, changes in FAULTS:
        tried = [(e, g) for e, g in files if touches(what, names, e, g)]
        missed = [e["model"] for e, g in tried if not noticed(e, g, changes)]
        bad += bool(missed) or not tried
        verdict = "FAIL" if missed or not tried else "ok  "
        print(f"{verdict} {what}: noticed on {len(tried) - len(missed)} of {len(tried)}", *missed, flush=True)
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
