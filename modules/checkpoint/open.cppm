export module tessera.checkpoint:open;

import tessera.base;
import :source;

export namespace tessera {

enum class TensorFormat : std::uint8_t {
  checkpoint,   ///< a folder of save_checkpoint
  safetensors,  ///< a model folder of transformers, or one .safetensors file
  torch,        ///< a folder of torch.distributed.checkpoint
};

struct OpenedTensors {
  TensorFormat format = TensorFormat::checkpoint;
  std::unique_ptr<TensorSource> source;
};

/// Opens what is at `path`, whatever its format. Error (input): it has none of these formats, or is
/// damaged.
OpenedTensors open_tensors(const std::string& path);

}  // namespace tessera
