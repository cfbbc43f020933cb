"""data/gguf/codes.safetensors: weights in the codes that ggml's C functions give them, the values that its Python package
decodes of these and of random codes, and products with the decoded values in float64.

    code_types.py LLAMA_CPP       LLAMA_CPP: the source of llama.cpp, of which one file is compiled

Packages: those of gguf_files.py.
"""

import ctypes
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

DATA = pathlib.Path(__file__).resolve().parent / "data"
ENCODED = {Type.Q4_0: "q4_0", Type.Q5_0: "q5_0", Type.Q8_0: "q8_0", Type.Q4_K: "q4_K", Type.Q5_K: "q5_K", Type.Q6_K: "q6_K"}
STUBS = """
#include <stdlib.h>
void ggml_abort(const char *file, int line, const char *text, ...) { abort(); }
size_t ggml_row_size(int type, long n) { return 0; }
size_t ggml_type_size(int type) { return 0; }
const char *ggml_type_name(int type) { return ""; }
"""


def library(source):
    """ggml-quants.c as a library; multiplications are not fused, as the bits depend on that."""
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "stubs.c").write_text(STUBS)
    ggml = pathlib.Path(source) / "ggml"
    subprocess.run(["cc", "-O1", "-ffp-contract=off", "-shared", "-fPIC", f"-I{ggml}/include", f"-I{ggml}/src", f"{ggml}/src/ggml-quants.c",
                    f"{folder}/stubs.c", "-o", f"{folder}/codes.so", "-lm"], check=True)
    return ctypes.CDLL(str(folder / "codes.so"))


def weights(random):
    """Rows of several kinds: usual ones, positive, sparse, equal, tiny, with outliers, zeros."""
    values = random.normal(size=(8, 512)).astype(np.float32)
    values[1] = np.abs(values[1]) * 0.02
    values[2] *= random.random(512) < 0.2
    values[3] = 0.25
    values[4] *= 1e-6
    values[5, ::61] *= 40
    values[6, :256] = 0
    values[7] = np.round(values[7] * 2) / 8
    return values


def main():
    random = np.random.default_rng(11)
    ggml = library(sys.argv[1])
    values = weights(random)
    x = random.normal(size=(3, 512)).astype(np.float32)
    found = {"values": values, "x": x}
    for kind in (*ENCODED, Type.Q4_1):
        if kind in ENCODED:
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            codes = np.zeros((values.shape[0], values.shape[1] // elements * size), np.uint8)
            for row, into in zip(values, codes):
                into[:] = encode(ggml, ENCODED[kind], row, into.size)
        else:
            codes = gguf.quants.quantize(values, kind)
        drawn = random.integers(0, 256, codes.shape, np.uint8)
        with np.errstate(all="ignore"):
            decoded = gguf.quants.dequantize(codes, kind)
            of_drawn = gguf.quants.dequantize(drawn, kind)
        assert decoded.dtype == np.float32
        found |= {f"{kind.name}.codes": codes, f"{kind.name}.decoded": decoded, f"{kind.name}.drawn": drawn,
                  f"{kind.name}.of_drawn": of_drawn.astype(np.float32),
                  f"{kind.name}.product": x.astype(np.float64) @ decoded.astype(np.float64).T}
    save_file(found, DATA / "gguf" / "codes.safetensors")


def encode(ggml, name, row, size):
    row = np.ascontiguousarray(row)
    into = np.zeros(size, np.uint8)
    function = getattr(ggml, f"quantize_row_{name}_ref")
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function.restype = None
    function(row.ctypes.data, into.ctypes.data, row.size)
    return into


if __name__ == "__main__":
    main()
