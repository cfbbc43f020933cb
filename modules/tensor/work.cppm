export module tessera.tensor:work;

import tessera.base;

// What a thread is at, for errors that are raised where this is not known: in a communicator, for
// example, where the calls of ranks differ.
export namespace tessera {

/// The operation on distributed tensors that this thread is at, as the program has written it: the
/// name of an operator, or of a function such as full_tensor; null: none.
const std::string* current_operation();

/// Within the scope this operation is at work. What it consists of is not: scopes within it change
/// nothing.
class OperationScope {
 public:
  explicit OperationScope(const std::string& name);
  ~OperationScope();
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;

 private:
  const std::string* before_;
};

/// Within the scope this thread executes something else than calls of a program, which `say` puts
/// in words: an instruction of a replayed step.
class WorkScope {
 public:
  explicit WorkScope(std::function<std::string()> say);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  std::function<std::string()> say_;
  const std::function<std::string()>* before_;
};

/// Notes a decision of the host, "guard 'skip' in module 'blocks.1' is 1", which what follows may
/// depend on.
void note_decision(std::string text);

/// "in full_tensor, in module 'blocks.1'; the last decision: guard 'skip' is 1". Empty: nothing is
/// known.
std::string work_in_words();

}  // namespace tessera
