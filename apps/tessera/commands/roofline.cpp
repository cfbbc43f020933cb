module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import tessera.app.base;
import :program_file;
import :roofline;

namespace tessera::app {
namespace {

using Kind = Instruction::Kind;

/// The bytes of a tensor's elements; those that an expanded tensor repeats count once.
double element_bytes(const Tensor& x) {
  double elements = 1;
  for (int d = 0; d < x.dims(); ++d) {
    elements *= x.strides()[d] == 0 && x.shape()[d] > 0 ? 1 : static_cast<double>(x.shape()[d]);
  }
  return elements * static_cast<double>(size_of(x.dtype()));
}

/// Bytes that an instruction reads and writes in the device's memory. A copy does not read what it
/// writes; other operators that write an operand, also products that add to it, read it.
double moved_bytes(const Instruction& i, const graph::Shadow& shadow) {
  const bool view = i.kind == Kind::call && i.op->view != nullptr;
  double bytes = 0;
  bool makes = false;
  for (const TensorIndex number : i.out) {
    if (number.exists() && !(view && shadow.memory(number) == shadow.memory(i.in[0]))) {
      bytes += element_bytes(shadow.at(number));
      makes = true;
    }
  }
  if (view && !makes) {
    return 0;
  }
  const bool copy =
      i.kind == Kind::call && i.op->moves_elements && i.op->in_place && i.op->flops == nullptr;
  for (std::size_t k = 0; k < i.in.size(); ++k) {
    if (i.in[k].exists()) {
      bytes += element_bytes(shadow.at(i.in[k])) * (i.writes(k) && !copy ? 2 : 1);
    }
  }
  return bytes;
}

/// What is between the products of attention: a softmax, whose rows have statistics. They are
/// results without a gradient (Op::constant_outputs) of a call that has products, and the call that
/// computes its gradients reads them.
class RowStatistics {
 public:
  explicit RowStatistics(const Program& program) {
    for (const Instruction* i : graph::places_of(program)) {
      for (std::size_t k = 0; k < i->out.size(); ++k) {
        if (has_products(*i) && ((i->op->constant_outputs >> k) & 1U) != 0 && i->out[k].exists()) {
          all_.insert(i->out[k]);
        }
      }
    }
  }

  static bool has_products(const Instruction& i) {
    return i.kind == Kind::call && i.op->flops != nullptr;
  }
  /// Whether the call makes or reads them.
  bool are_of(const Instruction& i) const {
    const auto is_one = [&](TensorIndex number) { return all_.contains(number); };
    return std::ranges::any_of(i.in, is_one) || std::ranges::any_of(i.out, is_one);
  }

