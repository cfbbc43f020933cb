// A box of a tensor whose bytes are in a mapped file.
module tessera.checkpoint:box;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :file_bytes;
import :source;

namespace tessera::checkpoint_detail {

/// Of each dim; such as where a box begins within another one.
Dims difference(const Dims& a, const Dims& b);
/// The box of `x` at `begin` (x's own indices), sharing its memory.
Tensor box_of(const Tensor& x, const Dims& begin, const Dims& shape);
/// The box of a tensor at `data` as a tensor of its own; nothing is copied when the elements are
/// aligned. The memory is only read.
Tensor view_of_box(const std::byte* data, const TensorInfo& info, const LocalPart& box);

/// Copies the box of the tensor `info`, which has all of `bytes` (a range of the file), into a
/// plain tensor of the box's shape. Error (input) that begins with `what`: a boolean is neither 0
/// nor 1; the file was truncated.
void copy_stored(const FileBytes& file, std::span<const std::byte> bytes, const TensorInfo& info,
                 const LocalPart& box, const Tensor& into, const std::string& what);

}  // namespace tessera::checkpoint_detail
