module tessera.plugin_suite:split_batch;

import tessera.base;
import tessera.parallel;

// A style for suites, which have none of the shipped ones.

namespace tessera::plugin_suite {

/// Every rank of the axis works on its own rows of the batch.
class SplitBatch final : public parallel::ParallelStyle {
 public:
  parallel::StyleFacts facts() const override { return {.splits_batch = true}; }
  void apply(const parallel::StyleTarget&) override {}
};

}  // namespace tessera::plugin_suite
