module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.app.base;

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;
using Outcome = LayoutCandidate::Outcome;

constexpr std::size_t shown = 10;

std::string milliseconds(double seconds) { return fmt::format("{:.4g}", 1e3 * seconds); }
std::string bytes_text(double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); }

/// "micro-batch 4, checkpointing".
std::string choices_of(const LayoutCandidate& one) {
  return fmt::format("micro-batch {}{}{}", one.micro_batch, one.savings.empty() ? "" : ", ",
                     one.savings);
}

/// What makes a step longer than the best one, in seconds, by name.
std::vector<std::pair<double, std::string>> differences(const StepTimes& best,
                                                        const StepTimes& other) {
  std::map<std::string, double> more;
  more["computing"] = other.computing - best.computing;
  more["calling operators"] = other.calling - best.calling;
  const auto idle = [](const StepTimes& step) {
    return step.seconds - step.computing - step.calling - step.waiting;
  };
  more["waiting for other stages"] = idle(other) - idle(best);
  const auto add = [&](const StepTimes& step, double sign) {
    for (const CollectiveSum& sum : step.collectives) {
      more[fmt::format("{} on {} that computing does not hide", sum.name, sum.axes)] +=
          sign * sum.waited;
    }
  };
  add(other, 1);
  add(best, -1);
  std::vector<std::pair<double, std::string>> all;
  for (const auto& [name, seconds] : more) {
    all.emplace_back(seconds, name);
  }
  std::ranges::sort(all, [](const auto& a, const auto& b) { return a.first > b.first; });
  return all;
}

/// "is 8.1% longer: 7% in all_reduce on tensor that computing does not hide, 1.2% in computing".
std::string why_longer(const LayoutCandidate& best, const LayoutCandidate& other) {
  const double whole = best.step.seconds;
  const bool ran = best.run > 0 && other.run > 0;
  const double longer = ran ? other.run / best.run - 1 : (other.step.seconds - whole) / whole;
  std::string text = fmt::format("{} {:.1f}% longer", ran ? "ran" : "is", 100 * longer);
  constexpr std::size_t most = 2;
  std::size_t named = 0;
  for (const auto& [seconds, name] : differences(best.step, other.step)) {
    if (named < most && seconds > 0.005 * whole) {
      text += fmt::format("{}{:.1f}% in {}", named == 0 ? ": " : ", ", 100 * seconds / whole, name);
      ++named;
    }
  }
  return text;
}

std::string why_lost(const LayoutCandidate& best, const LayoutCandidate& other,
                     const Hardware& hardware) {
  switch (other.outcome) {
    case Outcome::planned:
      return fmt::format("with {} {}", choices_of(other), why_longer(best, other));
    case Outcome::too_much:
      return fmt::format(
          "needs {}{}, and a rank has {}", other.micro_batch == 0 ? "at least " : "",
          other.micro_batch == 0
              ? bytes_text(other.memory)
              : fmt::format("{} with {}", bytes_text(other.memory), choices_of(other)),
          bytes_text(hardware.memory));
    case Outcome::too_slow:
      return fmt::format("takes at least {} ms", milliseconds(other.least));
    case Outcome::refused:
      break;
  }
  return fmt::format("is not possible: {}", other.refusal);
}

/// A layout's name, with the precision where there are several.
std::string name_of(const LayoutCandidate& one, bool with_precision) {
  return with_precision ? fmt::format("{}, {}", one.layout.name, one.precision) : one.layout.name;
}

/// The same without the numbers of ranks: layouts that divide the ranks in the same way.
std::string kind_of(const LayoutCandidate& one, bool with_precision) {
  std::string name = name_of(one, with_precision);
  std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
  return name;
}

bool has_several_precisions(const SearchResult& result) {
  std::set<std::string> all;
  for (const auto* const list : {&result.planned, &result.others}) {
    for (const LayoutCandidate& one : *list) {
      all.insert(one.precision);
    }
  }
  return all.size() > 1;
}

TableRows best_rows(const SearchResult& result, bool several) {
  const bool ran = result.planned.front().run > 0;
  TableRows rows = {{"", "layout", "micro-batch", "saves memory by", "step ms", "tokens/s",
                     "memory", "computing", "communicating", "not hidden"}};
  if (ran) {
    rows.front().emplace_back("run ms");
  }
  for (std::size_t k = 0; k < std::min(shown, result.planned.size()); ++k) {
    const LayoutCandidate& one = result.planned[k];
    rows.push_back({fmt::format("{}", k + 1), name_of(one, several),
                    fmt::format("{}", one.micro_batch), one.savings.empty() ? "-" : one.savings,
                    milliseconds(one.step.seconds),
                    format_count(one.step_tokens / one.step.seconds), bytes_text(one.memory),
                    milliseconds(one.step.computing), milliseconds(one.step.communicating),
                    milliseconds(one.step.waiting)});
    if (ran) {
      rows.back().push_back(one.run > 0 ? milliseconds(one.run) : "-");
    }
  }
  return rows;
}

}  // namespace

std::string search_text(const SearchResult& result, const Hardware& hardware) {
  const bool several = has_several_precisions(result);
  const LayoutCandidate& best = result.planned.front();
  std::string text = "\n" + format_table(best_rows(result, several));
  std::set<std::string> named = {kind_of(best, several)};
  std::vector<std::string> lines;
  for (const auto* const list : {&result.planned, &result.others}) {
    for (const LayoutCandidate& other : *list) {
      if (named.insert(kind_of(other, several)).second) {
        lines.push_back(wrap_text(
            fmt::format("{} {}", name_of(other, several), why_lost(best, other, hardware)), "  ",
            "    "));
      }
    }
  }
  const auto runs =
      std::ranges::count_if(result.planned, [](const auto& one) { return one.run > 0; });
  text += fmt::format("\n{} with {} is the fastest of {}{} candidates that were tried.",
                      name_of(best, several), choices_of(best),
                      runs > 0 ? fmt::format("{} that were run, of ", runs) : std::string(),
                      result.tried);
  text += lines.empty() ? "\n" : "\nThe best of each other kind:\n";
  for (const std::string& line : lines) {
    text += line + "\n";
  }
  return text;
}

std::string search_json(const SearchResult& result, const Hardware& hardware) {
  Json all = {{"hardware", hardware.name}, {"tried", result.tried}, {"candidates", Json::array()}};
  for (const auto* const list : {&result.planned, &result.others}) {
    for (const LayoutCandidate& one : *list) {
      Json entry = {{"layout", one.layout.name},      {"precision", one.precision},
                    {"micro_batch", one.micro_batch}, {"savings", one.savings},
                    {"overrides", one.overrides},     {"least_seconds", one.least},
                    {"memory_bytes", one.memory}};
      if (one.outcome == Outcome::planned) {
        entry.update({{"seconds", one.step.seconds},
                      {"tokens_per_second", one.step_tokens / one.step.seconds},
                      {"computing_seconds", one.step.computing},
                      {"communicating_seconds", one.step.communicating},
                      {"waiting_seconds", one.step.waiting}});
        if (one.run > 0) {
          entry["run_seconds"] = one.run;
        }
      } else {
        entry["lost"] = why_lost(result.planned.front(), one, hardware);
      }
      all["candidates"].push_back(std::move(entry));
    }
  }
  return json_text(all, 2) + "\n";
}

}  // namespace tessera::app
