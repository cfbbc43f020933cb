export module tessera.dtensor:propagate;

import tessera.base;
import tessera.tensor;

export namespace tessera {

/// What a distributed call comes down to: found once for operator, operands' specs and fixed
/// attributes, then cached.
struct Propagation {
  const Op* op = nullptr;
  InlineVector<const Spec*, 4> in;      // the key's: as the operands are; null for absent ones
  InlineVector<std::int64_t, 8> fixed;  // the key's: fixed attributes
  InlineVector<const Spec*, 4>
      wanted;  // what each operand must become; equal to `in` where nothing is to do
  InlineVector<const Spec*, 2> out;            // of the results
  Attributes local;                            // fixed attributes of the local call
  bool localized = false;                      // `local` differs from the call's
  bool converts = false;                       // some operand must be converted
  bool communicates = false;                   // and that takes communication
  InlineVector<InnerReduction, 2> reductions;  // of the local call, if its strategy declares any
  InlineVector<int, 2> reduced_axes;           // over these mesh axes
};

/// Layouts of the results and what must happen to the operands. Conversions without communication
/// (cutting a Replicate, making it Partial) are taken by themselves; those that communicate only
/// when `allow_communication`. Errors: no placement rule; operands of different meshes; an operand
/// that would have to be redistributed: the text names it, its layout, the layout wanted and the
/// call that mends it.
Propagation propagate(const Op& op, std::span<const Tensor> in, const Attributes& attributes,
                      bool allow_communication);

/// How the cache of the calling rank did. It is bounded: a program whose shapes keep changing does
/// not fill memory, what it uses again stays.
struct PropagationStatistics {
  std::int64_t hits = 0;
  std::int64_t misses = 0;
  std::int64_t kept = 0;  // propagations in the cache now
};
PropagationStatistics propagation_statistics();

/// Carries out a redistribution between two specs of one tensor (no gradient's path), step by step.
Tensor carry_out_redistribution(const Tensor& x, const Spec* to, bool implicit, const char* where);

}  // namespace tessera
