export module tessera.passes:renumbering;

import tessera.base;
import tessera.tensor;
import tessera.program;

export namespace tessera::graph {

/// Makes `made` in the memory that `base` begins, as `x` is in its own.
Instruction view_like(const Tensor& x, int base, int made, int scope);

/// A program that is written again, one instruction after the other, while memories become new ones
/// on the way.
class Renumbering {
 public:
  using Instructions = std::vector<Instruction>;

  /// `shadow`: of the program as it comes in.
  Renumbering(Program& program, const Shadow& shadow);

  MemoryIndex memory(int number) const;
  /// A tensor of the type and shape of another one.
  int new_number(int like);
  /// The tensor that a memory was made as, and the one that it begins with at present.
  int first(MemoryIndex memory) const { return first_[memory]; }
  int base(MemoryIndex memory) const { return base_[memory]; }
  /// Lets instructions that follow find the memory where `number`, a tensor like the first one,
  /// begins.
  void renew(MemoryIndex memory, int number);
  /// Adds a tensor as `number` is one, in the memory that `base` begins.
  int view(int number, int base, int scope, Instructions& into);
  /// Adds an instruction, with the present numbers of its operands; those that were views of a
  /// memory before it was renewed are made again.
  void add(Instruction instruction, Instructions& into);
  int present(int number) const { return number_of_[index(number)]; }

 private:
  Program& program_;
  const Shadow& shadow_;
  ByMemory<int> first_;
  ByMemory<int> base_;          // at present
  ByMemory<int> times_;         // how often each was renewed so far
  std::vector<int> number_of_;  // by number, at present
  std::vector<int> time_of_;    // by number: of the memory when it was last made
};

}  // namespace tessera::graph
