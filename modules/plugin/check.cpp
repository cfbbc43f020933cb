module;
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
module tessera.plugin;

import tessera.base;

namespace tessera::plugin {
namespace {

// The child's report: lines "refused TEXT" and "registered KIND NAME".
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Loads and registers; returns the report as text.
std::string try_library(const LibraryFile& file, const Stamp& stamp) {
  Registrar registrar(stamp.name, file.path);
  std::string report;
  if (const std::string why = load_and_register(file, registrar); !why.empty()) {
    report += fmt::format("refused {}\n", one_line(why));
  } else {
    for (const std::string& refusal : refused_entries(stamp, registrar.entries())) {
      report += fmt::format("refused {}\n", one_line(refusal));
    }
  }
  for (const Entry& entry : registrar.entries()) {
    report += fmt::format("registered {} {}\n", entry.kind, entry.name);
  }
  return report;
}

void take_report(std::string_view report, CheckReport& into) {
  while (!report.empty()) {
    const std::string_view line = report.substr(0, report.find('\n'));
    report.remove_prefix(std::min(line.size() + 1, report.size()));
    if (line.starts_with("refused ")) {
      into.found.refusals.emplace_back(line.substr(8));
    } else if (line.starts_with("registered ")) {
      const std::string_view offer = line.substr(11);
      const std::size_t space = offer.find(' ');
      into.registered.push_back(
          {std::string(offer.substr(0, space)), std::string(offer.substr(space + 1))});
    }
  }
}

void try_in_child(const LibraryFile& file, std::chrono::milliseconds limit, CheckReport& report) {
  const ChildResult child = run_in_child("plugin check", limit, [&](const SendReport& send) {
    send(try_library(file, *report.found.stamp));
  });
  report.tried = true;
  take_report(child.report, report);
  if (child.late) {
    report.found.refusals.push_back(
        fmt::format("did not finish loading and registering within {} ms", limit.count()));
  } else if (!child.problem.empty()) {
    report.found.refusals.push_back(
        fmt::format("{} while it was loaded or registered", child.problem));
  }
}

}  // namespace

CheckReport check_library(const std::string& path, std::chrono::milliseconds limit) {
  const LibraryFile file = read_library_file(path);
  CheckReport report;
  report.found.file = file.path;
  report.found.refusals = file.refusals;
  if (!file.bytes.empty() || file.refusals.empty()) {
    StampReading reading = stamp_of(file);
    std::move(reading.refusals.begin(), reading.refusals.end(),
              std::back_inserter(report.found.refusals));
    report.found.stamp = std::move(reading.stamp);
  }
  if (report.found.stamp) {
    for (std::string& refusal : refused_kinds(*report.found.stamp)) {
      report.found.refusals.push_back(std::move(refusal));
    }
  }
  if (report.found.refusals.empty()) {
    try_in_child(file, limit, report);
  }
  return report;
}

}  // namespace tessera::plugin
