"""Experts of gpt-oss in MXFP4, and what transformers makes of them: data/mxfp4.safetensors."""

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from common import DATA, write_tensors

EXPERTS, OUT, IN = 2, 64, 64  # of two blocks


def main():
    generator = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 256, (EXPERTS, OUT, IN // 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(100, 140, (EXPERTS, OUT, IN // 32), dtype=torch.uint8, generator=generator)
    scales[0, 0] = torch.tensor([2, 252], dtype=torch.uint8)
    values = convert_moe_packed_tensors(blocks.clone(), scales.clone())
    assert values.shape == (EXPERTS, IN, OUT) and values.isfinite().all() and values.dtype == torch.bfloat16
    layer = "model.layers.0.mlp.experts.gate_up_proj"
    write_tensors(DATA / "mxfp4.safetensors", {
        f"{layer}_blocks": blocks, f"{layer}_scales": scales, "values": values.contiguous()})


if __name__ == "__main__":
    main()