 private:
  std::set<TensorIndex> all_;
};

/// FLOPs of a call's products, and what limits their rate.
std::pair<double, Bound> products_of(const Instruction& i, const graph::Shadow& shadow,
                                     const RowStatistics& statistics) {
  if (!RowStatistics::has_products(i)) {
    return {0, Bound::memory};
  }
  const std::vector<Tensor> in = shadow.at(i.in);
  const double flops =
      i.op->flops(Call{.op = *i.op, .in = in, .attributes = i.attributes}, shadow.at(i.out));
  if (statistics.are_of(i)) {
    return {flops, Bound::attention};
  }
  const bool bytes = std::ranges::any_of(in, [](const Tensor& x) {
    return x && (x.dtype() == DType::f8e4m3 || x.dtype() == DType::f8e5m2);
  });
  return {flops, bytes ? Bound::products_of_bytes : Bound::products};
}

double rate_of(const DeviceRates& rates, Bound bound) {
  switch (bound) {
    case Bound::products:
      return rates.products;
    case Bound::products_of_bytes:
      return rates.products_of_bytes;
    case Bound::attention:
      return rates.attention;
    case Bound::memory:
      break;
  }
  return rates.bandwidth;
}

/// Adds an instruction that is a kernel of this rank.
void add_kernel(std::map<std::pair<std::string, Bound>, OperatorCost>& costs, Roofline& roofline,
                const Instruction& i, const graph::Shadow& shadow, const RowStatistics& statistics,
                const DeviceRates& rates) {
  const double bytes = moved_bytes(i, shadow);
  auto [flops, bound] = products_of(i, shadow, statistics);
  if (bytes == 0 && flops == 0) {
    return;  // a view
  }
  const double moving = bytes / rates.bandwidth;
  const double computing = flops == 0 ? 0 : flops / rate_of(rates, bound);
  bound = computing < moving ? Bound::memory : bound;
  const std::string name = i.kind == Kind::call ? i.op->name : "full";
  OperatorCost& cost = costs[{name, bound}];
  cost.op = name;
  cost.bound = bound;
  ++cost.calls;
  cost.flops += flops;
  cost.bytes += bytes;
  cost.seconds += std::max(moving, computing);
  ++roofline.launches;
}

/// Of each micro-batch the largest input with rows: ids of tokens, one of each place.
std::int64_t tokens_of(const Program& program) {
  std::map<int, std::int64_t> micro_batches;
  for (const auto& [name, input] : program.inputs) {
    if (input.role == Role::rows) {
      std::int64_t& most = micro_batches[input.micro_batch];
      most = std::max(most, program.tensors[input.tensor].shape.product());
    }
  }
  std::int64_t tokens = 0;
  for (const auto& [number, count] : micro_batches) {
    tokens += count;
  }
  return tokens;
}

double sum_of(const Roofline& roofline, double OperatorCost::* what) {
  double sum = 0;
  for (const OperatorCost& cost : roofline.operators) {
    sum += cost.*what;
  }
  return sum;
}

}  // namespace

std::string_view name_of(Bound bound) {
  switch (bound) {
    case Bound::products:
      return "products";
    case Bound::products_of_bytes:
      return "8-bit products";
    case Bound::attention:
      return "attention";
    case Bound::memory:
      break;
  }
  return "memory";
}

double Roofline::seconds(Bound bound) const {
  double sum = 0;
  for (const OperatorCost& cost : operators) {
    sum += cost.bound == bound ? cost.seconds : 0;
  }
  return sum;
}

double Roofline::flops() const { return sum_of(*this, &OperatorCost::flops); }
double Roofline::bytes() const { return sum_of(*this, &OperatorCost::bytes); }
double Roofline::best() const {
  return std::max(sum_of(*this, &OperatorCost::seconds) + launch_seconds, collective_seconds);
}
double Roofline::worst() const {
  return sum_of(*this, &OperatorCost::seconds) + launch_seconds + collective_seconds;
}

Roofline roofline_of(const Program& program, const DeviceRates& rates) {
  const graph::Shadow shadow = graph::shadow_of(program);
  const graph::ProgramStatistics statistics = graph::statistics_of(program);
  const RowStatistics of_rows(program);
  Roofline roofline;
  roofline.tokens = tokens_of(program);
  std::map<std::pair<std::string, Bound>, OperatorCost> costs;
  for (const Instruction* i : graph::places_of(program)) {
    if (i->kind == Kind::call && (i->op->communicates != Communicates::none || i->op->completes)) {
      roofline.collectives += graph::is_collective(*i) ? 1 : 0;
    } else if (i->kind == Kind::call || i->kind == Kind::full) {
      add_kernel(costs, roofline, *i, shadow, of_rows, rates);
    }
  }
  for (const graph::CollectiveCount& collective : statistics.collectives) {
    roofline.received += static_cast<double>(collective.received);
  }
  for (auto& [key, cost] : costs) {
    roofline.operators.push_back(std::move(cost));
  }
  std::ranges::sort(roofline.operators, [](const OperatorCost& a, const OperatorCost& b) {
    return a.seconds > b.seconds;
  });
  roofline.launches += roofline.collectives;
  roofline.launch_seconds = static_cast<double>(roofline.launches) * rates.launch;
  roofline.collective_seconds = roofline.received / rates.link;
  roofline.peak = statistics.peak;
  if (!statistics.live.empty()) {
    roofline.memory = statistics.live[statistics.peak_at];
  }
  return roofline;
}

namespace {

constexpr std::array<Bound, 4> bounds = {Bound::products, Bound::products_of_bytes,
                                         Bound::attention, Bound::memory};

std::string milliseconds(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }

/// Microseconds for each token, and the share of the step.
std::vector<std::string> row_of(const Roofline& roofline, std::vector<std::string> cells,
                                double seconds) {
  cells.push_back(milliseconds(seconds));
  cells.push_back(fmt::format("{:.2f}", 1e6 * seconds / static_cast<double>(roofline.tokens)));
  cells.push_back(fmt::format("{:.1f}%", 100 * seconds / roofline.best()));
  return cells;
}

std::string bytes_text(double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); }

void print_operators(const Roofline& roofline) {
  TableRows rows = {
      {"operator", "limited by", "calls", "products", "moved", "ms", "us/token", "share"}};
  for (const OperatorCost& cost : roofline.operators) {
    rows.push_back(row_of(roofline,
                          {cost.op, std::string(name_of(cost.bound)), std::to_string(cost.calls),
                           cost.flops == 0 ? "" : format_flops(cost.flops), bytes_text(cost.bytes)},
                          cost.seconds));
  }
  fmt::print("{}", format_table(rows));
}

void print_sums(const Roofline& roofline) {
  TableRows rows = {{"in all", "ms", "us/token", "share"}};
  for (const Bound bound : bounds) {
    if (roofline.seconds(bound) > 0) {
      rows.push_back(row_of(roofline, {std::string(name_of(bound))}, roofline.seconds(bound)));
    }
  }
  rows.push_back(
      row_of(roofline, {fmt::format("{} launches", roofline.launches)}, roofline.launch_seconds));
  if (roofline.collectives > 0) {
    rows.push_back(row_of(roofline,
                          {fmt::format("{} collectives ({}), beside the others",
                                       roofline.collectives, bytes_text(roofline.received))},
                          roofline.collective_seconds));
  }
  rows.push_back(row_of(roofline, {"step"}, roofline.best()));
  fmt::print("\n{}", format_table(rows));
}

void print_result(const Roofline& roofline, double memory) {
  const auto tokens = static_cast<double>(roofline.tokens);
  TableRows rows = {
      {"a token",
       fmt::format("{} of products, {} moved, {:.3f} launches",
                   format_flops(roofline.flops() / tokens), bytes_text(roofline.bytes() / tokens),
                   static_cast<double>(roofline.launches) / tokens)},
      {"tokens/s", fmt::format("{:.0f} on this rank, at the most", tokens / roofline.best())}};
  if (roofline.collectives > 0) {
    rows.back()[1] += fmt::format("; {:.0f} if no collective is hidden behind other work",
                                  tokens / roofline.worst());
  }
  std::string parts;
  for (int c = 0; c < memory_category_count; ++c) {
    if (const std::int64_t bytes = roofline.memory[static_cast<std::size_t>(c)]; bytes > 0) {
      parts +=
          fmt::format("{}{} {}", parts.empty() ? "" : ", ", name_of(static_cast<MemoryCategory>(c)),
                      bytes_text(static_cast<double>(bytes)));
    }
  }
  const auto peak = static_cast<double>(roofline.peak);
  rows.push_back(
      {"memory", fmt::format("{} at the peak ({}): {} {}", bytes_text(peak), parts,
                             peak <= memory ? "within" : "more than", bytes_text(memory))});
  fmt::print("\n{}", format_table(rows));
}

void print_json(const Roofline& roofline) {
  nlohmann::ordered_json all = {
      {"tokens", roofline.tokens},
      {"seconds", roofline.best()},
      {"seconds_without_overlap", roofline.worst()},
      {"tokens_per_second", static_cast<double>(roofline.tokens) / roofline.best()},
      {"flops", roofline.flops()},
      {"bytes", roofline.bytes()},
      {"launches", roofline.launches},
      {"launch_seconds", roofline.launch_seconds},
      {"collectives", roofline.collectives},
      {"received_bytes", roofline.received},
      {"collective_seconds", roofline.collective_seconds},
      {"peak_bytes", roofline.peak},
      {"limits", nlohmann::ordered_json::object()},
      {"operators", nlohmann::ordered_json::array()}};
  for (const Bound bound : bounds) {
    all["limits"][name_of(bound)] = roofline.seconds(bound);
  }
  for (const OperatorCost& cost : roofline.operators) {
    all["operators"].push_back({{"operator", cost.op},
                                {"limited_by", name_of(cost.bound)},
                                {"calls", cost.calls},
                                {"flops", cost.flops},
                                {"bytes", cost.bytes},
                                {"seconds", cost.seconds}});
  }
  fmt::print("{}\n", all.dump(2));
}

}  // namespace

int run_graph_roofline(const std::string& file, const RooflineOptions& options) {
  const Program program = read_program(file);
  const Roofline roofline = roofline_of(program, options.rates);
  if (roofline.tokens == 0) {
    fail_input({.thing = file,
                .wrong = "the program has no input with rows, so no tokens to count by",
                .advice = "name a program of a training step"});
  }
  if (options.json) {
    print_json(roofline);
  } else {
    print_operators(roofline);
    print_sums(roofline);
    print_result(roofline, options.memory);
  }
  return 0;
}

}  // namespace tessera::app
