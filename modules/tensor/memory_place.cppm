export module tessera.tensor:memory_place;

import tessera.base;
import :value;

export namespace tessera {

/// A place for values between their uses that is not the device's memory: the host's, a file. What
/// is kept there are parameters, gradients and the optimizer's state (nn::MemoryPlaces), and values
/// of a captured step (graph::ExecutionOptions::elsewhere). Its tensors are of the CPU, and outlive
/// it. One thread uses it.
class MemoryPlace {
 public:
  virtual ~MemoryPlace();
  /// A new contiguous tensor in this place; not initialised. Errors (run): there is no space.
  virtual Tensor allocate(const Dims& shape, DType dtype) = 0;
  /// Likewise, where a device other than the CPU copies the values from and to this place. Without
  /// a body of the place's: allocate().
  virtual Tensor allocate_for(Device device, const Dims& shape, DType dtype);
  /// Begins to bring the tensor's values near: they are used soon. Does not wait.
  virtual void fetch(const Tensor& x);
  /// The values are not used for a while: begins to store what was written, and lets go of memory
  /// that has copies of them. Does not wait.
  virtual void put_away(const Tensor& x);
};

/// A new tensor in the place; on the meta device, one that takes no memory.
Tensor allocate_in(MemoryPlace& place, const Dims& shape, DType dtype, Device device);

}  // namespace tessera
