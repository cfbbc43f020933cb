// A style by which a layer is split over the ranks of the axis, in a way that the layer declares.
#pragma once

// Included after the imports of tessera's modules.

/// Options: input (the placement to which the input is redistributed first; then to what the
/// layer's split needs), output (the placement of the output).
class SplitLayer final : public tessera::parallel::ParallelStyle {
 public:
  /// `split`: its name. `output`: the default; none: as the layer returns it.
  SplitLayer(tessera::parallel::Options& options, std::string split,
             std::optional<tessera::Placement> output)
      : split_(std::move(split)), input_(options.optional_placement("input")) {
    const auto chosen = options.optional_placement("output");
    output_ = chosen ? chosen : output;
  }

  tessera::parallel::StyleFacts facts() const override {
    return {.places_parameters = true,
            .converts_values = true,
            .follows_virtual_shards = true,
            .needs_split = split_};
  }

  void apply(const tessera::parallel::StyleTarget& target) override {
    const tessera::nn::LayerSplit split = target.split(split_);
    tessera::parallel::redistribute_around(target, input_, split, output_.value_or(split.output));
  }

 private:
  std::string split_;
  std::optional<tessera::Placement> input_;
  std::optional<tessera::Placement> output_;
};
