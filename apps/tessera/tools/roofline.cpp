module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.tools;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import tessera.app.base;
import tessera.app.plan;
import tessera.app.commands;
import :roofline;

namespace tessera::app {
namespace {

struct NamedText {
  std::string_view name;
  std::string_view text;
};
constexpr NamedText tables[] = {
#include TESSERA_EXPECTED_TIMES
};

/// How much longer than moving its bytes an operator takes on an H100, by its bytes: of
/// plugins/cuda/expected.table (docs/cuda-costs.md).
class KernelTimes {
 public:
  KernelTimes() {
    std::istringstream lines{std::string(tables[0].text)};
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string op;
      double elements = 0;
      double bytes = 0;
      std::string microseconds;
      if (words >> op >> elements >> bytes >> microseconds && bytes > 0) {
        const double seconds = 1e-6 * std::strtod(microseconds.c_str(), nullptr);
        (microseconds.starts_with('+') ? beside_ : seconds_)[op][bytes] = seconds;
      }
    }
  }

  /// Of a call of this size, or of the nearest one that the table has: as many times its bound, or
  /// as many seconds more where that one is so small that it has no rate. Products take as long as
  /// their bound, and the copies of operands that the table has of this very size.
  double seconds_of(const std::string& op, const KernelCost& cost) const {
    constexpr double bandwidth = 2.85e12;  // the table's
    constexpr double small = 1 << 20;
    const auto copies = beside_.find(op);
    if (copies != beside_.end()) {
      const auto own = copies->second.find(std::round(cost.bytes));
      return cost.seconds + (own == copies->second.end() ? 0 : own->second);
    }
    const auto found = seconds_.find(op);
    if (found == seconds_.end() || cost.bytes == 0) {
      return cost.seconds;
    }
    const auto distance = [&](const auto& entry) {
      return std::abs(std::log(entry.first / cost.bytes));
    };
    const auto nearest = std::ranges::min_element(found->second, {}, distance);
    const double bound = nearest->first / bandwidth;
    const double seconds = std::max(bound, nearest->second);
    return nearest->first < small ? cost.seconds + seconds - bound : cost.seconds * seconds / bound;
  }

 private:
  using BySize = std::map<std::string, std::map<double, double>, std::less<>>;
  BySize seconds_;
  BySize beside_;  // a library's kernel
};

double sum_of(const Roofline& roofline, double OperatorCost::* what) {
  double sum = 0;
  for (const OperatorCost& cost : roofline.operators) {
    sum += cost.*what;
  }
  return sum;
}

}  // namespace

double Roofline::seconds(Bound bound) const {
  double sum = 0;
  for (const OperatorCost& cost : operators) {
    sum += cost.bound == bound ? cost.seconds : 0;
  }
  return sum;
}

double Roofline::flops() const { return sum_of(*this, &OperatorCost::flops); }
double Roofline::bytes() const { return sum_of(*this, &OperatorCost::bytes); }
double Roofline::expected() const {
  return std::max(sum_of(*this, &OperatorCost::expected) + launch_seconds, collective_seconds);
}
double Roofline::measured() const { return sum_of(*this, &OperatorCost::measured); }
double Roofline::best() const {
  return std::max(sum_of(*this, &OperatorCost::seconds) + launch_seconds, collective_seconds);
}
double Roofline::worst() const {
  return sum_of(*this, &OperatorCost::seconds) + launch_seconds + collective_seconds;
}

