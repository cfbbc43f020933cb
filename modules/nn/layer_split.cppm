export module tessera.nn:layer_split;

import tessera.base;
import tessera.placement;
import :parameter;
import :tree;

// How layers can be split over ranks: what they declare, and what styles ask.

export namespace tessera::nn {

/// One way in which a layer can be split over the ranks of a mesh axis. Layers declare it
/// (LayerSplits), and styles use it without knowing the layer.
struct LayerSplit {
  struct ParameterPlacement {
    ParameterPointer parameter;
    Placement placement;
  };
  /// Name of the split; styles request it by this name. Tessera's own:
  /// "columns": each rank computes some features of the output;
  /// "rows": each rank computes one term of the output, which is their sum;
  /// "classes": a loss whose logits are split by class;
  /// "experts": each rank has some experts of a mixture, which dim 0 counts.
  /// A layer and a style outside of Tessera may agree on others.
  std::string name;
  /// Parameters of this layer and of the layers inside. One that is not listed stays as it is
  /// (Replicate).
  std::vector<ParameterPlacement> parameters = {};
  /// Placements that forward needs of its inputs, by position. An input that is not listed is not
  /// changed.
  std::vector<Placement> inputs = {};
  /// Placement of the first output, as forward then returns it; Shard(-1) is the last dim.
  Placement output = {};
};

/// What a layer attaches to itself so that styles can split it. Each function may be missing.
///   attach<LayerSplits>().declared = [this] { return std::vector<LayerSplit>{...}; };
struct LayerSplits {
  /// The ways in which it can be split now. None: it cannot.
  std::function<std::vector<LayerSplit>()> declared = {};
  /// A style has applied the split of this name: from now on forward gets shards.
  std::function<void(std::string_view name)> use = {};
  /// Called when all styles have placed the parameters; `axes` are the mesh axes along which the
  /// ranks share the work on one part of the batch. Errors (input): placements with which forward
  /// would be wrong (heads that do not divide).
  std::function<void(std::span<const int> axes)> check = {};
};

/// How styles can split this layer over the ranks of a mesh axis.
std::vector<LayerSplit> splits_of(const Module& module);
/// The split of this name. Error (input): the layer has none; the text names those that it has.
LayerSplit split_of(const Module& module, std::string_view name);
/// Tells the layer that a style has applied the split of this name.
void use_split(const Module& module, std::string_view name);
/// Errors (input): see LayerSplits::check.
void check_placements(const Module& module, std::span<const int> axes);

}  // namespace tessera::nn
