"""The 8-bit floating types and torchao's float8 training: data/float8.safetensors.

Conversions: what torch's .to() makes of values of other types, as codes, and the values of all 256 codes.
"""

import torch
from safetensors.torch import save_file

from common import DATA

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TYPES = {"f8e4m3": E4M3, "f8e5m2": E5M2}


def boundaries(dtype):
    """All values of the type, the middles between neighbours, and the f32 numbers beside both."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float64)
    values = codes[codes.isfinite()].unique()
    points = torch.cat([values, (values[1:] + values[:-1]) / 2]).to(torch.float32)
    below = torch.nextafter(points, torch.tensor(-torch.inf))
    above = torch.nextafter(points, torch.tensor(torch.inf))
    return torch.cat([points, below, above])


def conversions():
    generator = torch.Generator().manual_seed(1)
    spread = torch.randn(2000, generator=generator) * torch.exp2(torch.randint(-20, 20, (2000,), generator=generator))
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 464, 464.1, 480, 512, 61439, 61440, 65536, 3e38, 1e-40])
    tensors = {"from_f32": torch.cat([boundaries(E4M3), boundaries(E5M2), spread, special])}
    # Beside the middles by less than an f32 can tell: torch rounds to f32 first.
    tensors["from_f64"] = torch.cat([tensors["from_f32"].double(), boundaries(E4M3).double() * (1 + 1e-12)])
    every_seventh = torch.arange(0, 65536, 7).to(torch.uint16)
    tensors["from_bf16"] = every_seventh.view(torch.bfloat16)
    tensors["from_f16"] = every_seventh.view(torch.float16)
    tensors["from_i64"] = torch.cat([torch.arange(-600, 600), torch.tensor([2**40, -(2**62), 57344, 61440])])
    tensors["from_u8"] = torch.arange(256, dtype=torch.uint8)
    tensors["from_i8"] = torch.arange(256, dtype=torch.uint8).view(torch.int8)
    tensors["from_bool"] = torch.tensor([True, False])
    for source in [name for name in tensors if name.startswith("from_")]:
        for name, dtype in TYPES.items():
            tensors[source.replace("from_", "") + "_to_" + name] = tensors[source].to(dtype)
    all_codes = torch.arange(256, dtype=torch.uint8)
    for name, dtype in TYPES.items():
        values = all_codes.view(dtype)
        tensors["from_" + name] = values
        for other, wide in {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}.items():
            tensors[f"{name}_to_{other}"] = values.to(wide)
        for other, dtype_of in TYPES.items():
            if other != name:
                tensors[f"{name}_to_{other}"] = values.to(dtype_of)
    # In range, as what is beyond it is not defined in C++.
    in_range = torch.tensor([0.0, 1.9, -1.9, 126.7, -127.9, -128.0, 127.0])
    tensors["in_range"] = in_range
    tensors["in_range_to_i8"] = in_range.to(torch.int8)
    return tensors


if __name__ == "__main__":
    path = DATA / "float8.safetensors"
    save_file({name: tensor.clone() for name, tensor in conversions().items()}, path)
    path.chmod(0o644)
