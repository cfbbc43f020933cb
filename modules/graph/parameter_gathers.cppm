module tessera.graph:parameter_gathers;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import :data_parallel;
import :uses;

namespace tessera::graph {

/// The gathers of a step that is placed on a mesh, as calls on local tensors that are issued and
/// waited for. Sharded parameters that are used one after the other are gathered together, in
/// groups of about `group_bytes`; the gather of the next group is issued before a group is used, so
/// that the work on it hides the gather. Each pass over the model, forward or backward, gathers
/// anew, and so does what follows an update; a gather of what an update writes is issued after it.
class ParameterGathers {
 public:
  /// `tensors`: the distributed parameters, of which the program's
  /// inputs are there before the first call. All of them live as long.
  ParameterGathers(const Program& program, const ParameterUses& uses, const ByTensor<bool>& sharded,
                   const ByTensor<Tensor>& tensors, const DataParallelOptions& options);

  /// Called before each instruction with its place. Before an update it waits for peers that may
  /// still read what is written.
  void enter(const Instruction& i, PlaceIndex place);
  /// All of a sharded parameter, or of a view of it.
  Tensor whole(TensorIndex number);

 private:
  struct Group {
    std::vector<TensorIndex> numbers = {};
    std::int64_t bytes = 0;
  };
  /// Forward or backward, before or after an update.
  struct Pass {
    bool forward = false;
    std::size_t updates = 0;  // that have begun
    bool operator==(const Pass&) const = default;
  };
  /// A use of a group by a pass.
  struct Use {
    std::size_t group = 0;
    const Instruction* first = nullptr;  // its phase and module are those of the gather
    PlaceIndex written_at = {};          // of the last write before it
  };
  struct IssuedGather {
    std::vector<Tensor> wholes = {};  // local, in the order of the group
    bool complete = false;
  };

  Pass pass_of(const Instruction& i, PlaceIndex place) const;
  void make_groups();
  void find_order();
  PlaceIndex last_write(std::size_t group, PlaceIndex place) const;
  void wait_for_readers(const ParameterUpdate& update);
  IssuedGather issued(const Use& use) const;
  void issue_next();
  const Tensor& local_whole(TensorIndex number);

  const Program& program_;
  const ParameterUses& uses_;
  const ByTensor<bool>& sharded_;
  const ByTensor<Tensor>& tensors_;
  const DataParallelOptions& options_;
  std::vector<Group> groups_;
  std::map<TensorIndex, std::size_t> group_of_;  // by the parameter
  std::vector<Use> order_;  // groups as the passes use them, each one once in a pass
  std::size_t issued_ = 0;  // of order_
  std::size_t used_ = 0;    // of order_
  std::map<std::size_t, IssuedGather> ahead_;  // by the place in order_
  std::map<std::size_t, IssuedGather> now_;    // by group, in this pass
  std::map<TensorIndex, Tensor> wholes_;       // in this pass
  Pass pass_;                                  // of the instruction at place_
  PlaceIndex place_ = PlaceIndex(0);
  std::optional<Pass> pass_of_use_;  // of the last use; none before the first one
  ops::GroupArgument ranks_;
};

}  // namespace tessera::graph
