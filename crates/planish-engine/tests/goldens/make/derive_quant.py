#!/usr/bin/env python3
"""Makes requantised copies of a real GGUF model, the same bytes every time, with gguf-py's quantisers.

Every matrix is dequantised to f32 and quantised again to TYPE, except that token_embd.weight keeps its own type unless
TYPE is F16 (files of this size usually keep it at 8 bits). Vectors stay F32; all metadata but the file type stays.

Run:  python derive_quant.py MODEL.gguf TYPE OUT.gguf        TYPE: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 F16 BF16
"""
import hashlib
import sys
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType as T, GGUFValueType
from gguf.quants import dequantize, quantize

from make_tiny_models import FILE_TYPE


def derive(source, kind, out):
    r = gguf.GGUFReader(source)
    w = gguf.GGUFWriter(out, r.fields["general.architecture"].contents())
    for key, f in r.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        sub = f.types[1] if f.types[0] == GGUFValueType.ARRAY else None
        w.add_key_value(key, f.contents(), f.types[0], sub_type=sub)
    w.add_file_type(FILE_TYPE[kind])
    for t in r.tensors:
        data, qtype = t.data, t.tensor_type
        if len(t.shape) > 1 and (t.name != "token_embd.weight" or kind == "F16") and qtype != T[kind]:
            qtype = T[kind]
            data = quantize(dequantize(t.data, t.tensor_type), qtype)
        w.add_tensor(t.name, data, raw_dtype=qtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    source, kind, out = sys.argv[1:]
    derive(source, kind, Path(out))
    print(hashlib.sha256(Path(out).read_bytes()).hexdigest(), out)
