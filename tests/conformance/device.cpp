// Every operator on the adversarial device: the bits of its results and gradients are those of the
// CPU, in every order that the device's queues may run in, on plain operands of any strides and on
// the parts of distributed ones.
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.conformance;

#include "conformance.hpp"
#include "devices.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// The samples of all operators that take part, of which to_device moves tensors by itself.
const std::vector<CallSample>& samples() {
  static const std::vector<CallSample> all = [] {
    std::vector<CallSample> kept = call_samples(4);
    std::erase_if(kept, [](const CallSample& s) {
      return s.op->name.starts_with("wrong_") || s.op->name.starts_with("no_kernel_") ||
             s.op->name == "to_device";
    });
    return kept;
  }();
  return all;
}

void check(const DeviceAccount& count) {
  std::string text;
  for (std::size_t i = 0; i < count.findings.size() && i < 12; ++i) {
    text += "\n  " + count.findings[i];
  }
  INFO(count.findings.size() << " findings:" << text);
  CHECK(count.findings.empty());
}

/// Another order of the queues for each call.
Device next_device() {
  static int next = 0;
  return adversary(next++ % 16);
}

}  // namespace

TEST_CASE("operators and their first and second gradients have the CPU's bits on a device") {
  DeviceAccount count;
  for (const CallSample& sample : samples()) {
    for (const int order : {1, 2}) {
      if (order == 2 && (sample.op->backward == nullptr || sample.op->in_place)) {
        continue;
      }
      compare_on_device(sample, order == 1 ? "" : "(second gradient)", copies_of(sample.inputs),
                        order, next_device(), count);
    }
  }
  check(count);
  CHECK(count.operators.size() > 200);
  CHECK(count.gradients > 400);
}

TEST_CASE("operators have the CPU's bits on a device in each floating type") {
  DeviceAccount count;
  std::map<const Op*, std::vector<CallSample>> by_op;
  for (const CallSample& sample : samples()) {
    by_op[sample.op].push_back(sample);
  }
  for (const auto& [op, of_op] : by_op) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const std::vector<CallSample> in = in_type(of_op, dtype);
      for (std::size_t i = 0; i < in.size() && i < 2; ++i) {
        compare_on_device(in[i], "in " + std::string(name_of(dtype)), copies_of(in[i].inputs), 1,
                          next_device(), count);
      }
    }
  }
  check(count);
  CHECK(count.operators.size() > 150);
}

TEST_CASE("operators have the CPU's bits on a device where operands have gaps between elements") {
  DeviceAccount count;
  for (const CallSample& sample : samples()) {
    std::vector<Tensor> operands;
    for (const Tensor& x : sample.inputs) {
      operands.push_back(x ? spaced(x) : x);
    }
    compare_on_device(sample, "(spaced)", operands, 1, next_device(), count);
  }
  check(count);
  CHECK(count.operators.size() > 150);
}

TEST_CASE("distributed operators are right on ranks that compute on a device each") {
  std::map<std::string, std::vector<CallSample>> by_op;
  for (const CallSample& sample : samples()) {
    std::vector<CallSample>& of_op = by_op[sample.op->name];
    if (of_op.size() < 2 && sample.op->distributed == nullptr &&
        sample.op->communicates == Communicates::none &&
        !sample.op->name.starts_with("as_strided") && !sample.op->name.ends_with("_statistics")) {
      of_op.push_back(sample);
    }
  }
  adversary();
  Extent extent;
  extent.one_axis_cases = 8;
  extent.grid_cases = 2;
  extent.same_on_all_axes = 1;
  extent.sizes = {2};
  extent.grids = {Dims{2, 2}};
  extent.place = [](const Tensor& x) { return copied_to(x, adversary(current_rank())); };
  std::size_t accepted = 0;
  for (const auto& [name, of_op] : by_op) {
    if (of_op.empty()) {
      continue;
    }
    const Verdict account = check_operator(of_op, extent);
    accepted += account.accepted;
    std::string findings;
    for (std::size_t i = 0; i < account.findings.size() && i < 4; ++i) {
      findings += "\n  " + account.findings[i];
    }
    INFO(name << ": " << account.findings.size() << " findings:" << findings);
    CHECK(account.findings.empty());
  }
  CHECK(accepted > 1000);
}
