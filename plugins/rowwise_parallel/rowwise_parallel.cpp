// RowwiseParallel: a linear layer split by its inputs (weight Shard(1)), an embedding by its rows
// (Shard(0)). Each rank computes one term of the result; the terms are summed when the output is
// redistributed. Options: input (the placement to which the input is redistributed first; then
// Shard(-1), or Replicate for an embedding), output = "Replicate".
#include <fmt/format.h>

#include <memory>
#include <optional>

import tessera.base;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

namespace {

using namespace tessera;
using namespace tessera::parallel;

class RowwiseParallel final : public ParallelStyle {
 public:
  explicit RowwiseParallel(Options& options)
      : input_(options.optional_placement("input")),
        output_(options.placement("output", Replicate())) {}

  StyleFacts facts() const override { return {}; }

  void apply(const StyleTarget& target) override {
    nn::Module& module = target.module;
    if (module.kind() != "Linear" && module.kind() != "Embedding") {
      fail_input(fmt::format(
          "RowwiseParallel: module '{}' is a {}; only Linear and Embedding can be split by rows",
          module.name(), module.kind()));
    }
    const bool linear = module.kind() == "Linear";
    target.place(*module.parameter("weight"), Shard(linear ? 1 : 0));
    redistribute_around(target, input_, linear ? Shard(-1) : Replicate(), output_);
  }

 private:
  std::optional<Placement> input_;
  Placement output_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("RowwiseParallel", [](Options& options) {
    return std::make_unique<RowwiseParallel>(options);
  });
}
