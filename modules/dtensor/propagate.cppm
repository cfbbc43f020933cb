export module tessera.dtensor:propagate;

import tessera.base;
import tessera.tensor;

export namespace tessera {

/// The execution of a distributed call: determined once per operator, operands' specs and fixed
/// attributes, then cached.
struct Propagation {
  const Op* op = nullptr;
  InlineVector<SpecHandle, 4> in;  // the key's: as the operands are; null for absent ones
  Attributes arguments;            // the key's are the fixed ones
  /// Specs that the operands must have; equal to `in` where nothing is to do.
  InlineVector<SpecHandle, 4> wanted;
  InlineVector<SpecHandle, 2> out;             // of the results
  std::optional<Attributes> local;             // of the local call, where they differ
  bool converts = false;                       // some operand must be converted
  bool communicates = false;                   // and that takes communication
  bool peers_read = false;                     // some result is Partial over several ranks
  InlineVector<InnerReduction, 2> reductions;  // of the local call, if its strategy declares any
  InlineVector<int, 2> reduced_axes;           // over these mesh axes
};

/// Layouts of the results, and the conversions of the operands. Conversions without communication
/// (from Replicate to Shard or Partial) are implicit; conversions that communicate require
/// `allow_communication`. Errors: no placement rule; operands on different meshes; an operand must
/// be redistributed: the text contains the operand, its layout, the required layout and the call
/// that fixes it.
Propagation propagate(const Op& op, std::span<const Tensor> in, const Attributes& attributes,
                      bool allow_communication);

/// Statistics of the calling rank's caches. The cache is bounded, so that a program with ever new
/// shapes does not fill the memory; entries that are used again are kept.
struct PropagationStatistics {
  std::int64_t hits = 0;
  std::int64_t misses = 0;
  std::int64_t kept = 0;             // propagations in the cache now
  std::int64_t redistributions = 0;  // and redistributions in theirs, which is bounded too
  std::int64_t specs = 0;            // of all ranks of the process; see Spec::kept
};
PropagationStatistics propagation_statistics();

/// Executes a redistribution between two specs of one tensor, step by step; autograd does not
/// record it.
Tensor carry_out_redistribution(const Tensor& x, const SpecHandle& to, bool implicit,
                                const char* where);

}  // namespace tessera
