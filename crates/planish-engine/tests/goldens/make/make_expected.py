#!/usr/bin/env python3
"""Computes what the tiny models must produce, with ref_numpy.py in float64, and writes one JSON file a model.

check_reference.py compares the result with transformers, which shares no model code with ref_numpy.py.
"deviation" is how far the reference itself is from float64 in each arithmetic of ref_numpy.MODES, at the last position.

Run:  python make_expected.py [model_dir [out_dir]]     default: ../tiny ../tiny_expected
"""
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import ref_numpy
from compare_logits import stats
from ref_tokenizer import RefTokenizer

HERE = Path(__file__).resolve().parent
TEXTS = ["The quick brown fox", " hello  world   !\n\n\nfoo\t\tbar", "123 4567 1984's it's IT'S 12", "Caf\u00e9 stra\u00dfe \u4f60\u597d \U0001f642",
         "def add(a, b):\n    return a + b\n", "the the  the   the    the", "\r\n\r\n x\n", "", " ", "x[i] * y[i]; }",
         "e. e . 1 a 1", "<|im_start|>user<|im_end|>", "<bos>a<end_of_turn>\n\n", "<tool_call> <table>", "\u00bd \u00b2 \u0663 \u2167"]


def number(x, digits=9):
    """Nine significant digits: below the precision of any engine that is compared."""
    return float(f"{x:.{digits}g}")


def numbers(a, digits=9):
    return [number(x, digits) for x in np.asarray(a, np.float64).ravel()]


def layer_summary(h):
    """Of one hidden state [n, width]: the last position's norm, sum and border values, and the norm over all positions."""
    v = h[-1]
    return {"norm": number(np.linalg.norm(v)), "sum": number(v.sum()), "first": numbers(v[:4]), "last": numbers(v[-4:]),
            "norm_all": number(np.linalg.norm(h))}


def prompts(spec):
    rng = np.random.default_rng(spec["seed"] + 500000)
    for name, n in (("short", 5), ("long", 96 + spec["seed"] % 11)):
        yield name, rng.integers(0, spec["vocab"], n).tolist()


def expect(spec, path):
    g = ref_numpy.Gguf(path, keep=True)
    probe = np.unique(np.linspace(0, spec["vocab"] - 1, 8).round().astype(int)).tolist()
    out = []
    for name, ids in prompts(spec):
        logits, hidden = ref_numpy.forward(g, ids)
        top = np.sort(logits[-1])[::-1]
        deviation = ref_numpy.deviations(g, ids, lambda got: stats(logits[-1], got))
        out.append({"name": name, "ids": ids, "top_gap": number(top[0] - top[1]), "logits_last": numbers(logits[-1]),
                    "argmax": logits.argmax(1).tolist(), "probe_ids": probe,
                    "probe_logits_all": [numbers(r, 7) for r in logits[:, probe]],  # judged to 1e-4 at best
                    "layers": [layer_summary(h) for h in hidden],
                    "deviation": deviation})
    return out


def tokenizer_vectors(path):
    tok = RefTokenizer(path)
    return [{"text": t, "parse_special": True, "add_special": True, "ids": tok.encode(t)} for t in TEXTS]


def main():
    models = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "tiny"
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else HERE.parent / "tiny_expected"
    out.mkdir(parents=True, exist_ok=True)
    for spec in json.loads((HERE / "tiny_specs.json").read_text()):
        path = models / (spec["name"] + ".gguf")
        result = {"model": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "arch": spec["arch"],
                  "prompts": expect(spec, path), "tokenizer": tokenizer_vectors(path)}
        text = json.dumps(result, ensure_ascii=True, separators=(",", ":"))
        # A prompt and each of its larger parts start a line, so that a diff says what changed.
        text = text.replace('{"name"', '\n{"name"')
        for key in ("probe_logits_all", "layers", "deviation", "tokenizer"):
            text = text.replace(f',"{key}"', f',\n"{key}"')
        (out / (spec["name"] + ".json")).write_text(text + "\n")
        d = result["prompts"][1]["deviation"]
        print(f"{spec['name']:26s}", *(f"{m} rms {v['rms']:.1e} max {v['max']:.1e}" for m, v in d.items()), sep="  ", flush=True)


if __name__ == "__main__":
    main()
