module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.plugin;

namespace tessera::plugin_suite {
namespace {

std::vector<SuiteCheck> suite_of(const SuiteSubject& subject) {
  if (subject.kind == "style") {
    return style_suite(subject.name);
  }
  if (subject.kind == "optimizer") {
    return optimizer_suite(subject.name);
  }
  if (subject.kind == "model") {
    return model_suite(subject.name);
  }
  if (subject.kind == "device") {
    return device_suite(subject.name);
  }
  if (subject.kind == "collectives") {
    return collectives_suite(subject.name);
  }
  if (subject.kind == "change") {
    return change_suite(subject.name);
  }
  if (subject.kind == "format") {
    return format_suite(subject.name);
  }
  if (subject.kind == "tokenizer") {
    return tokenizer_suite(subject.name);
  }
  if (subject.kind == "sink") {
    return sink_suite(subject.name);
  }
  if (subject.kind == "source") {
    return source_suite(subject.name);
  }
  if (subject.kind == "transport") {
    return transport_suite(subject.name);
  }
  if (subject.kind == "store") {
    return store_suite(subject.name);
  }
  return subject.kind == "operator" ? operator_suite(subject.name) : std::vector<SuiteCheck>{};
}

// The child's report: lines "begin CHECK", "trying WHAT" and "note WHAT", then "passed", "failed
// TEXT" or "not tried TEXT".
const SendReport* to_parent = nullptr;

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string outcome_of(const SuiteCheck& check) {
  try {
    const std::string problem = check.run();
    return problem.empty() ? "passed" : "failed " + problem;
  } catch (const SkippedCheck& reason) {
    return "not tried " + reason.why;
  } catch (const std::exception& error) {
    return fmt::format("failed {}", error.what());
  }
}

std::vector<SuiteResult> results_of(std::string_view report, const std::string& end) {
  using State = SuiteResult::State;
  std::vector<SuiteResult> results;
  while (!report.empty()) {
    const std::string_view line = report.substr(0, report.find('\n'));
    report.remove_prefix(std::min(line.size() + 1, report.size()));
    if (line.starts_with("begin ")) {
      results.push_back({State::failed, std::string(line.substr(6)), end});
    } else if (line.starts_with("trying ")) {
      results.back().text = fmt::format("{} in {}", end, line.substr(7));
    } else if (line.starts_with("note ")) {
      results.back().notes.emplace_back(line.substr(5));
    } else if (line == "passed") {
      results.back().state = State::passed;
      results.back().text.clear();
    } else if (line.starts_with("failed ")) {
      results.back().text = line.substr(7);
    } else if (line.starts_with("not tried ")) {
      results.back().state = State::not_tried;
      results.back().text = line.substr(10);
    }
  }
  return results;
}

}  // namespace

std::vector<SuiteResult> run_suite(const SuiteSubject& subject, std::chrono::milliseconds limit) {
  const ChildResult child = run_in_child("plugin check", limit, [&](const SendReport& send) {
    std::vector<std::string> paths = {subject.file};
    if (subject.kind == "collectives") {  // the plugin of their device may be beside them
      paths.push_back(std::filesystem::path(subject.file).parent_path().string());
    }
    plugin::configure_host({.paths = paths, .environment = false, .standard_places = false});
    to_parent = &send;
    for (const SuiteCheck& check : suite_of(subject)) {
      send(fmt::format("begin {}\n", check.name));
      send(one_line(outcome_of(check)) + "\n");
    }
  });
  return results_of(child.report, child.problem);
}

void trying(const std::string& what) {
  if (to_parent != nullptr) {
    (*to_parent)(fmt::format("trying {}\n", one_line(what)));
  }
}

void note(const std::string& what) {
  if (to_parent != nullptr) {
    (*to_parent)(fmt::format("note {}\n", one_line(what)));
  }
}

std::string some_of(const std::vector<std::string>& findings) {
  constexpr std::size_t most = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(findings.size(), most); ++i) {
    text += (i == 0 ? "" : "; ") + findings[i];
  }
  return findings.size() <= most ? text
                                 : fmt::format("{}; and {} more", text, findings.size() - most);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(a[i] - b[i]) / (1 + std::abs(b[i]));
    largest = std::isfinite(difference) ? std::max(largest, difference)
                                        : std::numeric_limits<double>::infinity();
  }
  return largest;
}

}  // namespace tessera::plugin_suite
