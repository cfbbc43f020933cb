export module tessera.app.plan:layouts;

import tessera.base;
import tessera.nn;
import tessera.app.base;
import tessera.hub;
import :hardware;

// Ways to put a model on ranks: the axes of a mesh and the styles on them, as a table.

export namespace tessera::app {

/// An axis of a layout's mesh.
struct LayoutAxis {
  std::string name;
  std::int64_t ranks = 1;
};

/// One layout of a run on a number of ranks.
struct RunLayout {
  std::string name;              // "fully sharded 4 x tensor 2"
  std::vector<LayoutAxis> axes;  // the outermost first; none: one rank
  /// Of the config: mesh and styles. Entries of its styles without an axis are kept.
  std::vector<std::string> overrides;

  /// The ranks of an axis; 1 where the mesh has none of this name.
  std::int64_t ranks(std::string_view axis) const;
  /// Ranks that have different parts of a parameter.
  std::int64_t parameter_parts() const;
  /// Ranks that have different parts of the batch.
  std::int64_t batch_parts() const;
};

/// Patterns of a model's modules, for styles. Without them, styles take the model as a whole.
struct ModulePatterns {
  std::string layers = {};                // whose parameters FSDP gathers together
  std::vector<std::string> columns = {};  // see models::TensorSplit
  std::vector<std::string> rows = {};
  std::string logits = {};
  std::vector<std::string> blocks = {};   // whose inputs modules of `columns` share
  std::vector<std::string> norms = {};    // that treat each token separately
  std::vector<std::string> experts = {};  // that may be on different ranks
};
/// As the model's family and its modules say.
ModulePatterns patterns_of(const hub::ModelShape& shape, nn::Module& model);

/// What layouts are for.
struct LayoutQuestion {
  std::int64_t ranks = 1;
  int ranks_of_machine = 1;  // those of an axis that communicates within each layer
  bool is_long = false;      // whether sequences are worth splitting
  ModulePatterns modules = {};
  std::vector<std::string> kept = {};  // entries of [[parallel]] (entry_text)
};

/// All layouts of the table that the model's modules and the number of ranks permit: every division
/// of the ranks among the axes of each kind.
std::vector<RunLayout> layouts_of(const LayoutQuestion& question);

/// Sizes of a model, for the bound of a step.
struct BoundSizes {
  double stored = 0;        // bytes: parameters, their gradients, the optimizer's state
  double gathered = 0;      // bytes of parameters, in the type in which they are gathered
  double summed = 0;        // bytes of gradients, likewise
  double element = 4;       // bytes of what is computed with
  double dim = 0;           // of hidden states; 0: not known
  double layers = 0;        // likewise
  double row_tokens = 0;    // of a sequence
  double flops_of_row = 0;  // of a sequence, forward and backward
};

/// How a layout's step is divided.
struct StepDivision {
  std::int64_t micro_batches = 1;  // of a rank
  double rows = 1;                 // of a rank in a step
  bool recomputes = false;         // forward a second time
};

/// The seconds that a step needs at least: its products at the highest rate, and what gathers,
/// sums of gradients and sums within layers move at least.
double least_seconds(const RunLayout& layout, const StepDivision& division, const BoundSizes& sizes,
                     const Hardware& hardware);

}  // namespace tessera::app
