// Losses of classes.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "indices.hpp"
#include "kernels.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

struct CrossEntropyArgs {
  std::int64_t ignore_index;
  bool loss_parallel;
  SpecArgument whole{};  // of the logits
};

/// logits and targets are the call's first operands; results have one number for each row.
void of_logits(const Call& call, const std::string& kernel, std::span<const Tensor> results) {
  const Tensor& logits = call.in[0];
  const Tensor& targets = call.in[1];
  const auto arguments = call.args<CrossEntropyArgs>();
  const Part classes = part_of(arguments.whole, logits.dims() - 1, logits.shape().back());
  look_at(call, targets, classes.whole, ProblemKind::target, arguments.ignore_index);
  Rows rows = Rows::of_last_dim(logits.shape());
  rows.whole(logits).per_row(targets);
  for (const Tensor& result : results) {
    rows.per_row(result);
  }
  rows.integer(classes.first).integer(arguments.ignore_index).launch_long_rows(logits, kernel);
}

void cross_entropy_rows(const Call& call, std::span<Tensor> out) {
  of_logits(call, "cross_entropy", out);
}

void logits_statistics(const Call& call, std::span<Tensor> out) {
  of_logits(call, "logits_statistics", out);
}

/// The losses are added from the logits again, so that they need no memory.
void cross_entropy(const Call& call, std::span<Tensor> out) {
  const Tensor results[] = {Tensor(), out[1]};
  of_logits(call, "cross_entropy", results);
  const Tensor& logits = call.in[0];
  const auto arguments = call.args<CrossEntropyArgs>();
  Rows::of_last_dim(logits.shape())
      .whole(logits)
      .per_row(call.in[1])
      .per_row(out[1])
      .shared(out[0])
      .integer(part_of(arguments.whole, logits.dims() - 1, logits.shape().back()).first)
      .integer(arguments.ignore_index)
      .launch_blocks(logits, with_type("cross_entropy_sum", logits.dtype()), 1);
}

void cross_entropy_backward(const Call& call, std::span<Tensor> out) {
  const Tensor& dloss = call.in[0];
  const Tensor& logits = call.in[1];
  const auto arguments = call.args<CrossEntropyArgs>();
  const Part classes = part_of(arguments.whole, logits.dims() - 1, logits.shape().back());
  Rows::of_last_dim(logits.shape())
      .whole(logits)
      .per_row(call.in[2])
      .per_row(dloss)
      .per_row(call.in[3])
      .whole(out[0])
      .integer(classes.first)
      .integer(arguments.ignore_index)
      .launch_long_rows(out[0], "cross_entropy_backward");
}

}  // namespace

void add_losses(KernelTable& table) {
  table["cross_entropy"] = {cross_entropy};
  table["cross_entropy_rows"] = {cross_entropy_rows};
  table["logits_statistics"] = {logits_statistics};
  table["cross_entropy_backward"] = {cross_entropy_backward};
}

}  // namespace tessera::cuda
