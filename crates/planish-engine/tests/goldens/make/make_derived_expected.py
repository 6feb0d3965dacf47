#!/usr/bin/env python3
"""Computes what a derived model must produce for the prompts of another real golden, with ref_numpy.py in float64.

The ids come from that golden, so no tokenizer is needed. The greedy continuation is drafted from the golden's own: one
pass over prompt and draft gives the best id after every position, and where that leaves the draft the rest is drafted
anew. Fields are those of real/*.json; "precision" says that one implementation made them, not two.

Run:  python make_derived_expected.py MODEL.gguf GOLDEN.json OUT.json [LONGEST]
  LONGEST   leave out prompts of more ids than this: numpy takes minutes for a few hundred
"""
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import ref_numpy
from compare_logits import sparse_stats
from make_expected import layer_summary, number, numbers

TOP, PROBES = 64, 256


def greedy(g, ids, draft):
    """Best ids with log-probability and lead, one for each of `draft`."""
    out, rest = [], list(draft)
    while len(out) < len(draft):
        fed = ids + [i for i, _, _ in out] + rest[:-1]
        logits, _ = ref_numpy.forward(g, fed)
        for row in logits[len(ids) + len(out) - 1:]:
            best, second = np.argsort(-row, kind="stable")[:2]
            m = row.max()
            out.append((int(best), row[best] - m - np.log(np.exp(row - m).sum()), row[best] - row[second]))
            if best != rest.pop(0):
                rest = [int(best)] * (len(draft) - len(out))  # any draft will do: it is checked
                break
    return out


def expect(g, source):
    ids = source["ids"]
    logits, hidden = ref_numpy.forward(g, ids, last_only=True)
    last = logits[-1]
    order = np.argsort(-last, kind="stable")[:TOP]
    probe = np.unique(np.linspace(0, len(last) - 1, PROBES).round().astype(int))
    m = last.max()
    best = greedy(g, ids, source["greedy_ids"])
    p = {"name": source["name"], "text": source["text"], "ids": ids, "vocab": len(last),
         "top_gap": number(last[order[0]] - last[order[1]]), "logsumexp": float(m + np.log(np.exp(last - m).sum())),
         "top_ids": order.tolist(), "top_logits": numbers(last[order]),
         "probe_ids": probe.tolist(), "probe_logits": numbers(last[probe]), "greedy_ids": [i for i, _, _ in best],
         "greedy_logprobs": numbers([lp for _, lp, _ in best]), "greedy_gaps": numbers([gap for _, _, gap in best]),
         "layers": [layer_summary(h) for h in hidden]}
    p["deviation"] = ref_numpy.deviations(g, ids, lambda got: sparse_stats(p, got))
    return p


def main():
    path, golden, out = map(Path, sys.argv[1:4])
    longest = int(sys.argv[4]) if len(sys.argv) > 4 else sys.maxsize
    g = ref_numpy.Gguf(path, keep=True)
    done = []
    for source in json.loads(golden.read_text())["prompts"]:
        if len(source["ids"]) > longest:
            continue
        done.append(expect(g, source))
        same = sum(a == b for a, b in zip(done[-1]["greedy_ids"], source["greedy_ids"]))
        print(path.name, source["name"], same, "greedy ids as in", golden.name, flush=True)
    result = {"model": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "arch": g.arch,
              "bos_added": False, "precision": "float64, numpy alone", "prompts": done}
    text = json.dumps(result, ensure_ascii=True, separators=(",", ":"))
    for key in ("name", "ids", "top_ids", "probe_ids", "greedy_ids", "layers", "deviation"):
        text = text.replace(f',"{key}"', f',\n"{key}"').replace('{"' + key + '"', '\n{"' + key + '"')
    out.write_text(text + "\n")


if __name__ == "__main__":
    main()
