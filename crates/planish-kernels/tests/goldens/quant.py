"""Writes quant.bin: random blocks of every weight type and what gguf.quants.dequantize makes of them.

Run with Python, numpy and gguf 0.19: `python quant.py` beside this file; the result is deterministic.
Layout, little endian, repeated to the end: u32 GGUF type, u32 bytes of blocks, u32 count of values, blocks, f32 values.
"""
import pathlib
import numpy as np
from gguf import GGMLQuantizationType as T, quants

# Type, elements and bytes of a block, byte offsets of its f16 fields.
TYPES = [
    (T.Q8_0, 32, 34, [0]), (T.Q4_0, 32, 18, [0]), (T.Q4_1, 32, 20, [0, 2]), (T.Q5_0, 32, 22, [0]),
    (T.Q5_1, 32, 24, [0, 2]), (T.Q2_K, 256, 84, [80, 82]), (T.Q3_K, 256, 110, [108]), (T.Q4_K, 256, 144, [0, 2]),
    (T.Q5_K, 256, 176, [0, 2]), (T.Q6_K, 256, 210, [208]), (T.IQ4_NL, 32, 18, [0]), (T.IQ4_XS, 256, 136, [0]),
    (T.F16, 1, 2, [0]), (T.BF16, 1, 2, []),
]
# f16 bits: zeros, the smallest and largest subnormals, small, ordinary and large numbers of both signs.
SCALES = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x2E66, 0xAE66, 0x3C00, 0xC123, 0x7BFF], np.uint16)


def main():
    rng = np.random.default_rng(20240613)
    out = b""
    for kind, elements, size, halves in TYPES:
        blocks = 64 if elements == 1 else 24 if elements == 32 else 12
        data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
        for i, at in enumerate(halves):
            bits = np.resize(SCALES, blocks) if i == 0 else rng.choice(SCALES, blocks)
            data[:, at:at + 2] = bits.astype("<u2").view(np.uint8).reshape(blocks, 2)
        if kind == T.BF16:
            data[:, 1] &= 0xBF
        values = quants.dequantize(data.reshape(1, -1), kind).astype("<f4").reshape(-1)
        assert values.size == blocks * elements, kind
        out += np.array([kind.value, data.size, values.size], "<u4").tobytes() + data.tobytes() + values.tobytes()
    pathlib.Path(__file__).with_name("quant.bin").write_bytes(out)


main()
