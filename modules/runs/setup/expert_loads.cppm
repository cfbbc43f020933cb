export module tessera.runs:expert_loads;

import tessera.base;
import tessera.collective;
import tessera.nn;
import tessera.parallel;

// How many tokens each expert of a mixture has had.

export namespace tessera::runs {

/// The tokens of one layer's experts, on all ranks together.
struct LayerLoads {
  std::string layer;  // the mixture's name
  std::vector<std::int64_t> tokens;
  std::int64_t dropped = 0;  // choices that were over the capacity
};

/// The largest number of tokens that an expert has, divided by the mean of its layer.
double largest_load(std::span<const LayerLoads> loads);
/// A picture: for each layer a bar for each expert, of full height where it has twice the mean or
/// more. At most `layers` layers, spread over all.
std::string loads_text(std::span<const LayerLoads> loads, std::size_t layers = 16);
/// The share of tokens' choices that were dropped, in all layers.
double dropped_share(std::span<const LayerLoads> loads);

/// Reads what mixtures have counted (nn::SparseMixture::tokens).
class ExpertLoads {
 public:
  /// Model and plan must live as long. All layers of the model count, also those of other stages.
  ExpertLoads(nn::Module& model, const parallel::ParallelPlan& plan);
  /// What was counted since the call before; empty: the model has no experts. All ranks call it
  /// together.
  std::vector<LayerLoads> read(collective::World& world);

 private:
  struct Layer {
    std::string name;
    nn::SparseMixture* mixture;
    bool absent;  // other ranks have it
  };

  bool counts_;  // its terms are those that this rank's copies are told for
  std::vector<Layer> layers_;
  std::size_t numbers_ = 0;
  std::vector<double> before_;
};

}  // namespace tessera::runs
