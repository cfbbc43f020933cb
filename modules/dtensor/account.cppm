export module tessera.dtensor:account;

import tessera.base;
import tessera.tensor;

export namespace tessera {

/// Work of the calls of one operator on this rank.
struct OperatorWork {
  std::int64_t calls = 0;
  double flops = 0;  // Op::flops, of local shapes
  double bytes = 0;  // of operands that were read and results that were written; views move none
};

/// Work of the collectives of one kind on one mesh axis.
struct CollectiveWork {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  // that this rank received
};

/// Work of a part of a program, as one rank sees it. An account of a run on the meta device is a
/// prediction: nothing is computed, and no other rank needs to be there.
struct Account {
  /// Floating-point operations of the products of the program as written: of global shapes, so of
  /// all ranks together and the same in every layout. Recomputation is not in it.
  double model_flops = 0;
  /// Local calls of this rank, by operator; with recomputation.
  std::map<std::string, OperatorWork> operators = {};
  /// By mesh axis ("shard"; joined by '+' if a collective spans several) and kind ("all_gather").
  std::map<std::pair<std::string, std::string>, CollectiveWork> collectives = {};
  /// Bytes in use at the end and at the peak since reset_memory_peaks().
  MemoryStatistics memory = {};

  double flops() const;  // of this rank
  double bytes() const;  // that this rank's operators moved
  /// Adds `times` times the work of another account; the memory stays.
  void add(const Account& other, std::int64_t times = 1);
  /// A table of the operators with FLOPs or bytes, most FLOPs first, then of the collectives.
  std::string to_string() const;
};

/// Writes what the calling thread does within the scope into `into`, at the scope's end. Modes
/// above and below distribution and a CommunicationReport do it; of nested reports and accounts
/// only the innermost one receives communication.
class AccountScope {
 public:
  explicit AccountScope(Account& into);
  ~AccountScope();
  AccountScope(const AccountScope&) = delete;
  AccountScope& operator=(const AccountScope&) = delete;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera
