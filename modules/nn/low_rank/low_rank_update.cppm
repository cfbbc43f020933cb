export module tessera.nn:low_rank_update;

import tessera.base;
import :parameter;
import :tree;

// Low-rank updates that layers train beside their weights. Styles make the layers, tessera.hub
// reads and writes the updates; everything else calls these functions.

export namespace tessera::nn {

/// Trained addition of a layer to a weight W [out, in] (LoRA, https://arxiv.org/abs/2106.09685): it
/// computes with W + scale() B A; with `dora` (https://arxiv.org/abs/2402.09353) each row of that
/// is scaled to the length that `magnitude` has for it. The layer has the parameters lora_A [rank,
/// in], lora_B [out, rank] and, with dora, magnitude [out]. W is its parameter "weight".
struct LowRankUpdate {
  std::int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;            // of the input of A, while training
  bool rank_stabilized = false;  // scale: alpha / sqrt(rank), otherwise alpha / rank
  bool dora = false;
  /// Empty: W is as it is; otherwise the name of the form in which the layer keeps it.
  std::string packing = {};

  double scale() const;
};

/// What a layer that has an update attaches to itself: attach<TrainedUpdate>().update = update.
struct TrainedUpdate {
  std::optional<LowRankUpdate> update = std::nullopt;
};

/// The module's own update, for who writes or reads it alone, or merges it with the weight.
const std::optional<LowRankUpdate>& low_rank_update_of(const Module& module);
/// False within a WithoutUpdatesScope: the layer computes without its update.
bool uses_update(const Module& module);
/// The parameters of the module's own update.
std::vector<ParameterPointer> own_update_parameters(const Module& module);
/// Freezes everything but low-rank updates.
void freeze_all_but_updates(Module& root);
/// The parameters of all low-rank updates below `root`: a folder of the model's weights has none of
/// them. In the order of the tree.
std::vector<ParameterPointer> update_parameters(Module& root);
/// Initialises only low-rank updates (update_parameters), as initialize() of the whole model does
/// where everything else has values from elsewhere.
void initialize_updates(Module& root);

/// Within the scope the low-rank updates of a module and all below it are switched off: the model
/// computes as if it had none.
class WithoutUpdatesScope {
 public:
  explicit WithoutUpdatesScope(Module& root);
  ~WithoutUpdatesScope();
  WithoutUpdatesScope(const WithoutUpdatesScope&) = delete;
  WithoutUpdatesScope& operator=(const WithoutUpdatesScope&) = delete;

 private:
  std::vector<Module*> off_;
};

}  // namespace tessera::nn
