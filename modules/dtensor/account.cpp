module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

namespace tessera {
namespace {

double flops_of(const Call& call, std::span<const Tensor> out) {
  return call.op.flops == nullptr ? 0 : call.op.flops(call, out);
}

/// The bytes of a tensor's elements; those that an expanded tensor repeats count once.
double bytes_of(const Tensor& x) {
  if (!x) {
    return 0;
  }
  double elements = 1;
  for (int d = 0; d < x.dims(); ++d) {
    elements *= x.strides()[d] == 0 && x.shape()[d] > 0 ? 1 : static_cast<double>(x.shape()[d]);
  }
  return elements * static_cast<double>(size_of(x.dtype()));
}

double moved_bytes(const Call& call, std::span<const Tensor> out) {
  if (call.op.view != nullptr) {
    return 0;
  }
  double bytes = 0;
  for (const Tensor& x : call.in) {
    bytes += bytes_of(x);
  }
  for (const Tensor& y : out) {
    bytes += bytes_of(y);
  }
  return bytes;
}

/// The program as written.
class ProgramAccount final : public Mode {
 public:
  explicit ProgramAccount(Account& account) : account_(account) {}

  Tensors call(const Call& call, NextCall& next) override {
    Tensors out = next(call);
    account_.model_flops += again_ ? 0 : flops_of(call, out);
    return out;
  }
  void perform(Action& action, NextAction& next) override {
    const bool before = again_;
    again_ = before || (action.kind == ActionKind::phase && action.name == "recomputation");
    try {
      next(action);
    } catch (...) {
      again_ = before;
      throw;
    }
    again_ = before;
  }

 private:
  Account& account_;
  bool again_ = false;
};

/// Counts the calls that this rank executes.
class ExecutionAccount final : public Mode {
 public:
  explicit ExecutionAccount(Account& account) : account_(account) {}

  Tensors call(const Call& call, NextCall& next) override {
    Tensors out = next(call);
    OperatorWork& work = account_.operators[call.op.name];
    ++work.calls;
    work.flops += flops_of(call, out);
    work.bytes += moved_bytes(call, out);
    return out;
  }

 private:
  Account& account_;
};

std::string flops_text(double flops) { return flops == 0 ? "" : format_flops(flops); }

}  // namespace

double Account::flops() const {
  double sum = 0;
  for (const auto& [name, work] : operators) {
    sum += work.flops;
  }
  return sum;
}

double Account::bytes() const {
  double sum = 0;
  for (const auto& [name, work] : operators) {
    sum += work.bytes;
  }
  return sum;
}

void Account::add(const Account& other, std::int64_t times) {
  model_flops += static_cast<double>(times) * other.model_flops;
  for (const auto& [name, work] : other.operators) {
    OperatorWork& sum = operators[name];
    sum.calls += times * work.calls;
    sum.flops += static_cast<double>(times) * work.flops;
    sum.bytes += static_cast<double>(times) * work.bytes;
  }
  for (const auto& [key, work] : other.collectives) {
    CollectiveWork& sum = collectives[key];
    sum.calls += times * work.calls;
    sum.bytes += times * work.bytes;
  }
}

std::string Account::to_string() const {
  std::vector<std::pair<std::string, OperatorWork>> rows(operators.begin(), operators.end());
  std::ranges::sort(rows, [](const auto& a, const auto& b) {
    return std::tuple(b.second.flops, b.second.bytes, a.first) <
           std::tuple(a.second.flops, a.second.bytes, b.first);
  });
  std::string text =
      fmt::format("{:<36} {:>8} {:>12} {:>12}\n", "operator", "calls", "work", "bytes moved");
  for (const auto& [name, work] : rows) {
    if (work.flops > 0 || work.bytes > 0) {
      text += fmt::format("{:<36} {:>8} {:>12} {:>12}\n", name, work.calls, flops_text(work.flops),
                          format_bytes(static_cast<std::uint64_t>(work.bytes)));
    }
  }
  text += fmt::format("{:<36} {:>8} {:>12} {:>12}\n", "in all", "", flops_text(flops()),
                      format_bytes(static_cast<std::uint64_t>(bytes())));
  if (!collectives.empty()) {
    text += fmt::format("\n{:<36} {:>8} {:>12} {:>12}\n", "collective", "calls", "", "received");
  }
  for (const auto& [key, work] : collectives) {
    text += fmt::format("{:<36} {:>8} {:>12} {:>12}\n",
                        fmt::format("{} on '{}'", key.second, key.first), work.calls, "",
                        format_bytes(static_cast<std::uint64_t>(work.bytes)));
  }
  return text;
}

struct AccountScope::Implementation {
  explicit Implementation(Account& into) : account(into) {}

  Account& account;
  CommunicationReport report;
  ProgramAccount written{account};
  ExecutionAccount executed{account};
  ModeScope above{ModeLevel::above_distribution, written};
  ModeScope below{ModeLevel::below_distribution, executed};
};

AccountScope::AccountScope(Account& into)
    : implementation_(std::make_unique<Implementation>(into)) {}

AccountScope::~AccountScope() {
  Account& account = implementation_->account;
  for (const Communication& one : implementation_->report.entries()) {
    CollectiveWork& work = account.collectives[{one.axis, one.operation}];
    ++work.calls;
    work.bytes += one.bytes;
  }
  account.memory = memory_statistics();
}

}  // namespace tessera
