module tessera.graph:uses;

import tessera.base;
import tessera.program;
import :data_parallel;

namespace tessera::graph {

/// Instructions that write parameters, between two places at which a model computes.
struct ParameterUpdate {
  PlaceIndex first;  // of the first one
  PlaceIndex last = {};
  std::vector<TensorIndex> parameters = {};  // those that are written

  bool writes(TensorIndex number) const;
};

/// How a step of plain tensors uses its parameters.
struct ParameterUses {
  std::vector<TensorIndex> parameters = {};
  /// The parameter that has the same layout, because an instruction that writes it has both at one
  /// place, or an output is its gradient; itself for parameters; or none.
  ByTensor<TensorIndex> parameter_of = {};
  /// The parameter that it is a view of, and itself for parameters; or none.
  ByTensor<TensorIndex> root = {};
  /// The view's instruction; null: it is not a view of a parameter.
  ByTensor<const Instruction*> view = {};
  /// After which place a gradient is complete; none: it is not a gradient.
  ByTensor<PlaceIndex> complete_at = {};
  /// Places after which the gradients of an update, or of the step, are complete.
  std::vector<PlaceIndex> all_complete_at = {};
  /// Nothing else is in its memory.
  ByTensor<bool> alone = {};
  /// A model computes there, so a parameter that is read must be whole. At the other
  /// places an optimizer works on parameters as they are kept.
  ByPlace<bool> computes = {};
  /// In the order of the step, which may have several: of two models that train each other.
  std::vector<ParameterUpdate> updates = {};
};

ParameterUses parameter_uses_of(const Program& program);

/// The parameters that are sharded (see DataParallelMode).
ByTensor<bool> sharded_parameters(const Program& program, const ParameterUses& uses,
                                  const DataParallelOptions& options);

/// The program, with each parameter in place of the views that are all of it.
Program without_whole_views(Program program);

/// See DataParallelOptions::group_bytes.
std::int64_t group_bytes(const Program& program, const ParameterUses& uses,
                         const DataParallelOptions& options);

std::int64_t bytes_of(const ProgramTensor& x);
std::string name_of_input(const Program& program, TensorIndex number);
/// Hash of a name, equal in every process.
std::uint64_t hash_of_name(const std::string& name);

/// Which rows a micro-batch has depends on the number of parts of the batch. The numbers say it:
/// `run` belong to each part. `elements`: of the tensor that they are drawn for. Error: they were
/// drawn for another number of parts.
void check_random_numbers(const Instruction& i, std::int64_t elements, int ranks);

/// The program as it was written, which every rank can execute.
Program as_written(Program program);

}  // namespace tessera::graph
