// A style for suites, which have none of the shipped ones.
// Included after the imports of tessera.{base,parallel}.
#pragma once

namespace tessera::app {

/// Every rank of the axis works on its own rows of the batch.
class SplitBatch final : public parallel::ParallelStyle {
 public:
  parallel::StyleFacts facts() const override { return {.splits_batch = true}; }
  void apply(const parallel::StyleTarget&) override {}
};

}  // namespace tessera::app
