export module tessera.pipeline:schedule;

import tessera.base;

export namespace tessera::pipeline {

/// An action's kind: what a rank of the pipeline's axis does with a stage and a micro-batch.
/// Activations go from stage s to stage s + 1, gradients the other way.
enum class Work : std::uint8_t {
  forward,
  backward,            // both gradients below at once
  input_gradient,      // the gradient of the stage's input
  weight_gradient,     // the gradients of its parameters, after input_gradient
  send_activation,     // the output of this stage, to the rank of the next one
  receive_activation,  // the input of this stage, from the rank of the one before
  send_gradient,       // the gradient of this stage's input, to the rank of the one before
  receive_gradient     // the gradient of this stage's output, from the rank of the next one
};
inline constexpr int work_count = 8;

/// Its name in all texts: "forward", "send activation".
std::string_view name_of(Work work);
/// Whether it computes; otherwise it is a transfer between two ranks.
constexpr bool computes(Work work) { return work <= Work::weight_gradient; }
/// Whether it waits for what another rank sends.
constexpr bool receives(Work work) {
  return work == Work::receive_activation || work == Work::receive_gradient;
}
/// Whether it completes gradients of parameters: the end of what a micro-batch keeps of a stage.
constexpr bool ends_backward(Work work) {
  return work == Work::backward || work == Work::weight_gradient;
}

/// One entry of a rank's list.
struct Action {
  Work work = Work::forward;
  int stage = 0;
  int micro_batch = 0;

  friend bool operator==(const Action&, const Action&) = default;
};
/// "forward of stage 1, micro-batch 3".
std::string to_string(const Action& action);

/// The order in which each rank of the axis works on the micro-batches of a step. A rank does one
/// action after the other; a send is complete without its receiver, a receive waits for its send.
struct Schedule {
  std::string name = {};
  int micro_batches = 0;
  std::vector<int> rank_of_stage;                 // by stage, in the order of the model
  std::vector<std::vector<Action>> actions = {};  // by rank
  /// Of how many pairs of stage and micro-batch a rank keeps activations at a time at most, by
  /// rank: from forward to the end of backward or weight_gradient. Empty: not promised.
  std::vector<int> most_kept = {};

  int ranks() const { return static_cast<int>(actions.size()); }
  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage + 1 == stages(); }
  /// Whether the output of this stage is needed by another rank.
  bool crosses(int stage) const {
    return !is_last(stage) && rank_of_stage[static_cast<std::size_t>(stage)] !=
                                  rank_of_stage[static_cast<std::size_t>(stage) + 1];
  }
  /// The stages of a rank, in order.
  std::vector<int> stages_of(int rank) const;
  /// Whether it computes gradients of inputs and of parameters apart.
  bool splits_backward() const;
};

/// The transfers that the actions need, where there are none: each receive directly before what
/// needs it, each send directly after what made it.
void add_transfers(Schedule& schedule);

/// A schedule as text, one line for each rank:
///     schedule 1f1b
///     micro_batches 2
///     stages 0 1
///     kept 2 1
///     rank 0: F0.0 >F0.0 F0.1 >F0.1 <B0.0 B0.0 <B0.1 B0.1
///     rank 1: <F1.0 F1.0 B1.0 >B1.0 <F1.1 F1.1 B1.1 >B1.1
/// "stages" has the rank of each stage. F1.0 is the forward of stage 1 for micro-batch 0, B its
/// backward, I and W its two halves; >F and <F send and receive activations, >B and <B gradients.
/// "kept" may be left out (see Schedule::most_kept), and so may all transfers; # begins a comment.
std::string to_text(const Schedule& schedule);
/// Reads such a text, and adds transfers where it has none. `where` names it in errors. Errors
/// (input), with the line: another form, numbers out of range. See check() for what else may be
/// wrong.
Schedule parse_schedule(std::string_view text, const std::string& where);

}  // namespace tessera::pipeline
