export module tessera.program:roles;

import tessera.base;

export namespace tessera {

/// Purpose of a program's input for the owner of the step.
enum class Role : std::uint8_t {
  other,            // nobody but the step needs to know
  parameter,        //
  buffer,           // of a module
  optimizer_state,  //
  gradient,         // memory in which a parameter's gradient is kept from step to step
  rows,             // of the batch, which data parallelism splits along dim 0; new in each step
  scaler_factor,    // of the losses (optim::GradScaler), "loss_scale" in texts; new in each step
  transform_state,  // what a change has added
  pending,          // what the update that a step has left to the next one reads
};
inline constexpr int role_count = static_cast<int>(Role::pending) + 1;
/// "other", "parameter", "optimizer_state", ...
std::string_view name_of(Role role);
std::optional<Role> role_named(std::string_view name);
/// Whether such an input is another tensor in each step.
bool is_given_anew(Role role);

/// The sections of a step, in their order. A step has one, `step`; or `gradients`, `free` and
/// `update`, between which the host decides; an evaluation has one of its own.
enum class SectionKind : std::uint8_t {
  step,
  gradients,  // forward, backward and the sums of gradients
  free,       // frees what was gathered, in skipped steps too
  update,     // of parameters and the optimizer's state
  evaluation,
};
inline constexpr int section_kind_count = static_cast<int>(SectionKind::evaluation) + 1;
/// "step", "gradients", ...
std::string_view name_of(SectionKind kind);
std::optional<SectionKind> section_kind_named(std::string_view name);

/// The part of a step that an instruction belongs to.
enum class Phase : std::uint8_t {
  none,
  step,
  forward,
  backward,
  recomputation,
  gradient_norm,
  gradient_reduction,
  optimizer,
  evaluation,
  offload,  // values are brought to other memory
  fetch,    // and back
};
inline constexpr int phase_count = static_cast<int>(Phase::fetch) + 1;
/// "forward", "gradient norm", ...: as run_phase has it. None: "".
std::string_view name_of(Phase phase);
std::optional<Phase> phase_named(std::string_view name);

}  // namespace tessera
