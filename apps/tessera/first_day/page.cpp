module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.app.base;
import :page;
import :results;

namespace tessera::app::first_day {
namespace {

using Json = nlohmann::json;
using Cells = std::vector<std::string>;

std::string number(const Json& value) {
  return value.is_number()   ? fmt::format("{:.4g}", value.get<double>())
         : value.is_string() ? value.get<std::string>()
                             : "";
}

std::string gib(const Json& bytes) {
  return bytes.is_number() ? fmt::format("{:.1f}", bytes.get<double>() / (1 << 30)) : "";
}

Json at(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object[key] : Json();
}

/// The text with what Markdown's tables take apart.
std::string in_cell(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  for (std::size_t place = text.find('|'); place != std::string::npos;
       place = text.find('|', place + 2)) {
    text.insert(place, "\\");
  }
  return text;
}

std::string table(const Cells& heads, const std::vector<Cells>& rows) {
  if (rows.empty()) {
    return "";
  }
  std::string text = fmt::format("| {} |\n|", fmt::join(heads, " | "));
  for (std::size_t i = 0; i < heads.size(); ++i) {
    text += " --- |";
  }
  text += "\n";
  for (const Cells& row : rows) {
    text += "|";
    for (const std::string& cell : row) {
      text += " " + in_cell(cell) + " |";
    }
    text += "\n";
  }
  return text + "\n";
}

struct ResultFacts {
  const Result* result;
  Json facts;
};

std::vector<ResultFacts> of_part(const Results& results, std::string_view part) {
  std::vector<ResultFacts> all;
  for (const Result& result : results.items) {
    if (result.part == part) {
      all.push_back({&result, parse_json(result.facts, false)});
    }
  }
  return all;
}

// ---- what deviates ----

/// What a failure probably means, by its part and its text.
std::string meaning_of(const Result& result) {
  struct Rule {
    std::string_view part;  // empty: any
    std::string_view text;  // in the problem; empty: any
    std::string_view meaning;
  };
  static constexpr Rule rules[] = {
      {"", "too little memory",
       "Another process uses the GPU, or it is smaller than the model needs."},
      {"", "another version", "CUDA's libraries do not fit: install those named, and start again."},
      {"", "PTX",
       "The driver is older than the compiler, and the pack has no machine code for this GPU."},
      {"operators", "did not end",
       "The kernel hangs: a barrier that not all threads reach, or a wait for memory that nobody "
       "writes."},
      {"operators", "signal", "The host's side of the operator ended its process."},
      {"operators", "cannot use its GPU any more",
       "The kernel has read or written what it must not; see compute-sanitizer in the part "
       "faults."},
      {"operators", "instead of",
       "The kernel computes something else than the CPU: its machine code, a race that the "
       "emulator does not order so, or a tolerance that is too small. `./run.sh part operators "
       "--only NAME` shows the values."},
      {"operators", "",
       "The kernel is refused by the driver, or raises an error; the text says which call."},
      {"styles", "differ from the CPU",
       "One operator of this style is wrong at these sizes, or the order of streams is: compare "
       "eager with planned, and see the part operators."},
      {"styles", "did not end",
       "A wait that never ends: events between streams, or a queue that is full."},
      {"styles", "", "The run ends with an error, which the text has."},
      {"rates", "from the CPU",
       "The operator is fast and wrong: its numbers count only when it is right."},
      {"models", "were planned",
       "The plan of memory is wrong for a real allocator: compare both numbers."},
      {"models", "did not end",
       "Steps, or the filling of parameters on the host, take too long: tokens_per_second has the "
       "steps that were done."},
      {"faults", "other losses", "Something reads memory before it is written: order of streams."},
      {"faults", "other bits",
       "NCCL's stream and the usual one are not ordered as they should be."},
      {"faults", "", "The error, or its text, is not what it should be on a real driver."},
      {"more", "other bits",
       "Two runs differ: an operator whose order of sums is not fixed, or a race."},
  };
  for (const Rule& rule : rules) {
    if ((rule.part.empty() || rule.part == result.part) &&
        result.problem.find(rule.text) != std::string::npos) {
      return std::string(rule.meaning);
    }
  }
  return "Not known: see the text.";
}

/// Measurements that are not failures and not as expected.
void add_slow(const Results& results, std::vector<Cells>& rows) {
  for (const ResultFacts& rate : of_part(results, "rates")) {
    for (const Json& row : at(rate.facts, "rows")) {
      const Json share = at(row, "share_of_bandwidth");
      if (share.is_number() && share.get<double>() < 0.77) {
        rows.push_back({"rates", number(at(row, "name")),
                        fmt::format("{:.0f}% of the measured bandwidth", 100 * share.get<double>()),
                        "A kernel that the memory limits should reach 77%: too few loads in "
                        "flight, too few blocks, or too many instructions."});
      }
    }
  }
  for (const ResultFacts& model : of_part(results, "models")) {
    const Json found = at(model.facts, "tokens_per_second");
    const Json expected = at(model.facts, model.facts.contains("expected_tokens_per_second")
                                              ? "expected_tokens_per_second"
                                              : "bound_tokens_per_second");
    if (found.is_number() && expected.is_number() &&
        found.get<double>() < 0.9 * expected.get<double>()) {
      rows.push_back({"models", model.result->item,
                      fmt::format("{} tokens/s, {} expected", number(found), number(expected)),
                      "See the operators below: the largest gap comes first."});
    }
  }
}

std::string deviations(const Results& results) {
  std::vector<Cells> rows;
  for (const Result& result : results.items) {
    if (!result.is_done()) {
      rows.push_back(
          {result.part, result.item, result.status + ": " + result.problem, meaning_of(result)});
    }
  }
  add_slow(results, rows);
  return "## Deviations\n\n" +
         (rows.empty() ? "None.\n\n"
                       : table({"part", "item", "what", "what it probably means"}, rows));
}

// ---- parts ----

std::string doctor_part(const std::vector<ResultFacts>& items) {
  std::string text;
  for (const ResultFacts& item : items) {
    if (item.result->item == "versions") {
      std::vector<Cells> rows = {{"driver", "CUDA " + number(at(item.facts, "driver"))}};
      for (const Json& gpu : at(item.facts, "gpus")) {
        rows.push_back(
            {"GPU", fmt::format("{}, compute capability {}, {} GiB", number(at(gpu, "name")),
                                number(at(gpu, "capability")), gib(at(gpu, "memory")))});
      }
      for (const Json& library : at(item.facts, "libraries")) {
        rows.push_back({"library", number(library)});
      }
      for (const Json& missing : at(item.facts, "missing")) {
        rows.push_back({"missing", number(missing)});
      }
      text = table({"what", "which"}, rows) + text;
    } else if (item.facts.contains("text")) {
      text += fmt::format("```text\n{}```\n\n", at(item.facts, "text").get<std::string>());
    }
  }
  return text;
}

std::string operators_part(const std::vector<ResultFacts>& items) {
  std::vector<std::pair<double, Cells>> rows;
  std::size_t equal = 0;
  for (const ResultFacts& item : items) {
    const Json share = at(item.facts, "share_of_tolerance");
    const double far = share.is_number() ? share.get<double>() : 0;
    equal += far == 0 && item.result->status == "passed" ? 1 : 0;
    if (far > 0) {
      rows.push_back({far, {item.result->item, number(at(item.facts, "calls")), number(share)}});
    }
  }
  std::ranges::sort(rows, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Cells> cells;
  for (auto& [far, row] : rows) {
    cells.push_back(std::move(row));
  }
  return fmt::format("{} of {} operators have the CPU's bits.\n\n", equal, items.size()) +
         table({"operator", "calls", "share of the tolerance"}, cells);
}

std::string styles_part(const std::vector<ResultFacts>& items) {
  std::vector<Cells> rows;
  for (const ResultFacts& item : items) {
    rows.push_back({item.result->item, item.result->status, number(at(item.facts, "difference")),
                    number(at(item.facts, "tolerance"))});
  }
  return table({"run", "result", "from the CPU", "at most"}, rows);
}

std::string rates_part(const std::vector<ResultFacts>& items) {
  std::map<std::string, std::string> best;
  for (const ResultFacts& item : items) {
    if (item.result->item.find("best of") != std::string::npos) {
      for (const Json& row : at(item.facts, "rows")) {
        best[number(at(row, "name"))] = number(at(row, "tflops"));
      }
    }
  }
  std::vector<Cells> rows;
  std::map<std::string, bool> seen;
  for (const ResultFacts& item : items) {
    for (const Json& row : at(item.facts, "rows")) {
      const std::string name = number(at(row, "name"));
      if (item.result->item.find("best of") == std::string::npos &&
          !std::exchange(seen[name], true)) {
        rows.push_back({name, number(at(row, "us")), number(at(row, "gb_per_second")),
                        number(at(row, "share_of_bandwidth")), number(at(row, "tflops")),
                        at(row, "tflops").is_number() ? best[name] : "",
                        number(at(row, "deviation"))});
      }
    }
  }
  return table(
      {"operator", "us", "GB/s", "of the bandwidth", "TFLOP/s", "best of 8", "from the CPU"}, rows);
}

/// Microseconds for each token, the largest gap first.
std::string gaps_of(const ResultFacts& item) {
  const Json tokens = at(item.facts, "tokens");
  if (!tokens.is_number()) {
    return "";
  }
  struct Gap {
    std::string name;
    double calls = 0;
    double bound = 0;
    double expected = 0;
    double measured = 0;
  };
  std::vector<Gap> gaps;
  const double scale = 1e6 / tokens.get<double>();
  for (const Json& one : at(item.facts, "operators")) {
    const double bound = scale * one.value("seconds", 0.0);
    gaps.push_back(
        {one.value("operator", "") + ", " + one.value("limited_by", ""), one.value("calls", 0.0),
         bound,
         one.contains("expected_seconds") ? scale * one.value("expected_seconds", 0.0) : bound,
         scale * one.value("measured_seconds", 0.0)});
  }
  std::ranges::sort(gaps, [](const Gap& a, const Gap& b) {
    return a.measured - a.expected > b.measured - b.expected;
  });
  std::vector<Cells> rows;
  for (const Gap& gap : gaps) {
    rows.push_back({gap.name, fmt::format("{:.0f}", gap.calls), fmt::format("{:.3g}", gap.bound),
                    fmt::format("{:.3g}", gap.expected), fmt::format("{:.3g}", gap.measured),
                    fmt::format("{:.3g}", gap.measured - gap.expected)});
  }
  return fmt::format("### {}, us for each token\n\n", item.result->item) +
         table({"operator, limited by", "calls", "bound", "expected", "measured", "gap"}, rows);
}

std::string models_part(const std::vector<ResultFacts>& items) {
  std::vector<Cells> rows;
  std::string gaps;
  for (const ResultFacts& item : items) {
    if (item.facts.contains("planned_bytes") || item.result->status == "absent") {
      rows.push_back(
          {item.result->item, item.result->status, number(at(item.facts, "tokens_per_second")),
           number(at(item.facts, "expected_tokens_per_second")),
           number(at(item.facts, "bound_tokens_per_second")),
           number(at(item.facts, "published_tokens_per_second")), gib(at(item.facts, "peak_bytes")),
           gib(at(item.facts, "planned_bytes")), item.result->problem});
    }
    gaps += gaps_of(item);
  }
  return table({"model", "result", "tokens/s", "expected", "bound", "published", "peak GiB",
                "planned GiB", "text"},
               rows) +
         (rows.empty() ? ""
                       : "Published: LLM.Q on one H100 (github.com/IST-DASLab/llmq, README of "
                         "00ea1be).\n\n") +
         gaps;
}

std::string other_part(const std::vector<ResultFacts>& items) {
  std::vector<Cells> rows;
  std::string devices;
  for (const ResultFacts& item : items) {
    rows.push_back({item.result->item, item.result->status,
                    fmt::format("{:.0f}", item.result->seconds), item.result->problem});
    if (item.facts.contains("device")) {
      devices += "cuDNN's description of the device, for tests/cuda/devices:\n\n```json\n" +
                 json_text(item.facts["device"], 1) + "\n```\n\n";
    }
  }
  return table({"item", "result", "s", "text"}, rows) + devices;
}

}  // namespace

std::string page_of(const Results& results) {
  const Json pack = parse_json(results.pack);
  std::string text =
      fmt::format("# Tessera on a GPU\n\nTessera {}, commit {}; machine code for {} by {}.\n\n",
                  number(at(pack, "version")), number(at(pack, "commit")),
                  json_text(at(pack, "architectures")), number(at(pack, "compiler")));
  text += deviations(results);
  using Section = std::string (*)(const std::vector<ResultFacts>&);
  static const std::pair<const char*, Section> sections[] = {
      {"doctor", doctor_part}, {"operators", operators_part}, {"styles", styles_part},
      {"rates", rates_part},   {"models", models_part},       {"faults", other_part},
      {"more", other_part}};
  for (const auto& [name, section] : sections) {
    const std::vector<ResultFacts> items = of_part(results, name);
    if (items.empty()) {
      continue;
    }
    const auto passed = std::ranges::count_if(
        items, [](const ResultFacts& item) { return item.result->status == "passed"; });
    text += fmt::format("## {}: {} of {} passed\n\n", name, passed, items.size()) + section(items);
    if (std::string_view(name) == "more") {
      text += models_part(items);
    }
  }
  return text;
}

}  // namespace tessera::app::first_day
