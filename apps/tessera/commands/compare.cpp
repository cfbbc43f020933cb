module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <tessera/json.hpp>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.checkpoint;
import tessera.app.base;
import tessera.text;
import :stored_paths;
import :subcommands;

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

const text::StoredDifference* first_difference(const text::StoredComparison& comparison) {
  const auto found = std::ranges::find_if(comparison.compared,
                                          [](const auto& compared) { return !compared.agrees; });
  return found == comparison.compared.end() ? nullptr : &*found;
}

/// JSON has no infinities.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json as_json(const text::StoredComparison& comparison) {
  Json compared = Json::array();
  for (const text::StoredDifference& each : comparison.compared) {
    Json entry = {{"name", each.name}, {"agrees", each.agrees}};
    if (each.problem.empty()) {
      entry["largest"] = number(each.largest);
      entry["relative"] = number(each.relative);
    } else {
      entry["problem"] = each.problem;
    }
    compared.push_back(std::move(entry));
  }
  const text::StoredDifference* const first = first_difference(comparison);
  return {{"compared", compared},
          {"unknown", comparison.unknown},
          {"first", first == nullptr ? Json(nullptr) : Json(first->name)}};
}

void print_table(const text::StoredComparison& comparison) {
  TableRows rows{{"stored", "shape", "largest", "relative", ""}};
  for (const text::StoredDifference& each : comparison.compared) {
    std::vector<std::string> cells{each.name, to_string(each.shape)};
    if (each.problem.empty()) {
      cells.push_back(fmt::format("{:.2g}", each.largest));
      cells.push_back(fmt::format("{:.2g}", each.relative));
    } else {
      cells.insert(cells.end(), {"", ""});
    }
    cells.emplace_back(each.agrees ? "" : each.problem.empty() ? "differs" : each.problem);
    rows.push_back(std::move(cells));
  }
  fmt::print("{}", format_table(rows));
}

/// "not compared: 12 that the model does not have: model.rotary_emb, ...".
std::string unknown_text(const std::vector<std::string>& unknown) {
  constexpr std::size_t shown = 4;
  std::string names;
  for (std::size_t i = 0; i < std::min(shown, unknown.size()); ++i) {
    names += (i > 0 ? ", " : "") + unknown[i];
  }
  return fmt::format("not compared: {} that the model does not have: {}{}", unknown.size(), names,
                     unknown.size() > shown ? ", ..." : "");
}

void print_summary(const text::StoredComparison& comparison, double tolerance) {
  const auto differ =
      std::ranges::count_if(comparison.compared, [](const auto& each) { return !each.agrees; });
  if (!comparison.unknown.empty()) {
    fmt::print("{}\n", unknown_text(comparison.unknown));
  }
  if (const text::StoredDifference* const first = first_difference(comparison)) {
    fmt::print(
        "{} of {} differ by more than {:g}; the first one is {}, and what is computed before it "
        "agrees\n",
        differ, comparison.compared.size(), tolerance, first->name);
  } else {
    fmt::print("all {} agree within {:g}\n", comparison.compared.size(), tolerance);
  }
}

}  // namespace

int run_compare(const CompareArguments& given) {
  CompareArguments arguments = given;
  InputCopies copies;
  copies.take(arguments.stored);
  copies.take(arguments.model, true);
  const SafetensorsFile stored(arguments.stored);
  const text::TextModel model(arguments.model);
  const text::StoredComparison comparison =
      text::compare_stored(model, stored, arguments.tolerance);
  if (arguments.json) {
    fmt::print("{}\n", json_text(as_json(comparison), 2));
  } else {
    print_table(comparison);
    print_summary(comparison, arguments.tolerance);
  }
  return first_difference(comparison) == nullptr ? 0 : 1;
}

}  // namespace tessera::app
