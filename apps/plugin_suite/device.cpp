module;
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.conformance;

// A device against the CPU: its memory, and each kernel that it has.
namespace tessera::plugin_suite {
namespace {

Tensor pattern(const Dims& shape, double phase) {
  const Tensor x = empty(shape);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>(std::sin(1.7 * static_cast<double>(i) + phase));
  }
  return x;
}

std::string copies_come_back(const std::string& name) {
  const Device device = find_device(name);
  for (const std::int64_t count : {1, 63, 4097, 1 << 20}) {
    const Tensor x = pattern({count}, 0.1);
    if (to_doubles(ops::to_device(ops::to_device(x, device), cpu)) != to_doubles(x)) {
      return fmt::format("{} elements that were copied there and back differ", count);
    }
  }
  return "";
}

std::string fills(const std::string& name) {
  const Device device = find_device(name);
  for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::bf16}) {
    const Tensor x = full({33}, 3, dtype, device);
    if (to_doubles(ops::to_device(x, cpu)) != std::vector<double>(33, 3)) {
      return fmt::format("a tensor of 33 elements {} that was filled with 3 differs",
                         name_of(dtype));
    }
  }
  return "";
}

std::string waits_between_streams(const std::string& name) {
  const Device device = find_device(name);
  const Tensor x = pattern({1 << 18}, 0.2);
  std::vector<double> expected = to_doubles(x);
  const Tensor there = ops::to_device(x, device);
  Tensor kept = ops::to_device(x, device);
  for (int i = 0; i < 8; ++i) {
    kept = ops::to_device(ops::to_device(kept, cpu), device);  // copies in both directions in turn
  }
  return to_doubles(ops::to_device(kept, cpu)) == expected &&
                 to_doubles(ops::to_device(there, cpu)) == expected
             ? ""
             : "copies in turn in both directions mix up their contents";
}

/// Calls of every operator that the device has a kernel for.
std::vector<conformance::CallSample> calls_for(DeviceType type) {
  constexpr std::size_t of_each = 4;
  conformance::Recorder recorder(of_each, true);
  recorder.trying = trying;
  conformance::hear_training(recorder);
  for (const Op* op : all_ops()) {
    if (kernel_of(*op, type)) {
      conformance::make_samples(*op, recorder);
    }
  }
  std::vector<conformance::CallSample> calls;
  for (const auto& [name, samples] : recorder.by_op) {
    const Op& op = find_op(name);
    if (kernel_of(op, type) && op.communicates == Communicates::none && op.distributed == nullptr &&
        name != "to_device") {
      calls.insert(calls.end(), samples.begin(), samples.end());
    }
  }
  return calls;
}

std::string kernels_agree(const std::string& name) {
  const Device device = find_device(name);
  const HostFallback gradients_may_fall_back;  // to operators that the device has no kernel for
  conformance::DeviceAccount account;
  for (const conformance::CallSample& call : calls_for(device.type)) {
    trying(call.name);
    compare_on_device(call, "", conformance::copies_of(call.inputs), 1, device, account);
    std::vector<Tensor> gaps;
    for (const Tensor& x : call.inputs) {
      gaps.push_back(x ? conformance::spaced(x) : x);
    }
    compare_on_device(call, "(spaced)", gaps, 1, device, account);
  }
  if (account.calls == 0 && account.findings.empty()) {
    throw SkippedCheck{"it has no kernel of an operator"};
  }
  for (const auto& [op, share] : account.deviations) {
    if (share > 0) {
      note(fmt::format("{} {:.3g}", op, share));
    }
  }
  return some_of(account.findings);
}

}  // namespace

std::vector<SuiteCheck> device_suite(const std::string& name) {
  return {{"copies come back as they were", [=] { return copies_come_back(name); }},
          {"memory is filled", [=] { return fills(name); }},
          {"copies are ordered", [=] { return waits_between_streams(name); }},
          {"kernels compute what the CPU does", [=] { return kernels_agree(name); }}};
}

}  // namespace tessera::plugin_suite
