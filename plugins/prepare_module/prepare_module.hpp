// A style that redistributes inputs and outputs of a module once, for all layers that use them.
#pragma once

// Included after the imports of tessera's modules.

/// To what inputs and outputs are redistributed first, and then.
struct PreparedValues {
  tessera::parallel::ValuePlacements input = {};
  tessera::parallel::ValuePlacements desired_input = {};
  tessera::parallel::ValuePlacements output = {};
  tessera::parallel::ValuePlacements desired_output = {};
};

/// Adds the two options for inputs, with the name of the second, to a style's.
inline tessera::OptionTable<PreparedValues> with_inputs(
    const char* desired, tessera::OptionTable<PreparedValues> table = {}) {
  return table
      .add("input", &PreparedValues::input,
           "Placements to which the inputs are redistributed first.")
      .add(desired, &PreparedValues::desired_input, "The placements that the module receives.");
}

/// The same for outputs.
inline tessera::OptionTable<PreparedValues> with_outputs(
    const char* desired, tessera::OptionTable<PreparedValues> table = {}) {
  return table
      .add("output", &PreparedValues::output,
           "Placements to which the outputs are redistributed first.")
      .add(desired, &PreparedValues::desired_output, "The placements that other modules receive.");
}

/// Replicate, of the first value.
inline tessera::parallel::ValuePlacements replicate_first() {
  return {{"", 0, tessera::Replicate()}};
}

class PrepareModule final : public tessera::parallel::ParallelStyle {
 public:
  explicit PrepareModule(PreparedValues values) : values_(std::move(values)) {}

  tessera::parallel::StyleFacts facts() const override {
    return {.converts_values = true, .repeatable = true};
  }

  void apply(const tessera::parallel::StyleTarget& target) override {
    for (const auto* values : {&values_.input, &values_.desired_input}) {
      tessera::parallel::redistribute_inputs(target.module, *values, target.axis);
    }
    for (const auto* values : {&values_.output, &values_.desired_output}) {
      tessera::parallel::redistribute_outputs(target.module, *values, target.axis);
    }
  }

 private:
  PreparedValues values_;
};
