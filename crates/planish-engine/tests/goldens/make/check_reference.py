#!/usr/bin/env python3
"""Checks the tiny goldens against code that they do not share: the model classes of transformers.

For every tiny model
  file     the bytes are those of SHA256SUMS and of the expected file
  exact    ref_transformers.py in float64 is within 1e-9 of ref_numpy.py at every position of both prompts, in the
           logits and in all hidden states, and within the stored digits of the expected file
  loader   transformers' own GGUF loader yields the same tensors, bit for bit, that ref_transformers.py loads
  library  the unpatched model classes in float64 (whose norms and rotary tables stay float32) are within 2e-4
The loader knows neither rope_freqs.weight, nor qwen3's key_length, nor gemma3's window pattern; on those files the first
gives "not comparable" and the second gets these numbers from the spec.

Run:  python check_reference.py
"""
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

import ref_numpy
import ref_transformers

HERE = Path(__file__).resolve().parent


def exact(g, prompts):
    """Largest difference between the two implementations, and between transformers and the stored logits."""
    model, far, stored = ref_transformers.build(g), 0.0, 0.0
    for p in prompts:
        (logits, hidden), (again, hidden_again) = ref_transformers.run(model, p["ids"]), ref_numpy.forward(g, p["ids"])
        assert len(hidden) == len(hidden_again) == len(p["layers"])
        far = max(far, *(np.abs(a - b).max() for a, b in zip([logits, *hidden], [again, *hidden_again])))
        stored = max(stored, np.abs(logits[-1] - p["logits_last"]).max(),
                     np.abs(logits[:, p["probe_ids"]] - p["probe_logits_all"]).max() / 100)  # two digits fewer
    return far, stored


def loader(path, g):
    try:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).state_dict()
    except RuntimeError:  # shapes that the loader guesses wrongly
        return "not comparable"
    ours = ref_transformers.state_dict(g, np.float32)
    return "same" if all(torch.equal(theirs[k], ours[k]) for k in ours) else "DIFFERENT"


def library(spec, g, prompt):
    rope = None
    if r := spec.get("llama3_rope"):
        rope = {"rope_type": "llama3", "rope_theta": spec["rope_base"], "factor": r["factor"], "low_freq_factor": r["low_freq_factor"],
                "high_freq_factor": r["high_freq_factor"], "original_max_position_embeddings": r["original_ctx"]}
    model = ref_transformers.build(g, exact=False, rope_parameters=rope, attention="eager")
    logits, _ = ref_transformers.run(model, prompt["ids"])
    return np.abs(logits[-1] - prompt["logits_last"]).max()


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    root, bad = HERE.parent, 0
    sums = dict(reversed(line.split()) for line in (root / "tiny/SHA256SUMS").read_text().splitlines())
    for spec in json.loads((HERE / "tiny_specs.json").read_text()):
        path = root / "tiny" / (spec["name"] + ".gguf")
        expected = json.loads((root / "tiny_expected" / (spec["name"] + ".json")).read_text())
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        same = digest == sums[path.name] == expected["sha256"]
        g = ref_numpy.Gguf(path, keep=True)
        (apart, stored), far, how = exact(g, expected["prompts"]), library(spec, g, expected["prompts"][1]), loader(path, g)
        ok = same and apart < 1e-9 and stored < 5.1e-8 and far < 2e-4 and how != "DIFFERENT"
        bad += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {spec['name']:26s} file {'same' if same else 'CHANGED'}, "
              f"exact {apart:.1e}, stored {stored:.1e}, loader {how}, library {far:.1e}", flush=True)
    print(f"{len(sums) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
