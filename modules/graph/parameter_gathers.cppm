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
/// anew.
class ParameterGathers {
 public:
  /// `sharded`: by number. `tensors`: the distributed parameters, by number, of which the program's
  /// inputs are there before the first call. All of them live as long.
  ParameterGathers(const Program& program, const ParameterUses& uses,
                   const std::vector<bool>& sharded, const std::vector<Tensor>& tensors,
                   const DataParallelOptions& options);

  /// Called before each instruction with its phase.
  void enter(Phase phase);
  /// All of a sharded parameter, or of a view of it.
  Tensor whole(int number);
  /// Called before the first instruction that writes a parameter: peers may still read them.
  void wait_for_readers();

 private:
  struct Group {
    std::vector<int> numbers = {};
    std::int64_t bytes = 0;
  };
  /// A use of a group by a pass.
  struct Use {
    std::size_t group = 0;
    const Instruction* first = nullptr;  // its phase and module are those of the gather
  };
  struct Issued {
    std::vector<Tensor> wholes = {};  // local, in the order of the group
    bool complete = false;
  };

  /// Whether a phase is of the pass forward, which gathers for itself.
  bool is_forward(Phase phase) const;
  /// The sharded parameters that the step uses, in the order of their first uses.
  std::vector<int> used_parameters() const;
  void make_groups();
  void find_order();
  Issued issued(const Use& use) const;
  const Tensor& local_whole(int number);

  const Program& program_;
  const ParameterUses& uses_;
  const std::vector<bool>& sharded_;
  const std::vector<Tensor>& tensors_;
  const DataParallelOptions& options_;
  std::vector<Group> groups_;
  std::map<int, std::size_t> group_of_;  // by the parameter's number
  std::vector<Use> order_;               // groups as the passes use them, each one once in a pass
  std::size_t issued_ = 0;               // of order_
  std::size_t used_ = 0;                 // of order_
  std::map<std::size_t, Issued> ahead_;  // by the place in order_
  std::map<std::size_t, Issued> now_;    // by group, in this pass
  std::map<int, Tensor> wholes_;         // by number, in this pass
  std::optional<bool> forward_;          // of the pass; none before the first use
  ops::GroupArgument ranks_;
};

}  // namespace tessera::graph
