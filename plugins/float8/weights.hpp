// The weights of all layers of one style: their scales and their codes.
#pragma once

// Included after the imports of tessera's modules.
#include "arithmetic.hpp"

namespace float8 {

/// A layer's weight with what is computed from it.
struct Weight {
  tessera::nn::ParameterPointer parameter;
  /// The scale (f32, one number) of the whole weight; tensor-wise scaling only. A buffer, because
  /// a recorded step writes it and the next one reads it.
  tessera::nn::BufferPointer scale = {};
  // Which values the scale is of: the shard's memory and its version.
  const tessera::Storage* scaled_memory = nullptr;
  std::uint64_t scaled_version = 0;
  /// The codes of the values that forward computes with, while those stay; see Weights::codes.
  QuantizedTensor codes = {};
  const tessera::Storage* coded_memory = nullptr;
  std::uint64_t coded_version = 0;
};

class Weights {
 public:
  /// `keeps_turned`: the codes that are kept are kept turned too.
  Weights(Scaling scaling, bool keeps_turned) : scaling_(scaling), keeps_turned_(keeps_turned) {}
  Scaling scaling() const { return scaling_; }

  /// The weight of a layer that is replaced; of a model in stages, also of another rank's layer.
  std::shared_ptr<Weight> make(const tessera::nn::ParameterPointer& parameter) const;
  /// One that this rank has, on this mesh: its scale is kept.
  void add(const std::shared_ptr<Weight>& weight, const tessera::DeviceMesh& mesh);

  /// Computes all scales: of a sharded weight from the largest element on any rank, with ONE
  /// all-reduce for all weights. All ranks call it together.
  void refresh();
  /// The same if a weight was written since, by somebody who did not tell (loading, a program).
  void ensure();

  /// This rank's codes of what forward computes with (local, f8e4m3), and the factor of the whole
  /// weight: what an extension has gathered, or of the parameter's values. With `keep` they are
  /// kept until drop_codes(), unless another style provides the values, which then come and go.
  /// Codes that are made here lie in memory as the product of the caller needs them. Tensor-wise
  /// scaling only.
  QuantizedTensor codes(Weight& weight, bool keep, CodesOrder order) const;
  void drop_codes();

 private:
  Scaling scaling_;
  bool keeps_turned_;
  std::optional<tessera::DeviceMesh> mesh_;
  std::vector<std::shared_ptr<Weight>> all_;
};

/// Gathers codes instead of values: a quarter of f32's bytes. The layer computes with them.
class CodesExtension final : public tessera::parallel::ShardExtension {
 public:
  CodesExtension(const std::shared_ptr<Weights>& weights, const std::shared_ptr<Weight>& weight)
      : weights_(weights), weight_(weight) {}
  std::vector<tessera::parallel::Payload> payloads(
      const tessera::parallel::GatheredParameter& gathered) const override;
  void pack(const tessera::parallel::GatheredParameter& gathered, const tessera::Tensor& shard,
            std::span<const tessera::Tensor> parts) override;
  bool has_values() const override { return false; }
  void unpack(const tessera::parallel::GatheredParameter& gathered,
              std::span<const tessera::Tensor> payloads, const tessera::Tensor& values) override;

 private:
  // The layer has them. The parameter that this belongs to is one of theirs, so to own them would
  // be a circle.
  std::weak_ptr<Weights> weights_;
  std::weak_ptr<Weight> weight_;
};

}  // namespace float8