Roofline roofline_of(const Program& program, const DeviceRates& rates, double link,
                     const ByPlace<double>& measured) {
  const graph::ProgramStatistics statistics = graph::statistics_of(program);
  const auto places = graph::places_of(program);
  const auto kernels = kernel_costs(program, rates);
  Roofline roofline;
  roofline.tokens = tokens_of(program);
  roofline.is_measured = measured.size() > 0;
  std::map<std::pair<std::string, Bound>, OperatorCost> costs;
  const KernelTimes expected;
  for (const PlaceIndex place : places.keys()) {
    const Instruction& i = *places[place];
    roofline.collectives += graph::is_collective(i) ? 1 : 0;
    if (const std::optional<KernelCost>& kernel = kernels[place]) {
      const std::string name = kernel_name(i);
      OperatorCost& cost = costs[{name, kernel->bound}];
      cost.op = name;
      cost.bound = kernel->bound;
      ++cost.calls;
      cost.flops += kernel->flops;
      cost.bytes += kernel->bytes;
      cost.seconds += kernel->seconds;
      cost.expected += expected.seconds_of(name, *kernel);
      cost.measured += roofline.is_measured ? measured[place] : 0;
      ++roofline.launches;
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
  roofline.collective_seconds = roofline.received / link;
  roofline.peak = statistics.peak;
  if (!statistics.live.empty()) {
    roofline.memory = statistics.live[statistics.peak_at];
  }
  return roofline;
}

namespace {

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
      {"operator", "limited by", "calls", "products", "moved", "ms", "bound", "expected", "share"}};
  if (roofline.is_measured) {
    rows[0].emplace_back("measured");
  }
  for (const OperatorCost& cost : roofline.operators) {
    rows.push_back(row_of(roofline,
                          {cost.op, std::string(name_of(cost.bound)), std::to_string(cost.calls),
                           cost.flops == 0 ? "" : format_flops(cost.flops), bytes_text(cost.bytes)},
                          cost.seconds));
    const double expected = 1e6 * cost.expected / static_cast<double>(roofline.tokens);
    rows.back().insert(rows.back().end() - 1, fmt::format("{:.2f}", expected));
    if (roofline.is_measured) {
      rows.back().push_back(
          fmt::format("{:.2f}", 1e6 * cost.measured / static_cast<double>(roofline.tokens)));
    }
  }
  fmt::print("{}", format_table(rows));
}

void print_sums(const Roofline& roofline) {
  TableRows rows = {{"in all", "ms", "us/token", "share"}};
  for (int b = 0; b < bound_count; ++b) {
    const auto bound = static_cast<Bound>(b);
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
  rows.push_back(row_of(roofline, {"step, the bound"}, roofline.best()));
  rows.push_back(row_of(roofline, {"step, expected of an H100"}, roofline.expected()));
  if (roofline.is_measured) {
    rows.push_back(row_of(roofline, {"kernels as measured"}, roofline.measured()));
  }
  fmt::print("\n{}", format_table(rows));
}

void print_result(const Roofline& roofline, double memory) {
  const auto tokens = static_cast<double>(roofline.tokens);
  TableRows rows = {
      {"a token",
       fmt::format("{} of products, {} moved, {:.3f} launches",
                   format_flops(roofline.flops() / tokens), bytes_text(roofline.bytes() / tokens),
                   static_cast<double>(roofline.launches) / tokens)},
      {"tokens/s",
       fmt::format("{:.0f} on this rank, at the most; {:.0f} expected of an H100, derived from "
                   "machine code, not measured",
                   tokens / roofline.best(), tokens / roofline.expected())}};
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
      {"expected_seconds", roofline.expected()},
      {"expected_tokens_per_second", static_cast<double>(roofline.tokens) / roofline.expected()},
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
  for (int b = 0; b < bound_count; ++b) {
    const auto bound = static_cast<Bound>(b);
    all["limits"][name_of(bound)] = roofline.seconds(bound);
  }
  for (const OperatorCost& cost : roofline.operators) {
    all["operators"].push_back({{"operator", cost.op},
                                {"limited_by", name_of(cost.bound)},
                                {"calls", cost.calls},
                                {"flops", cost.flops},
                                {"bytes", cost.bytes},
                                {"seconds", cost.seconds},
                                {"expected_seconds", cost.expected}});
    if (roofline.is_measured) {
      all["operators"].back()["measured_seconds"] = cost.measured;
    }
  }
  if (roofline.is_measured) {
    all["measured_seconds"] = roofline.measured();
  }
  fmt::print("{}\n", all.dump(2));
}

}  // namespace

int run_graph_roofline(const std::string& file, const RooflineOptions& options) {
  const Program program = read_program(file);
  if (tokens_of(program) == 0) {
    fail_input({.thing = file,
                .wrong = "the program has no input with rows, so no tokens to count by",
                .advice = "name a program of a training step"});
  }
  ByPlace<double> measured;
  if (!options.device.empty()) {
    const Device device = find_device(options.device);
    if (device == meta) {
      fail_input({.thing = "--measure",
                  .wrong = "the device 'meta' computes nothing",
                  .advice = "name cpu, or another device such as cuda:0"});
    }
    measured = kernel_seconds_on(device, program);
  }
  const Roofline roofline = roofline_of(program, options.rates, options.link, measured);
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
