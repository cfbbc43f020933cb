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
double deviation(const Tensor& here, const Tensor& wanted, double tolerance) {
  const auto bytes = static_cast<std::size_t>(here.numel()) * size_of(here.dtype());
  if (bytes == 0 || std::memcmp(here.raw_data(), wanted.raw_data(), bytes) == 0) {
    return 0;
  }
  if (!is_floating(here.dtype()) || tolerance == 0) {
    return std::numeric_limits<double>::infinity();
  }
  // In units of f32: a narrow type is as much coarser as its epsilon is.
  const double scale = std::max(1.0, epsilon(here.dtype()) / epsilon(DType::f32));
  return largest_difference(here, wanted) / (tolerance * scale);
}

/// Why `found`, of the device, is not `wanted`; empty: it is. `largest` grows to how far it is.
std::string difference(const Tensor& found, const Tensor& wanted, Device device, double& largest) {
  if (found.defined() != wanted.defined()) {
    return found ? "should not exist" : "is missing";
  }
  if (!found) {
    return {};
  }
  if (!(found.device() == device)) {
    return "is on " + to_string(found.device());
  }
  const bool fits = found.shape() == wanted.shape() && found.dtype() == wanted.dtype();
  const NoGrad constant;
  const double far = fits ? deviation(ops::to_device(found, cpu), ops::contiguous(wanted),
                                      driver_of(device).properties().tolerance)
                          : std::numeric_limits<double>::infinity();
  largest = std::max(largest, far);
  return far <= 1 ? std::string() : "is " + to_string(found) + " instead of " + to_string(wanted);
}

void compare(std::vector<std::string>& findings, double& largest, const std::string& what,
             std::span<const Tensor> found, std::span<const Tensor> wanted, Device device) {
  if (found.size() != wanted.size()) {
    findings.push_back(what + ": there are " + std::to_string(found.size()) + " instead of " +
                       std::to_string(wanted.size()));
    return;
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string text = difference(found[i], wanted[i], device, largest);
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

}  // namespace

void compare_on_device(const CallSample& sample, const std::string& how,
                       std::span<const Tensor> operands, int order, Device device,
                       DeviceAccount& account) {
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
    account.findings.push_back(name + " fails: " + found.error + found.backward_error +
                               " (on the CPU: '" + wanted.error + wanted.backward_error + "')");
    return;
  }
  if (!wanted.error.empty()) {
    return;  // both refuse the call
  }
  double& largest = account.deviations[std::string(sample.op->name)];
  const auto same = [&](const char* what, const auto& here, const auto& there_wanted) {
    compare(account.findings, largest, name + what, here, there_wanted, device);
  };
  same(": result", found.out, wanted.out);
  same(": written operand", found.written, wanted.written);
  same(": gradient", found.gradients, wanted.gradients);
  account.operators.insert(sample.op->name);
  ++account.calls;
  account.gradients += wanted.gradients.empty() ? 0 : 1;
}

}  // namespace tessera::conformance
