export module tessera.passes:renumbering;

import tessera.base;
import tessera.tensor;
import tessera.program;

export namespace tessera::graph {

/// Tensors of which others take the place, and instructions that are not needed then.
class Replacement {
 public:
  explicit Replacement(const Program& program);

  /// What uses the tensor uses the other one, or what has taken that one's place so far.
  void replace(TensorIndex tensor, TensorIndex by) { instead_[tensor] = instead_[by]; }
  void remove(PlaceIndex place) { removed_[place] = true; }
  /// The tensor itself where none takes its place.
  TensorIndex instead_of(TensorIndex tensor) const { return instead_[tensor]; }
  /// Changes operands and outputs. Results of other instructions keep their numbers.
  void apply(Program& program) const;

 private:
  ByTensor<TensorIndex> instead_;
  ByPlace<bool> removed_;
};

/// Makes `made` in the memory that `base` begins, as `x` is in its own.
Instruction view_like(const Tensor& x, TensorIndex base, TensorIndex made, ScopeIndex scope);

/// A program that is written again, one instruction after the other, while memories become new ones
/// on the way.
class Renumbering {
 public:
  using Instructions = std::vector<Instruction>;

  /// `shadow`: of the program as it comes in.
  Renumbering(Program& program, const Shadow& shadow);

  MemoryIndex memory(TensorIndex number) const;
  /// A tensor of the type and shape of another one.
  TensorIndex new_number(TensorIndex like);
  /// The tensor that a memory was made as, and the one that it begins with at present.
  TensorIndex first(MemoryIndex memory) const { return first_[memory]; }
  TensorIndex base(MemoryIndex memory) const { return base_[memory]; }
  /// Lets instructions that follow find the memory where `number`, a tensor like the first one,
  /// begins.
  void renew(MemoryIndex memory, TensorIndex number);
  /// Adds a tensor as `number` is one, in the memory that `base` begins.
  TensorIndex view(TensorIndex number, TensorIndex base, ScopeIndex scope, Instructions& into);
  /// Adds an instruction, with the present numbers of its operands; those that were views of a
  /// memory before it was renewed are made again.
  void add(Instruction instruction, Instructions& into);
  TensorIndex present(TensorIndex number) const { return number_of_[number]; }

 private:
  Program& program_;
  const Shadow& shadow_;
  ByMemory<TensorIndex> first_;
  ByMemory<TensorIndex> base_;       // at present
  ByMemory<int> times_;              // how often each was renewed so far
  ByTensor<TensorIndex> number_of_;  // at present
  ByTensor<int> time_of_;            // of the memory when it was last made
};

}  // namespace tessera::graph
