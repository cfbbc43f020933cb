// Every operator on the adversarial device: the bits of its results and gradients are those of the
// CPU, in every order that the device's queues may run in, on plain operands of any strides and on
// the parts of distributed ones.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <span>
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

/// Why `found`, of the device, is not `wanted` bit by bit; empty: it is.
std::string difference(const Tensor& found, const Tensor& wanted, Device device) {
  if (found.defined() != wanted.defined()) {
    return found ? "should not exist" : "is missing";
  }
  if (!found) {
    return {};
  }
  if (!(found.device() == device)) {
    return "is on " + to_string(found.device());
  }
  if (!(found.shape() == wanted.shape()) || found.dtype() != wanted.dtype()) {
    return "is " + to_string(found) + " instead of " + to_string(wanted);
  }
  const NoGrad constant;
  const Tensor here = ops::to_device(found, cpu);
  const Tensor there = ops::contiguous(wanted);
  const auto bytes = static_cast<std::size_t>(here.numel()) * size_of(here.dtype());
  return bytes == 0 || std::memcmp(here.raw_data(), there.raw_data(), bytes) == 0
             ? std::string()
             : "is " + to_string(found) + " instead of " + to_string(wanted);
}

void compare(std::vector<std::string>& findings, const std::string& what,
             const std::vector<Tensor>& found, const std::vector<Tensor>& wanted, Device device) {
  if (found.size() != wanted.size()) {
    findings.push_back(what + ": there are " + std::to_string(found.size()) + " instead of " +
                       std::to_string(wanted.size()));
    return;
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string text = difference(found[i], wanted[i], device);
    if (!text.empty()) {
      findings.push_back(what + " " + std::to_string(i) + " " + text);
    }
  }
}

/// x on the device, in memory with the same strides.
Tensor alike(const Tensor& x, Device device) {
  const NoGrad constant;
  const auto elements =
      static_cast<std::int64_t>(x.storage().bytes() / static_cast<std::size_t>(size_of(x.dtype())));
  const Tensor memory =
      from_storage(Counted<Storage>(x.impl()->storage), {elements}, {1}, 0, x.dtype(), cpu);
  return alias(ops::to_device(memory, device), x.shape(), x.strides(), x.offset());
}

Tensor copy_of(const Tensor& x) {
  const NoGrad constant;
  return x ? ops::clone(x) : x;
}

std::vector<Tensor> copies_of(std::span<const Tensor> tensors) {
  std::vector<Tensor> all;
  for (const Tensor& x : tensors) {
    all.push_back(copy_of(x));
  }
  return all;
}

/// The same values in every second element of memory, after an offset.
Tensor spaced(const Tensor& x) {
  const NoGrad constant;
  Dims strides = contiguous_strides(x.shape());
  for (std::int64_t& stride : strides) {
    stride *= 2;
  }
  const Tensor moved = alias(zeros({2 * x.numel() + 3}, x.dtype()), x.shape(), strides, 3);
  ops::copy_(moved, x);
  return moved;
}

struct Count {
  std::set<std::string> operators;
  std::size_t calls = 0;
  std::size_t gradients = 0;
  std::vector<std::string> findings;
};

/// The error of a kernel, which is raised where the host waits; empty: none.
std::string late_error(Device device) {
  try {
    synchronize(device);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Calls the sample with these operands on the CPU and on the device.
void compare_call(Count& count, const CallSample& sample, const std::string& how,
                  const std::vector<Tensor>& operands, int order, Device device) {
  std::vector<Tensor> there;
  for (const Tensor& x : operands) {
    there.push_back(x ? alike(x, device) : x);
  }
  const CallResult wanted = call_plain(sample, operands, copy_of, order);
  CallResult found =
      call_plain(sample, there, [&](const Tensor& g) { return copied_to(g, device); }, order);
  if (found.error.empty() && !wanted.error.empty()) {
    found.error = late_error(device);
  }
  const std::string name = sample.name + " " + how + " on " + to_string(device);
  if (found.error != wanted.error || found.backward_error != wanted.backward_error) {
    count.findings.push_back(name + " fails: " + found.error + found.backward_error +
                             " (on the CPU: '" + wanted.error + wanted.backward_error + "')");
    return;
  }
  if (!wanted.error.empty()) {
    return;  // both refuse the call
  }
  compare(count.findings, name + ": result", found.out, wanted.out, device);
  compare(count.findings, name + ": written operand", found.written, wanted.written, device);
  compare(count.findings, name + ": gradient", found.gradients, wanted.gradients, device);
  count.operators.insert(sample.op->name);
  ++count.calls;
  count.gradients += wanted.gradients.empty() ? 0 : 1;
}

void check(const Count& count) {
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
  Count count;
  for (const CallSample& sample : samples()) {
    for (const int order : {1, 2}) {
      if (order == 2 && (sample.op->backward == nullptr || sample.op->in_place)) {
        continue;
      }
      compare_call(count, sample, order == 1 ? "" : "(second gradient)", copies_of(sample.inputs),
                   order, next_device());
    }
  }
  check(count);
  CHECK(count.operators.size() > 200);
  CHECK(count.gradients > 400);
}

TEST_CASE("operators have the CPU's bits on a device in each floating type") {
  Count count;
  std::map<const Op*, std::vector<CallSample>> by_op;
  for (const CallSample& sample : samples()) {
    by_op[sample.op].push_back(sample);
  }
  for (const auto& [op, of_op] : by_op) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const std::vector<CallSample> in = in_type(of_op, dtype);
      for (std::size_t i = 0; i < in.size() && i < 2; ++i) {
        compare_call(count, in[i], "in " + std::string(name_of(dtype)), copies_of(in[i].inputs), 1,
                     next_device());
      }
    }
  }
  check(count);
  CHECK(count.operators.size() > 150);
}

TEST_CASE("operators have the CPU's bits on a device where operands have gaps between elements") {
  Count count;
  for (const CallSample& sample : samples()) {
    std::vector<Tensor> operands;
    for (const Tensor& x : sample.inputs) {
      operands.push_back(x ? spaced(x) : x);
    }
    compare_call(count, sample, "(spaced)", operands, 1, next_device());
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
