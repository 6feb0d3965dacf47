#!/usr/bin/env python3
"""Writes the small random-weight GGUF files of the goldens, one per line of a spec file.

Names of metadata keys, names, shapes and order of tensors, the type of each tensor and the row permutation of
llama's q and k are those of llama.cpp's own converter (and of its quantiser, for files that mix types). The
weights are random; only their sizes are chosen so that logits and attention scores have an ordinary spread.

  weights F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1   normal random numbers, quantised by gguf-py
  weights Q2_K..Q6_K IQ4_NL IQ4_XS                random blocks: every bit of quants and sub-scales is random,
                                                  then the f16 scale is set so that the tensor has the wanted spread

Everything derives from the seed in the spec, so a rerun gives the same bytes (SHA256SUMS checks that).

Run:  python make_tiny_models.py [out_dir]        default: ../tiny
"""
import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

import tiny_vocab

HERE = Path(__file__).resolve().parent
RANDOM_BLOCKS = {T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS}
FILE_TYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 12,
             "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32}


# ---------------------------------------------------------------- weights
def random_blocks(rng, rows, cols, qtype, std):
    """Bytes [rows, row_bytes] of random blocks whose dequantised values have standard deviation `std`."""
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    n = rows * (cols // block)
    b = rng.integers(0, 256, (n, size), dtype=np.uint8)
    # A scale per block, spread by 2x; types whose quantiser yields negative scales get both signs.
    d = rng.uniform(0.7, 1.4, n).astype(np.float32)
    if qtype in (T.Q3_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS):
        d *= rng.choice([-1.0, 1.0], n).astype(np.float32)
    # Byte offsets of the f16 scale `d` and, where there is one, of the f16 `dmin`. dmin/d is the middle of the
    # quant range, so that values centre on zero when the sub-scale equals the sub-min.
    d_at, dmin_at, middle = {
        T.Q2_K: (80, 82, 1.5), T.Q3_K: (108, None, 0), T.Q4_K: (0, 2, 7.5), T.Q5_K: (0, 2, 15.5),
        T.Q6_K: (208, None, 0), T.IQ4_NL: (0, None, 0), T.IQ4_XS: (0, None, 0)}[qtype]

    def put(at, x):
        b[:, at:at + 2] = x.astype("<f2").reshape(-1, 1).view(np.uint8)

    def scales(unit):
        put(d_at, d * unit)
        if dmin_at is not None:
            put(dmin_at, d * unit * np.float32(middle))

    if qtype == T.Q6_K:  # 16 signed 8-bit sub-scales: keep |scale| >= 16 so that no sub-block vanishes
        s = b[:, 192:208].view(np.int8)
        s[...] = np.where(np.abs(s.astype(int)) < 16, 64, s)
    scales(np.float32(2.0**-6))
    values = dequantize(b.reshape(rows, -1), qtype)
    scales(np.float32(2.0**-6 * std / values.std()))
    return b.reshape(rows, -1)


def matrix(rng, rows, cols, qtype, std):
    if qtype in RANDOM_BLOCKS:
        return random_blocks(rng, rows, cols, qtype, std)
    w = (rng.standard_normal((rows, cols), dtype=np.float32) * np.float32(std)).astype(np.float32)
    return w if qtype == T.F32 else quantize(w, qtype)


def permute(rows, n_head):
    """llama only: the converter's row order of q and k, so that rotary pairs lie side by side."""
    return rows.reshape(n_head, 2, rows.shape[0] // n_head // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def tensors(s):
    """Yields (name, data, type or None for F32 vectors) in the order of the converter."""
    rng = np.random.default_rng(s["seed"])
    h, ff, nh, kv, hd = s["hidden"], s["ffn"], s["heads"], s["kv_heads"], s["head_dim"]
    arch, gemma = s["arch"], s["arch"] == "gemma3"

    def kind(name, layer=None):  # the most specific entry of "types" wins: "ffn_down.1", "ffn_down", "default"
        t = s["types"]
        return T[t.get(f"{name}.{layer}", t.get(name, t["default"]))]

    def vector(n, lo, hi):
        return rng.uniform(lo, hi, n).astype(np.float32)

    if "llama3_rope" in s:
        yield "rope_freqs.weight", llama3_factors(s), None
    embd = kind("token_embd")
    # Tied embeddings serve as the output matrix: their spread sets that of the logits, about 3. gemma3 multiplies the
    # input by sqrt(h); with 3 each position would just repeat its own token, with 1 the context decides.
    tok = matrix(rng, s["vocab"], h, embd, (1.0 if gemma else 3.0) / np.sqrt(h) if s["tied"] else 1.0)
    if not s["tied"]:
        yield "output.weight", matrix(rng, s["vocab"], h, kind("output"), 3.0 / np.sqrt(h)), kind("output")
    yield "token_embd.weight", tok, embd
    for i in range(s["layers"]):
        def mat(name, rows, cols, gain):
            return matrix(rng, rows, cols, kind(name, i), gain / np.sqrt(cols))

        p = f"blk.{i}."
        yield p + "attn_norm.weight", vector(h, 0.6, 1.4), None
        yield p + "ffn_down.weight", mat("ffn_down", h, ff, 1.0), kind("ffn_down", i)
        yield p + "ffn_gate.weight", mat("ffn_gate", ff, h, 1.0), kind("ffn_gate", i)
        yield p + "ffn_up.weight", mat("ffn_up", ff, h, 1.0), kind("ffn_up", i)
        if gemma:  # pre and post norms; the file holds 1 + w, as the converter folds gemma's "+ 1" in
            yield p + "post_attention_norm.weight", vector(h, 0.3, 1.2), None
            yield p + "post_ffw_norm.weight", vector(h, 0.3, 1.2), None
        yield p + "ffn_norm.weight", vector(h, 0.6, 1.4), None
        if arch in ("qwen3", "gemma3"):
            yield p + "attn_k_norm.weight", vector(hd, 0.6, 1.6), None
        k, q = mat("attn_k", kv * hd, h, 1.2), mat("attn_q", nh * hd, h, 1.2)
        if arch == "llama":
            k, q = permute(k, kv), permute(q, nh)
        if arch == "qwen2":
            yield p + "attn_k.bias", vector(kv * hd, -1.0, 1.0), None
        yield p + "attn_k.weight", k, kind("attn_k", i)
        yield p + "attn_output.weight", mat("attn_output", h, nh * hd, 1.0), kind("attn_output", i)
        if arch in ("qwen3", "gemma3"):
            yield p + "attn_q_norm.weight", vector(hd, 0.6, 1.6), None
        if arch == "qwen2":
            yield p + "attn_q.bias", vector(nh * hd, -1.0, 1.0), None
        yield p + "attn_q.weight", q, kind("attn_q", i)
        if arch == "qwen2":
            yield p + "attn_v.bias", vector(kv * hd, -1.0, 1.0), None
        yield p + "attn_v.weight", mat("attn_v", kv * hd, h, 1.0), kind("attn_v", i)
    yield "output_norm.weight", vector(h, 0.6, 1.4), None


def llama3_factors(s):
    """Divisors of the rotary frequencies, as the converter derives them (in float32) from a llama3 rope_scaling."""
    r, dim = s["llama3_rope"], s["head_dim"]
    freqs = np.float32(1.0) / np.float32(s["rope_base"]) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    low, high, old, factor = r["low_freq_factor"], r["high_freq_factor"], r["original_ctx"], r["factor"]
    out = []
    for wavelen in np.float32(2 * np.pi) / freqs:
        if wavelen < old / high:
            out.append(1.0)
        elif wavelen > old / low:
            out.append(factor)
        else:
            smooth = (old / wavelen - low) / (high - low)
            out.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return np.array(out, np.float32)


# ---------------------------------------------------------------- metadata
def write(s, path):
    w = gguf.GGUFWriter(path, s["arch"])
    if "alignment" in s:
        w.add_custom_alignment(s["alignment"])
    w.add_type("model")
    w.add_name(s["name"])
    w.add_size_label("tiny")
    w.add_block_count(s["layers"])
    w.add_context_length(s["ctx"])
    w.add_embedding_length(s["hidden"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_rope_freq_base(s["rope_base"])
    if "rope_base_swa" in s:  # absent: 10000, the value that readers assume for gemma3
        w.add_rope_freq_base_swa(s["rope_base_swa"])
    w.add_layer_norm_rms_eps(s["eps"])
    # Llama and Qwen2 files have no key_length when head_dim is hidden / heads; Qwen3 and Gemma3 always have it.
    if s["head_dim"] * s["heads"] != s["hidden"] or s["arch"] in ("qwen3", "gemma3") or s.get("key_length"):
        w.add_key_length(s["head_dim"])
        w.add_value_length(s["head_dim"])
    w.add_file_type(FILE_TYPE[s["types"]["default"]])
    if s["arch"] == "llama":
        w.add_vocab_size(s["vocab"])
        w.add_rope_dimension_count(s["head_dim"])
    if s["arch"] == "gemma3":
        w.add_sliding_window(s["window"])
        if "window_pattern" in s:  # absent: every 6th layer is global, the rest are windowed
            w.add_uint32("gemma3.attention.sliding_window_pattern", s["window_pattern"])
    tiny_vocab.write(w, s)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for name, data, qtype in tensors(s):
        w.add_tensor(name, data, raw_dtype=None if qtype in (None, T.F32, T.F16) else qtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "tiny"
    out.mkdir(parents=True, exist_ok=True)
    sums = []
    for s in json.loads((HERE / "tiny_specs.json").read_text()):
        path = out / (s["name"] + ".gguf")
        write(s, path)
        sums.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.name}")
    (out / "SHA256SUMS").write_text("\n".join(sums) + "\n")


if __name__ == "__main__":
    main()
