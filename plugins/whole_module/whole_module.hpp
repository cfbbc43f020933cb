// A style by which every rank of the axis computes with all parameters of a module: they stay
// Replicate, and the first input and the first output are redistributed.
#pragma once

// Included after the imports of tessera's modules.

/// Options: input (the placement to which the first input is redistributed first), desired (then),
/// output (the placement of the first output).
class WholeModule final : public tessera::parallel::ParallelStyle {
 public:
  /// The defaults of desired and output; none: the value of desired.
  WholeModule(tessera::parallel::Options& options, tessera::Placement desired,
              std::optional<tessera::Placement> output)
      : input_(options.optional_placement("input")),
        desired_(options.placement("desired", desired)),
        output_(options.placement("output", output.value_or(desired_))) {}

  tessera::parallel::StyleFacts facts() const override {
    return {.places_parameters = true, .converts_values = true};
  }

  void apply(const tessera::parallel::StyleTarget& target) override {
    for (const auto& parameter : tessera::nn::all_parameters(target.module)) {
      target.place(*parameter, tessera::Replicate());
    }
    tessera::parallel::redistribute_around(target, input_, desired_, output_);
  }

 private:
  std::optional<tessera::Placement> input_;
  tessera::Placement desired_;
  tessera::Placement output_;
};
