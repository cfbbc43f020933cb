module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.device;
import tessera.tensor;
import tessera.ops;

// Calls on a device against the same calls on the CPU.
namespace tessera::conformance {
namespace {

/// How far the values are from the CPU's, as a share of what the device promises; 0: the same bits.
double deviation(const Tensor& here, const Tensor& expected, double tolerance) {
  const auto bytes = static_cast<std::size_t>(here.numel()) * size_of(here.dtype());
  if (bytes == 0 || std::memcmp(here.raw_data(), expected.raw_data(), bytes) == 0) {
    return 0;
  }
  if (!is_floating(here.dtype()) || tolerance == 0) {
    return std::numeric_limits<double>::infinity();
  }
  // In units of f32: a narrow type is as much coarser as its epsilon is.
  const double scale = std::max(1.0, epsilon(here.dtype()) / epsilon(DType::f32));
  return largest_difference(here, expected) / (tolerance * scale);
}

/// Why `actual`, of the device, is not `expected`; empty: it is. `largest` grows to how far it is.
std::string difference(const Tensor& actual, const Tensor& expected, Device device,
                       double& largest) {
  if (actual.defined() != expected.defined()) {
    return actual ? "should not exist" : "is missing";
  }
  if (!actual) {
    return {};
  }
  if (!(actual.device() == device)) {
    return "is on " + to_string(actual.device());
  }
  const bool fits = actual.shape() == expected.shape() && actual.dtype() == expected.dtype();
  const NoGrad constant;
  const double far = fits ? deviation(ops::to_device(actual, cpu), ops::contiguous(expected),
                                      driver_of(device).properties().tolerance)
                          : std::numeric_limits<double>::infinity();
  largest = std::max(largest, far);
  return far <= 1 ? std::string()
                  : "is " + to_string(actual) + " instead of " + to_string(expected);
}

void compare(std::vector<std::string>& findings, double& largest, const std::string& what,
             std::span<const Tensor> actual, std::span<const Tensor> expected, Device device) {
  if (actual.size() != expected.size()) {
    findings.push_back(what + ": there are " + std::to_string(actual.size()) + " instead of " +
                       std::to_string(expected.size()));
    return;
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const std::string text = difference(actual[i], expected[i], device, largest);
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
  const Tensor memory = from_storage(IntrusivePointer<Storage>(x.impl()->storage), {elements}, {1},
                                     0, x.dtype(), cpu);
  return alias(ops::to_device(memory, device), x.shape(), x.strides(), x.offset());
}

/// The error of a kernel, which is raised where the host waits; empty: none.
std::string late_error(Device device) {
  try {
    synchronize(device);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// The call with operands on the device, against what the CPU has made of it.
void compare_there(const CallResult& expected, const CallSample& sample, const std::string& how,
                   std::span<const Tensor> there, int order, Device device,
                   DeviceAccount& account) {
  CallResult actual =
      call_plain(sample, there, [&](const Tensor& g) { return copied_to(g, device); }, order);
  if (actual.error.empty() && !expected.error.empty()) {
    actual.error = late_error(device);
  }
  const std::string name = sample.name + " " + how + " on " + to_string(device);
  if (actual.error != expected.error || actual.backward_error != expected.backward_error) {
    account.findings.push_back(name + " fails: " + actual.error + actual.backward_error +
                               " (on the CPU: '" + expected.error + expected.backward_error + "')");
    return;
  }
  if (!expected.error.empty()) {
    return;  // both refuse the call
  }
  double& largest = account.deviations[std::string(sample.op->name)];
  const auto same = [&](const char* what, const auto& here, const auto& there_wanted) {
    compare(account.findings, largest, name + what, here, there_wanted, device);
  };
  same(": result", actual.out, expected.out);
  same(": written operand", actual.written, expected.written);
  same(": gradient", actual.gradients, expected.gradients);
  account.operators.insert(sample.op->name);
  ++account.calls;
  account.gradients += expected.gradients.empty() ? 0 : 1;
}

std::vector<Tensor> all_there(std::span<const Tensor> operands, Device device) {
  std::vector<Tensor> there;
  for (const Tensor& x : operands) {
    there.push_back(x ? alike(x, device) : x);
  }
  return there;
}

}  // namespace

void compare_on_device(const CallSample& sample, const std::string& how,
                       std::span<const Tensor> operands, int order, Device device,
                       DeviceAccount& account) {
  // The CPU's call comes after it, as it may write the operands.
  const std::vector<Tensor> there = all_there(operands, device);
  compare_there(call_plain(sample, operands, copy_of, order), sample, how, there, order, device,
                account);
}

void compare_with(const CallResult& expected, const CallSample& sample, const std::string& how,
                  std::span<const Tensor> operands, int order, Device device,
                  DeviceAccount& account) {
  compare_there(expected, sample, how, all_there(operands, device), order, device, account);
}

}  // namespace tessera::conformance
