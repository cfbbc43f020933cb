export module tessera.parallel:gradients;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.nn;

export namespace tessera::parallel {

/// Whether the current backward is the last one before the optimizer. If it is not (gradient
/// accumulation), styles that reduce gradients in backward skip the reduction. Per thread;
/// initially true.
bool gradient_sync_enabled();
class GradientSyncScope {
 public:
  explicit GradientSyncScope(bool enabled);
  ~GradientSyncScope();
  GradientSyncScope(const GradientSyncScope&) = delete;
  GradientSyncScope& operator=(const GradientSyncScope&) = delete;

 private:
  bool before_;
};

/// Redistributes every gradient to its parameter's layout after the last backward of a step. A
/// gradient that is Partial where its parameter is Replicate is summed over that axis, all of them
/// in one all-reduce for each axis; any other difference is redistributed by itself. Afterwards
/// those gradients are in one flat buffer, which is used again once they have been dropped.
/// Gradients that are kept over several steps add up.
class GradientFinisher {
 public:
  /// Errors: a parameter has a gradient on some ranks only (one small all-reduce finds it).
  void finish(std::span<const nn::ParameterPointer> parameters);
  /// The size of the buffers, which are memory that the ranks share.
  std::size_t shared_bytes() const;
  /// The flat buffer of this size for a mesh axis and a type; made, or made larger, where needed.
  /// It is larger than `elements` where an earlier step needed more.
  Tensor buffer(const DeviceMesh& mesh, int axis, DType dtype, std::int64_t elements,
                Device device = cpu);
  /// All of them by mesh axis and type.
  const std::map<std::pair<int, DType>, Tensor>& buffers() const { return buffers_; }

 private:
  void reduce(std::span<const nn::ParameterPointer> parameters);
  void reduce_axis(int axis, const std::vector<nn::Parameter*>& parameters);

  std::map<std::pair<int, DType>, Tensor> buffers_;  // by mesh axis and type
};

}  // namespace tessera::parallel
