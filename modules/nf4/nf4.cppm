// NF4: weights as 4-bit codes with scales, as bitsandbytes and torchao have them.
export module tessera.nf4;

export import :nf4_codes;  // encode, decode, scales of blocks
