"""Reads a GGUF file that `tessera checkpoint export --format gguf` wrote with ggml's package, and compares its tensors with
those of a folder that was exported in float32.

    check_gguf.py FILE FOLDER
"""

import json
import pathlib
import sys

import gguf
import numpy as np

from gguf_files import tensors_of

reader = gguf.GGUFReader(sys.argv[1])
folder = pathlib.Path(sys.argv[2])
config = json.loads((folder / "config.json").read_text())
arch = reader.fields["general.architecture"].contents()
stored = {tensor.name: tensor for tensor in reader.tensors}
compared, largest = 0, 0.0
for own, values in tensors_of(folder, config, arch).items():
    tensor = stored.pop(own)
    expected = gguf.quants.dequantize(gguf.quants.quantize(values, tensor.tensor_type), tensor.tensor_type)
    found = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
    assert np.array_equal(found, expected.reshape(values.shape)), own
    largest = max(largest, float(np.abs(found - values).max()))
    compared += 1
assert set(stored) <= {"rope_freqs.weight"}, stored
print(f"{compared} tensors are equal ({arch}); off the float32 values by at most {largest:.3g}")
