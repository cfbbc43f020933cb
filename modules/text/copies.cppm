export module tessera.text:copies;

import tessera.base;
import tessera.collective;

// The ranks of a command that uses a trained model.

export namespace tessera::text {

/// Copies of a model, each of which has its own share of the work. Consecutive ranks have a copy
/// together: a grid of `context` x `split` of them. Each has its part of every layer (of `split`),
/// and of what is read and kept of a text (of `context`).
struct RankGrid {
  int copies = 1;
  int context = 1;
  int split = 1;
  int of_copy() const { return context * split; }
  int ranks() const { return copies * of_copy(); }
};

/// One of the copies of a model. All of them go through the same items (documents, questions,
/// prompts), and each computes those that are its own. The first rank of each copy calls the
/// functions; the results of all are equal on all of them, whatever the number of copies.
class Copies {
 public:
  /// One copy, and no other ranks.
  Copies() = default;
  /// Of the copy that the rank of this world has.
  Copies(const RankGrid& grid, collective::World& world);

  int count() const { return count_; }
  /// Whether what the command prints is this copy's.
  bool is_first() const { return number_ == 0; }
  /// Each item is that of one copy.
  bool owns(std::int64_t item) const;
  /// values[i] is the value of the copy that owns item i; what others have there is left out.
  std::vector<double> joined(std::vector<double> values) const;
  /// The same of texts.
  std::vector<std::string> joined(std::vector<std::string> texts) const;

 private:
  int count_ = 1;
  int number_ = 0;
  collective::Communicator* first_ranks_ = nullptr;  // null: there is one copy
};

}  // namespace tessera::text
