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
/// They are sent in the first step of a kind only, unless they were planned: in others every rank
/// knows them, and a rank checks what it would have said.
class StageMessages {
 public:
  explicit StageMessages(const parallel::Stages& stages) : stages_(stages) {}
  void set_planned(std::shared_ptr<StageStates> planned) { planned_ = std::move(planned); }
  /// Whether all is known of all kinds of steps that were taken on the meta device.
  bool is_planned() const { return planned_ && planned_->exact(); }

  /// A step of this kind begins. The same text on all ranks of the axis, and another one where what
  /// stages tell each other may differ.
  void begin(const std::string& kind, bool on_meta);
  /// Of the states after `stage`, which another rank's stage gets. On the meta device they are left
  /// in StageStates. Error: they are not those of the other steps of the kind.
  void send(int stage, int micro_batch, const Tensor& states, const Draws& draws);
  /// Of the states before `stage`. Error: on the meta device no stage before it was planned.
  StatesForm receive(int stage, int micro_batch, const DeviceMesh& mesh);
  /// That of the last stage, on all ranks; on the meta device the own one, where that is not known.
  StepEnd end(const StepEnd& own);

 private:
  StatesForm planned_form(int stage, int micro_batch, const DeviceMesh& mesh);
  /// Of what leaves a stage: whether it follows from states as the stages before will send them.
  bool is_exact(int stage, int micro_batch) const;

  const parallel::Stages& stages_;
  std::shared_ptr<StageStates> planned_;
  std::map<std::string, StageStates::Kind> told_;  // in steps before
  StageStates::Kind now_;                          // of the step, as far as it is known
  std::string kind_;
  bool known_ = false;  // before the step
  bool on_meta_ = false;
  std::map<std::pair<int, int>, bool> entered_;  // by stage and micro-batch: whether it is exact
};

}  // namespace tessera
