"""The 8-bit floating types and torchao's float8 training: data/float8.safetensors.

Conversions: what torch's .to() makes of values of other types, as codes, and the values of all 256 codes.
Layers: torchao's scales and codes of the operands of a Float8Linear's three products, and the layer's output and
gradients, for the recipes "tensorwise" and "rowwise" and for inputs in f32 and bf16. Products are computed by
torch._scaled_mm on the CPU.
"""

import torch
from safetensors.torch import save_file
from torchao.float8.config import Float8LinearConfig, ScalingGranularity
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated

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


def layer(recipe, dtype):
    """x [2, 8, 32] and a layer of 48 outputs: rows of different magnitudes, and a row of zeros."""
    generator = torch.Generator().manual_seed(3)
    config = Float8LinearConfig.from_recipe_name(recipe)
    linear = torch.nn.Linear(32, 48, bias=True)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(48, 32, generator=generator) * torch.exp2(torch.arange(48) % 7 - 5)[:, None])
        linear.weight[5] = 0
        linear.bias.copy_(torch.randn(48, generator=generator))
    linear = Float8Linear.from_float(linear.to(dtype), config)
    x = (torch.randn(2, 8, 32, generator=generator) * torch.exp2(torch.arange(16).reshape(2, 8, 1) % 5)).to(dtype)
    x.requires_grad_()
    dy = (torch.randn(2, 8, 48, generator=generator) * 1e-3).to(dtype)
    y = linear(x)
    y.backward(dy)
    w = linear.weight
    tensors = {"x": x, "weight": w, "bias": linear.bias, "dy": dy, "y": y, "dx": x.grad, "dw": w.grad, "db": linear.bias.grad}
    rows = ScalingGranularity.AXISWISE if recipe == "rowwise" else ScalingGranularity.TENSORWISE
    grad = config.cast_config_grad_output.target_dtype

    def operand(name, value, dtype, dim):
        scale = tensor_to_scale(value, dtype, scaling_granularity=rows, axiswise_dim=dim,
                                round_scales_to_power_of_2=config.round_scales_to_power_of_2)
        tensors[name + "_scale"] = scale
        tensors[name + "_codes"] = to_fp8_saturated(value.float() * scale, dtype)

    flat_x, flat_dy = x.detach().reshape(-1, 32), dy.reshape(-1, 48)
    operand("x", flat_x, E4M3, -1)
    operand("w", w.detach(), E4M3, -1)
    operand("g", flat_dy, grad, -1)
    if recipe == "rowwise":
        operand("w_columns", w.detach(), E4M3, 0)
        operand("x_columns", flat_x, E4M3, 0)
        operand("g_columns", flat_dy, grad, 0)
    name = recipe + ("_bf16/" if dtype == torch.bfloat16 else "/")
    return {name + key: value.detach().clone() for key, value in tensors.items()}


def layers():
    tensors = {}
    for recipe in ("tensorwise", "rowwise"):
        for dtype in (torch.float32, torch.bfloat16):
            tensors.update(layer(recipe, dtype))
    return tensors


if __name__ == "__main__":
    path = DATA / "float8.safetensors"
    save_file({name: tensor.clone() for name, tensor in (conversions() | layers()).items()}, path)
    path.chmod(0o644)
