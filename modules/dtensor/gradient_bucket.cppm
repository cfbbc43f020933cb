export module tessera.dtensor:gradient_bucket;

import tessera.base;
import tessera.tensor;
import tessera.ops;

export namespace tessera {

/// Terms of gradients that ranks combine in one call. The end of a step's backward
/// (parallel::GradientFinisher), FSDP's groups and captured steps of several ranks fill a bucket,
/// issue it, and complete it when its values are needed: how gradients of ranks become one is in
/// this class alone. It is their sum; a loss that is a mean over the global batch gives every rank
/// its term of it, so nothing is divided.
class GradientBucket {
 public:
  /// A term whose place its sum takes: contiguous memory that nothing else uses.
  void add(Tensor term);
  /// A term whose sum is split over the ranks as Shard(0) splits it: `shard` gets this rank's part.
  /// The terms of a bucket are all of one kind and type.
  void add(Tensor term, Tensor shard);

  bool empty() const { return sums_.empty(); }
  /// Issues the call. `identity` and `step` are compared among the ranks.
  void issue(ops::Ranks ranks, std::int64_t identity, const Count& step = 0);
  /// Completes it, and issues that of its sums over other ranks.
  void issue_over(ops::Ranks ranks, std::int64_t identity);
  /// Waits for what was issued last.
  void complete() const;

  /// In the order of add: a term's sum, or its shard.
  const std::vector<Tensor>& sums() const { return sums_; }
  std::vector<Tensor> take_sums();
  /// The terms of shards, which peers may read until they issue their next call.
  std::vector<Tensor> take_terms();

 private:
  std::vector<Tensor> terms_;  // of shards
  std::vector<Tensor> sums_;
};

}  // namespace tessera
