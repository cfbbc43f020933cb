// Whether the boxes that a file has of a tensor are all of it.
module tessera.checkpoint:coverage;

import tessera.base;
import tessera.placement;
import :source;

namespace tessera::checkpoint_detail {

/// Error (input) that names the tensor whose parts overlap, leave gaps or are outside of it.
void check_coverage(const std::string& name, const TensorInfo& info,
                    const std::vector<const LocalPart*>& parts, const std::string& path);
/// Whether a box is within a tensor of this shape, and not empty.
bool is_inside(const LocalPart& box, const Dims& shape);

}  // namespace tessera::checkpoint_detail
