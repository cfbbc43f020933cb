"""Codes and scales of torchao's NF4 functions, with the levels of the QLoRA paper: data/nf4.safetensors.

torchao's own table has these levels rounded to four digits.
"""

import torch
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import NF4Tensor

from common import DATA, write_tensors

LEVELS = [-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
          0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0]


def main():
    torch.manual_seed(11)
    weight = torch.randn(192, 256) * torch.linspace(0.01, 3, 192)[:, None]  # 3 blocks of 256 scales
    weight[7, 64:128] = 0  # a block of zeros but for one
    weight[7, 70] = 1e-3
    scales, factors, mean = NF4Tensor.double_quantize_scalers(weight.flatten(), 64, 256)
    codes = NF4Tensor.convert_to_norm_float_weight(weight, weight.numel() // 64, 64, torch.tensor(LEVELS))
    levels = torch.tensor(LEVELS)[torch.stack([codes >> 4, codes & 15], -1).flatten().long()]
    whole = (scales.view(-1, 256) / factors[:, None]).flatten() + mean
    values = (levels.view(-1, 64) * whole[:, None]).view(weight.shape)
    write_tensors(DATA / "nf4.safetensors", {
        "weight": weight, "codes": codes.view(192, 128), "scales": scales.view(192, 4), "factors": factors,
        "mean": mean.view(1), "values": values.contiguous()})
    print("largest error", (values - weight).abs().max().item())


main()
