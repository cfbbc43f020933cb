// A style by which every rank of the axis computes with all parameters of a module: they stay
// Replicate, and the first input and the first output are redistributed.
#pragma once

// Included after the imports of tessera's modules.

struct WholeOptions {
  std::optional<tessera::Placement> input = {};
  tessera::Placement desired = tessera::Replicate();
  std::optional<tessera::Placement> output = {};  // none: desired
};

inline const tessera::OptionTable<WholeOptions>& whole_options() {
  using W = WholeOptions;
  static const auto table =
      tessera::OptionTable<W>()
          .add("input", &W::input, "A placement to which the input is redistributed first.")
          .add("desired", &W::desired, "The placement that the module receives.")
          .add("output", &W::output, "The placement of the result; without it, that of `desired`.");
  return table;
}

class WholeModule final : public tessera::parallel::ParallelStyle {
 public:
  explicit WholeModule(const WholeOptions& options) : options_(options) {}

  tessera::parallel::StyleFacts facts() const override {
    return {.places_parameters = true, .converts_values = true};
  }

  void apply(const tessera::parallel::StyleTarget& target) override {
    for (const auto& parameter : tessera::nn::all_parameters(target.module)) {
      target.place(*parameter, tessera::Replicate());
    }
    tessera::parallel::redistribute_around(target, options_.input, options_.desired,
                                           options_.output.value_or(options_.desired));
  }

 private:
  WholeOptions options_;
};
