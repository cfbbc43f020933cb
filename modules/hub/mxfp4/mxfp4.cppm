export module tessera.hub:mxfp4;

import tessera.base;
import tessera.checkpoint;

// Matrices of experts in blocks of 32 numbers of 4 bits with one scale (MXFP4), as gpt-oss's
// folders have them.

export namespace tessera::hub {

/// `folder` with a tensor X [experts, out, in] (bfloat16) in the place of each X_blocks [experts,
/// out, in / 32, 16] and X_scales [experts, out, in / 32], of bytes; null: it has none of them. Its
/// stored_rows() are blocks as ggml has them. It must outlive the result. Errors (input): one of
/// the two is missing, or has another type or shape; in reading, a scale that stands for no number.
/// Source: OCP Microscaling Formats 1.0 (2023).
std::unique_ptr<TensorSource> unpacked_mxfp4(const TensorSource& folder);

}  // namespace tessera::hub
