// What stages tell each other besides values: the forms of hidden states, and how a step ended.
module tessera.train:stage_messages;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.parallel;
import :stage_states;

namespace tessera {

/// How many numbers a step has drawn of each stream so far, by the streams' names.
using Draws = std::map<std::string, std::uint64_t>;
/// Of this rank, since `start`.
Draws draws_since(const RandomPosition& start);
/// Where draws stand after so many.
RandomPosition after(RandomPosition start, const Draws& draws);

/// The hidden states that a stage gets: their form, and what the stages before have drawn.
struct StatesForm {
  SpecHandle spec;  // on the mesh of the stage that gets them
  Draws draws = {};
};

/// What the last stage knows of a step.
struct StepEnd {
  std::int64_t measured = 0;  // how many sums besides the loss
  Draws draws = {};
};

/// Small texts between the ranks of an axis of stages, apart from the operators that move values.
class StageMessages {
 public:
  explicit StageMessages(const parallel::Stages& stages) : stages_(stages) {}
  void set_planned(std::shared_ptr<PlannedStates> planned) { planned_ = std::move(planned); }

  /// Of the states after `stage`, which another rank's stage gets. On the meta device they are left
  /// in PlannedStates.
  void send(int stage, const Tensor& states, const Draws& draws);
  /// Of the states before `stage`. Error: on the meta device no stage before it was planned.
  StatesForm receive(int stage, const DeviceMesh& mesh, bool on_meta);
  /// That of the last stage, on all ranks; on the meta device the own one.
  StepEnd end(const StepEnd& own, bool on_meta);

 private:
  const parallel::Stages& stages_;
  std::shared_ptr<PlannedStates> planned_;
};

}  // namespace tessera
