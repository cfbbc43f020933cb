// Programs of torch.export as sources of tensors; what they compute is read by tessera.exported.
module tessera.checkpoint:exported;

import tessera.base;
import :format;

namespace tessera::checkpoint_detail {

std::unique_ptr<CheckpointFormat> exported_format();

}  // namespace tessera::checkpoint_detail
