// A style that redistributes inputs and outputs of a module once, for all layers that use them.
#pragma once

// Included after the imports of tessera's modules.

/// The names of two options, each a placement, a list by position or a table by name: to what
/// values are redistributed first, and then (default: Replicate).
struct PreparedNames {
  const char* first;
  const char* desired;
};

class PrepareModule final : public tessera::parallel::ParallelStyle {
 public:
  /// Null: inputs, or outputs, stay as they are.
  PrepareModule(tessera::parallel::Options& options, const PreparedNames* inputs,
                const PreparedNames* outputs)
      : inputs_(read(options, inputs)), outputs_(read(options, outputs)) {}

  tessera::parallel::StyleFacts facts() const override {
    return {.converts_values = true, .repeatable = true};
  }

  void apply(const tessera::parallel::StyleTarget& target) override {
    for (const tessera::parallel::ValuePlacements& values : inputs_) {
      tessera::parallel::redistribute_inputs(target.module, values, target.axis);
    }
    for (const tessera::parallel::ValuePlacements& values : outputs_) {
      tessera::parallel::redistribute_outputs(target.module, values, target.axis);
    }
  }

 private:
  static std::vector<tessera::parallel::ValuePlacements> read(tessera::parallel::Options& options,
                                                              const PreparedNames* names) {
    if (names == nullptr) {
      return {};
    }
    return {options.placements(names->first),
            options.placements(names->desired, tessera::Replicate())};
  }

  std::vector<tessera::parallel::ValuePlacements> inputs_;
  std::vector<tessera::parallel::ValuePlacements> outputs_;
};
