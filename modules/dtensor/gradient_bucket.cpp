module;
#include <cstdint>
#include <utility>
#include <vector>
module tessera.dtensor;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :gradient_bucket;

namespace tessera {

void GradientBucket::add(Tensor term) { sums_.push_back(std::move(term)); }

void GradientBucket::add(Tensor term, Tensor shard) {
  terms_.push_back(std::move(term));
  sums_.push_back(std::move(shard));
}

void GradientBucket::issue(ops::Ranks ranks, std::int64_t identity, const Count& step) {
  if (terms_.empty()) {
    ops::all_reduce_coalesced_(sums_, ReduceOp::sum, ranks, identity, step);
  } else {
    ops::reduce_scatter_into(sums_, terms_, ReduceOp::sum, ranks, identity);
  }
}

void GradientBucket::issue_over(ops::Ranks ranks, std::int64_t identity) {
  complete();
  ops::all_reduce_coalesced_(sums_, ReduceOp::sum, ranks, identity);
}

void GradientBucket::complete() const { ops::wait(sums_.front()); }

std::vector<Tensor> GradientBucket::take_sums() { return std::exchange(sums_, {}); }

std::vector<Tensor> GradientBucket::take_terms() { return std::exchange(terms_, {}); }

}  // namespace tessera
