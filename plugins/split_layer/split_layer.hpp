// A style by which a layer is split over the ranks of the axis, in a way that the layer declares.
#pragma once

// Included after the imports of tessera's modules.

struct SplitOptions {
  std::optional<tessera::Placement> input = {};
  std::optional<tessera::Placement> output = {};  // none: as the layer returns it
};

/// `input` and `output`: their documentation.
inline tessera::OptionTable<SplitOptions> split_options(const char* input, const char* output) {
  return tessera::OptionTable<SplitOptions>()
      .add("input", &SplitOptions::input, input)
      .add("output", &SplitOptions::output, output);
}

class SplitLayer final : public tessera::parallel::ParallelStyle {
 public:
  /// `split`: its name.
  SplitLayer(std::string split, const SplitOptions& options)
      : split_(std::move(split)), options_(options) {}

  tessera::parallel::StyleFacts facts() const override {
    return {.places_parameters = true,
            .converts_values = true,
            .follows_virtual_shards = true,
            .needs_split = split_};
  }

  void apply(const tessera::parallel::StyleTarget& target) override {
    const tessera::nn::LayerSplit split = target.split(split_);
    tessera::parallel::redistribute_around(target, options_.input, split,
                                           options_.output.value_or(split.output));
  }

 private:
  std::string split_;
  SplitOptions options_;
};
