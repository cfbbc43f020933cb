// A device against the CPU: its memory, and each kernel that it has, on a few calls. An operator of
// a plugin: whether it is complete.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plugin_suite/suite.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.plugin;

namespace tessera::app {
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

/// Calls of operators that every model uses.
std::vector<std::pair<std::string, std::function<Tensor(Device)>>> calls() {
  const auto at = [](const Dims& shape, double phase, Device device) {
    return ops::to_device(pattern(shape, phase), device);
  };
  return {
      {"add", [=](Device d) { return ops::add(at({3, 5}, 0, d), at({5}, 1, d)); }},
      {"mul", [=](Device d) { return ops::mul(at({3, 5}, 0, d), at({3, 5}, 1, d)); }},
      {"linear", [=](Device d) { return ops::linear(at({3, 5}, 0, d), at({7, 5}, 1, d)); }},
      {"sum", [=](Device d) { return ops::sum(at({3, 5}, 0, d)); }},
      {"softmax", [=](Device d) { return ops::softmax(at({3, 5}, 0, d), 1); }},
      {"gelu", [=](Device d) { return ops::gelu(at({3, 5}, 0, d)); }},
      {"rms_norm", [=](Device d) { return ops::rms_norm(at({3, 5}, 0, d), at({5}, 1, d), 1e-5); }},
      {"transpose",
       [=](Device d) { return ops::contiguous(ops::transpose(at({3, 5}, 0, d), 0, 1)); }},
      {"causal_attention",
       [=](Device d) {
         return ops::causal_attention(at({2, 3, 2, 4}, 0, d), at({2, 3, 2, 4}, 1, d),
                                      at({2, 3, 2, 4}, 2, d));
       }},
  };
}

std::string kernels_agree(const std::string& name) {
  const Device device = find_device(name);
  std::string missing;
  int ran = 0;
  for (const auto& [op, call] : calls()) {
    const std::vector<double> expected = to_doubles(call(cpu));
    std::vector<double> got;
    try {
      got = to_doubles(ops::to_device(call(device), cpu));
    } catch (const Error& error) {
      missing = missing.empty() ? error.what() : missing;
      continue;  // an operator without a kernel is an error by design
    }
    ++ran;
    if (const double difference = largest_difference(got, expected); difference > 1e-5) {
      return fmt::format("{} differs from the CPU (by {:.1e})", op, difference);
    }
  }
  if (ran == 0) {
    throw NotTried{"it has no kernel of the operators that are tried: " + missing};
  }
  return "";
}

std::string is_complete(const std::string& name) {
  const Op& op = load_operator(name);
  if (op.cpu == nullptr && op.view == nullptr) {
    return "it has neither a kernel of the CPU nor a view";
  }
  if (op.rule == nullptr) {
    return "it has no placement rule (Op::rule): distributed operands would be errors";
  }
  if (op.about.empty()) {
    return "it has no description (Op::about), which reports show";
  }
  return "";
}

}  // namespace

std::vector<SuiteCheck> device_suite(const std::string& name) {
  return {{"copies come back as they were", [=] { return copies_come_back(name); }},
          {"memory is filled", [=] { return fills(name); }},
          {"copies are ordered", [=] { return waits_between_streams(name); }},
          {"kernels compute what the CPU does", [=] { return kernels_agree(name); }}};
}

std::vector<SuiteCheck> operator_suite(const std::string& name) {
  return {{"it is complete", [=] { return is_complete(name); }}};
}

}  // namespace tessera::app
