// GGUF as a format of checkpoints.
module tessera.checkpoint:gguf;

import tessera.base;
import :format;

namespace tessera::checkpoint_detail {

/// A file of ggml's format. Its fields are the source's meta data, under "gguf" as tessera/gguf.hpp
/// has them; tensors have ggml's names. What is written has the fields of the source's meta data,
/// and the stored types that the source names, as far as they can be written.
std::unique_ptr<CheckpointFormat> gguf_format();

}  // namespace tessera::checkpoint_detail
