module tessera.tensor;

import tessera.base;
import :memory_place;

namespace tessera {

MemoryPlace::~MemoryPlace() = default;
Tensor MemoryPlace::allocate_for(Device /*device*/, const Dims& shape, DType dtype) {
  return allocate(shape, dtype);
}
void MemoryPlace::fetch(const Tensor& /*x*/) {}
void MemoryPlace::put_away(const Tensor& /*x*/) {}

Tensor allocate_in(MemoryPlace& place, const Dims& shape, DType dtype, Device device) {
  return device == meta
             ? from_storage(Storage::none(), shape, contiguous_strides(shape), 0, dtype, meta)
         : device == cpu ? place.allocate(shape, dtype)
                         : place.allocate_for(device, shape, dtype);
}

}  // namespace tessera
