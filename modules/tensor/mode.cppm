export module tessera.tensor:mode;

import tessera.base;
import :op;
import :value;

export namespace tessera {

/// Where a mode is: above distribution it sees the program as written (distributed operators);
/// below it sees what is executed (local operators, collectives).
enum class ModeLevel : std::uint8_t { above_distribution, below_distribution };

/// Kinds of actions besides calls of operators.
enum class ActionKind : std::uint8_t {
  create,         // a factory makes a tensor: out
  read,           // the host reads the values of a tensor: in -> values
  module,         // a module with its hooks: in -> out
  phase,          // "backward", "optimizer", ...: a part of a step
  gradient_hook,  // a hook on a gradient: in -> out (undefined: the gradient stays as it is)
  accumulate,     // a gradient arrives at a leaf, with the hooks that follow: in
  collective,     // a communicator issues a call
  wait,           // the host waits for a call of a communicator
  release,        // a storage releases its memory and keeps its identity
  restore,        // and allocates it again
};
/// "create", "read", ...
std::string_view name_of(ActionKind kind);
/// Whether modes also see what happens within such an action. A call of an operator, and any other
/// action, is one piece: modes do not see what it consists of.
bool encloses(ActionKind kind);

/// One action. A mode may change `in` before the action happens, and its results afterwards.
struct Action {
  ActionKind kind = ActionKind::phase;
  std::string_view name = {};  // of the factory, module, phase, differentiated step or collective
  Tensors in = {};
  Tensors out = {};
  std::vector<double> values = {};  // of a read; of a factory that fills: the one value
  std::int64_t bytes = 0;           // of memory, or that this rank receives in a collective
  std::span<const int> ranks = {};  // of a collective's group
  Storage* storage = nullptr;       // of release and restore
};

/// The next mode down, or what executes the call below the last one.
class NextCall {
 public:
  /// Errors: those of the operator; operands or arguments that do not match its schema.
  Tensors operator()(const Op& op, std::span<const Tensor> in, const Attributes& attributes);
  inline Tensors operator()(const Call& call) { return (*this)(call.op, call.in, call.attributes); }

 private:
  friend struct ModeStack;
  explicit NextCall(ModeLevel level) : level_(level) {}
  void check(const Call& call, const Tensors& out) const;

  ModeLevel level_;
  bool called_ = false;
  ResultShapes returned_;
};

struct ActionPath;

/// The next mode down, or what carries out the action.
class NextAction {
 public:
  void operator()(Action& action);

 private:
  friend struct ActionPath;
  explicit NextAction(ActionPath& path) : path_(path) {}
  ActionPath& path_;
};

/// Receives every call and action of a thread before it happens, while a ModeScope installs it. It
/// may run it by `next`, run it changed or several times, replace its results, or not run it. What
/// a mode calls itself does not reach it, only the modes below it.
class Mode {
 public:
  Mode() = default;
  Mode(const Mode&) = delete;
  Mode& operator=(const Mode&) = delete;
  virtual ~Mode();

  /// Returns the results, which must be of the shapes and types that the operator has. Above
  /// distribution it is called below autograd: what it returns is differentiated as the operator's
  /// result.
  virtual Tensors call(const Call& call, NextCall& next);
  virtual void perform(Action& action, NextAction& next);

 private:
  friend class ModeScope;
  bool installed_ = false;
};

/// Within the scope `mode` is on top of the calling thread's modes of that level. Scopes end in
/// reverse order. Error: the mode is installed already.
class ModeScope {
 public:
  ModeScope(ModeLevel level, Mode& mode);
  ~ModeScope();
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  friend struct ModeStack;
  Mode& mode_;
  ModeLevel level_;
  ModeScope* below_;  // the next one down
};

/// Whether a mode of the calling thread would see an action now.
bool modes_installed();
/// How many recordings of steps this thread has begun. What follows from parameters and is kept
/// from step to step (a copy in another type) is made again where the count has moved, so that a
/// recorded step has in it how it is made.
std::uint64_t recordings();
void begin_recording();
/// Passes an action through the modes above distribution and then those below it (only the latter
/// where `level` says so); then calls `run`, which reads action.in and sets the results. For code
/// that does what ActionKind lists; it tests modes_installed() first, so that nothing is paid
/// without a mode.
void perform(Action& action, const std::function<void()>& run,
             ModeLevel level = ModeLevel::above_distribution);

/// Called on a thread before its first mode is installed (true) and after its last one has gone
/// (false): a module above makes its actions visible then.
using ModesSlot = void (*)(bool installed);
void set_modes_slot(ModesSlot slot);

/// A part of a step, which modes see as a phase of this name.
template <class F>
inline void run_phase(std::string_view name, const F& run) {
  if (!modes_installed()) [[likely]] {
    run();
    return;
  }
  Action action{.kind = ActionKind::phase, .name = name};
  perform(action, [&run] { run(); });
}

}  // namespace tessera
