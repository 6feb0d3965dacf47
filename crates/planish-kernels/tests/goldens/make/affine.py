"""Writes affine.json: weights in affine groups, what they expand to, and their products, by mlx.

pip install "mlx[cpu]" numpy; python affine.py > ../affine.json
"""
import json

import mlx.core as mx
import numpy as np

rng = np.random.default_rng(1)


def case(bits, group, rows, cols):
    w = mx.array(rng.standard_normal((rows, cols)).astype(np.float32))
    codes, scales, offsets = mx.quantize(w, group_size=group, bits=bits)
    expanded = mx.dequantize(codes, scales, offsets, group_size=group, bits=bits)
    x = mx.array(rng.standard_normal(cols).astype(np.float32))
    y = mx.quantized_matmul(x[None], codes, scales, offsets, transpose=True, group_size=group, bits=bits)
    flat = lambda v: [float(f"{e:.8g}") for e in np.array(v).flatten()]
    return dict(bits=bits, group=group, codes=np.array(codes).flatten().tolist(), scales=flat(scales),
                offsets=flat(offsets), w=flat(expanded), x=flat(x), y=flat(y))


sizes = [(2, 32, 2, 32), (3, 64, 1, 64), (4, 32, 1, 64), (5, 32, 1, 32), (6, 64, 1, 64), (8, 128, 1, 128)]
print("[" + ",\n".join(json.dumps(case(*s)) for s in sizes) + "]")
