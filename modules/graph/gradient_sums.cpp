// Sums of a placed step's gradients, issued when backward has completed some of them.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import :gradient_sums;

namespace tessera::graph {
namespace {

/// Terms of a sum on every axis, in memory that a call on local tensors can read.
bool can_issue(const Tensor& gradient) {
  const Layout& layout = gradient.layout();
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (!(layout.placement(axis) == Placement(Partial()))) {
      return false;
    }
  }
  return gradient.dims() > 0 && gradient.local().is_contiguous();
}

ops::GroupArgument ranks_of(const DeviceMesh& mesh, int axis) {
  return ops::GroupArgument::of(mesh.group(axis, current_rank()), "gradients");
}

}  // namespace

GradientSums::GradientSums(const DeviceMesh& mesh, ByTensor<Tensor>& tensors,
                           std::int64_t group_bytes)
    : mesh_(mesh), tensors_(tensors), group_bytes_(group_bytes) {}

void GradientSums::add(TensorIndex number, const Layout& to, std::uint64_t identity,
                       bool replaced) {
  if (is_open(number)) {
    return;
  }
  Tensor& gradient = tensors_[number];
  if (can_issue(gradient) && (!to.is_replicated() || replaced)) {
    collect(number, to, identity);
  } else {
    gradient = redistribute(gradient, to);
  }
}

void GradientSums::collect(TensorIndex number, const Layout& to, std::uint64_t identity) {
  const Tensor& gradient = tensors_[number];
  const auto bytes =
      gradient.local().numel() * static_cast<std::int64_t>(size_of(gradient.dtype()));
  const bool alike =
      waiting_.empty() ||
      (waiting_.front().to == to && tensors_[waiting_.front().number].dtype() == gradient.dtype());
  if (!alike || (!waiting_.empty() && waiting_bytes_ + bytes > group_bytes_)) {
    issue();
  }
  waiting_.push_back({number, to, identity});
  waiting_bytes_ += bytes;
}

void GradientSums::issue() {
  if (waiting_.empty()) {
    return;
  }
  advance();
  const MemoryScope booked(MemoryCategory::gradient);
  SumInFlight flight{
      .gradients = std::exchange(waiting_, {}), .bucket = {}, .next_axis = 0, .identity = 0};
  waiting_bytes_ = 0;
  std::uint64_t identity = 0;
  for (const WaitingGradient& one : flight.gradients) {
    const Tensor& gradient = tensors_[one.number];
    if (one.to.is_replicated()) {
      flight.bucket.add(to_local(gradient));
    } else {
      const SpecHandle spec = Spec::make(one.to, gradient.shape(), gradient.dtype());
      flight.bucket.add(to_local(gradient), empty(local_shape(*spec), gradient.dtype(), meta));
    }
    identity = hash_combine(identity, one.identity);
  }
  flight.identity = static_cast<std::int64_t>(identity & 0x7fffffffU);
  const int last = mesh_.ndim() - 1;
  flight.next_axis = last - 1;
  flight.bucket.issue(ranks_of(mesh_, last), flight.identity);
  flights_.push_back(std::move(flight));
}

void GradientSums::advance() {
  for (SumInFlight& flight : flights_) {
    if (flight.next_axis >= 0) {
      flight.bucket.issue_over(ranks_of(mesh_, flight.next_axis), flight.identity);
    } else if (flight.next_axis == -1) {
      flight.bucket.complete();
      for (std::size_t k = 0; k < flight.gradients.size(); ++k) {
        Tensor& gradient = tensors_[flight.gradients[k].number];
        gradient = from_local(flight.bucket.sums()[k], flight.gradients[k].to, gradient.shape());
      }
    }
    --flight.next_axis;
  }
  std::erase_if(flights_, [](const SumInFlight& flight) { return flight.next_axis < -1; });
}

bool GradientSums::is_open(TensorIndex number) const {
  const auto has = [&](const std::vector<WaitingGradient>& some) {
    return std::ranges::find(some, number, &WaitingGradient::number) != some.end();
  };
  return has(waiting_) || std::ranges::any_of(flights_, [&](const SumInFlight& flight) {
           return has(flight.gradients);
         });
}

void GradientSums::complete(TensorIndex number) {
  if (is_open(number)) {
    complete_all();
  }
}

void GradientSums::complete_all() {
  issue();
  while (!flights_.empty()) {
    advance();
  }
}

}  // namespace tessera::graph
