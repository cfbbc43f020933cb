module tessera.tensor:path;

import tessera.base;
import :dispatch;
import :host;
import :mode;
import :op;
import :step_context;
import :value;

// What a thread is at, which the dispatcher keeps, and how it hands a call to a mode.
namespace tessera {

struct PathState {
  bool has_modes = false;      // whether one of the two is set
  ModeScope* above = nullptr;  // the top mode of each level that would see a call now
  ModeScope* below = nullptr;
  int scopes = 0;  // modes that are installed
  const std::string* module = nullptr;
  bool grad = true;
  CallPermissions permissions;
  HostFallback* fallback = nullptr;
  const StepContext* step = nullptr;                   // null: outside of any step
  std::uint64_t recordings = 0;                        // that it has begun
  const std::string* operation = nullptr;              // the outermost one, see OperationScope
  const std::function<std::string()>* work = nullptr;  // see WorkScope
};
/// The calling thread's. The dispatcher itself reads it without a call.
PathState& path_state();
/// How many threads have modes, for what is too hot to look at its own thread where none has.
inline constinit int threads_with_modes = 0;
inline bool some_thread_has_modes() {
  return __atomic_load_n(&threads_with_modes, __ATOMIC_RELAXED) != 0;
}

/// Other top modes within a scope, which an error may leave.
class TopModes {
 public:
  TopModes(PathState& path, ModeScope* above, ModeScope* below)
      : path_(path), above_(path.above), below_(path.below) {
    set(path, above, below);
  }
  ~TopModes() { set(path_, above_, below_); }
  TopModes(const TopModes&) = delete;
  TopModes& operator=(const TopModes&) = delete;

  static void set(PathState& path, ModeScope* above, ModeScope* below) {
    path.above = above;
    path.below = below;
    path.has_modes = above != nullptr || below != nullptr;
  }

 private:
  PathState& path_;
  ModeScope* above_;
  ModeScope* below_;
};

/// empty() as the dispatcher calls it for results: no action of its own.
Tensor allocate_result(const Dims& shape, DType dtype, Device device, std::string_view what);

/// The kernel of a call with operands that are not the CPU's: on the meta device (no kernel runs)
/// or on another device. `keys`: all keys of the operands.
Tensors call_elsewhere(const Call& call, std::uint8_t keys);
/// Calls the kernel with a workspace of this size, from the device's memory.
void run_in_workspace(const Call& call, Device device, Kernel kernel, std::span<Tensor> out,
                      std::size_t bytes);
/// Calls the kernel with the workspace that it needs.
inline void run_kernel_of(const Call& call, Device device, const DeviceKernel& kernel,
                          std::span<Tensor> out) {
  if (kernel.workspace != nullptr) {
    if (const std::size_t bytes = kernel.workspace(call, out); bytes > 0) {
      return run_in_workspace(call, device, kernel.run, out, bytes);
    }
  }
  kernel.run(call, out);
}
/// For a result whose type is only stored: errors if the operator computes it.
void check_stored_result(const Op& op, DType dtype);
/// Before an in-place operator writes: errors where it must not.
void check_writes(const Call& call, std::uint8_t keys);

struct ModeStack {
  /// Hands the call to the top mode of the level, which there is.
  static Tensors call(ModeLevel level, const Call& call);
  static Mode& mode(const ModeScope& scope) { return scope.mode_; }
  /// The next one down.
  static ModeScope* next(const ModeScope& scope) { return scope.below_; }
};

}  // namespace tessera
