export module tessera.program:guard;

import tessera.base;
import tessera.tensor;
import :instructions;

export namespace tessera {

/// Reads a number on the host that decides how the step continues: `decision` is a flag or a small
/// number that operators have computed, such as ops::gt(norm, 10). A recorded step has the number
/// as a guard: a replay that reads another one is given up, and the step is taken by a program in
/// whose recording the guard had it, or as always. Nothing that outlives the step may change
/// before a guard. `usual`: what a capture on the meta device, which has no values, takes it for.
///
/// All ranks must read the same number. So a distributed decision must be replicated; a plain one
/// of a rank's own data must be made equal first (ops::all_reduce).
/// Errors: the decision is not one number that is the same on all ranks, or is NaN; the name is
/// not made of letters, digits, '_', '.' and '-'.
double guard(std::string_view name, const Tensor& decision, double usual = 0);

/// The guard that is being read, for modes that answer reads; null: an ordinary read.
struct GuardRead {
  std::string_view name;
  double usual = 0;
};
const GuardRead* current_guard();

/// Value of a guard when its step was recorded.
struct GuardValue {
  std::string name;
  std::string module = {};
  double value = 0;
};
/// Those of a program, in the order in which they are read.
std::vector<GuardValue> guards_of(const Program& program);
/// "guard 'skip' in module 'blocks.1' was 0", of an instruction that reads one.
std::string guard_in_words(const Program& program, const Instruction& read);
/// "guard 'skip' in module 'blocks.1' is 1, was 0".
std::string guard_in_words(const GuardValue& recorded, double now);

/// Error that names the guard: something that outlives the step (an input) is changed before it.
void check_guards(const Program& program);

/// Advice that makes it legal that a value that the host reads differs from step to step.
constexpr const char* legal_read =
    "a value that decides how the step goes on is read by guard(\"name\", x), with which another "
    "value selects another program; any other value is read after the step";

/// " in module 'blocks.0'"; empty outside of modules.
std::string recorded_place();

}  // namespace tessera
