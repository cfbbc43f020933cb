"""The maps of 8-bit optimizer state: data/quantization_maps.json. The function is bitsandbytes' create_dynamic_map
(bitsandbytes/functional.py, 0.45), for 8 bits and without its options."""

import torch

from common import DATA, write_json


def create_dynamic_map(signed=True, max_exponent_bits=7, total_bits=8):
    data = []
    non_sign_bits = total_bits - 1
    for i in range(max_exponent_bits):
        fraction_items = int(
            2 ** (i + non_sign_bits - max_exponent_bits) + 1 if signed
            else 2 ** (i + non_sign_bits - max_exponent_bits + 1) + 1)
        boundaries = torch.linspace(0.1, 1, fraction_items, dtype=torch.float32)
        means = (boundaries[:-1] + boundaries[1:]) / 2.0
        data += ((10 ** (-(max_exponent_bits - 1) + i)) * means).tolist()
        if signed:
            data += (-(10 ** (-(max_exponent_bits - 1) + i)) * means).tolist()
    data.append(0)
    data.append(1.0)
    assert len(data) == 2**total_bits
    data.sort()
    return data


if __name__ == "__main__":
    write_json(DATA / "quantization_maps.json", {"signed": create_dynamic_map(True), "unsigned": create_dynamic_map(False)})
