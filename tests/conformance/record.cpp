#include "record.hpp"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

import tessera.base;

namespace tessera::testing {
namespace {

constexpr const char* introduction =
    "# How many placements of its samples each operator accepts and refuses (accepted/refused), in "
    "each floating type that\n"
    "# it takes (f64: and of integers). narrow: a refused placement under which the plain operator "
    "on the ranks' shards "
    "gives the right results.\n"
    "# A test fails where an operator accepts fewer. To write this file:\n"
    "# TESSERA_WRITE_CONFORMANCE_RECORD=1 build/release/bin/test_conformance '[record]'\n";

const std::vector<std::string>& type_names() {
  static const std::vector<std::string> names = {"f64", "f32", "bf16", "f16"};
  return names;
}

}  // namespace

std::string to_text(const Record& record) {
  std::ostringstream text;
  text << introduction;
  for (const auto& [name, one] : record) {
    text << name;
    for (const std::string& type : type_names()) {
      if (const auto counts = one.types.find(type); counts != one.types.end()) {
        text << " " << type << " " << counts->second.accepted << "/" << counts->second.refused;
      }
    }
    text << "\n";
    for (const std::string& narrow : one.narrow) {
      text << "  narrow: " << narrow << "\n";
    }
  }
  return text.str();
}

Record record_of(const std::string& text) {
  constexpr std::string_view narrow = "  narrow: ";
  Record record;
  RecordedOperator* last = nullptr;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    if (line.starts_with(narrow) && last != nullptr) {
      last->narrow.insert(line.substr(narrow.size()));
      continue;
    }
    std::istringstream words(line);
    std::string name;
    words >> name;
    last = &record[name];
    for (std::string type; words >> type;) {
      Counts counts;
      char slash = ' ';
      words >> counts.accepted >> slash >> counts.refused;
      if (!words || slash != '/' || std::ranges::find(type_names(), type) == type_names().end()) {
        fail("record: not a line of it: " + line);
      }
      last->types[type] = counts;
    }
  }
  return record;
}

RecordDifference compare(const Record& recorded, const Record& found,
                         const std::set<std::string>& types) {
  RecordDifference difference;
  const RecordedOperator nothing;
  std::set<std::string> names;
  for (const Record* record : {&recorded, &found}) {
    for (const auto& [name, one] : *record) {
      names.insert(name);
    }
  }
  for (const std::string& name : names) {
    const auto before_at = recorded.find(name);
    const auto now_at = found.find(name);
    if (before_at == recorded.end()) {
      difference.failures.push_back(name + " is not in the record");
      continue;
    }
    const RecordedOperator& before = before_at->second;
    const RecordedOperator& now = now_at == found.end() ? nothing : now_at->second;
    for (const std::string& type : types) {
      const auto counts = [&](const RecordedOperator& one) {
        const auto at = one.types.find(type);
        return at == one.types.end() ? Counts{} : at->second;
      };
      const Counts a = counts(before);
      const Counts b = counts(now);
      if (a == b) {
        continue;
      }
      const std::string line = name + " in " + type + ": accepts " + std::to_string(b.accepted) +
                               " and refuses " + std::to_string(b.refused) +
                               " (recorded: " + std::to_string(a.accepted) + " and " +
                               std::to_string(a.refused) + ")";
      (b.accepted < a.accepted ? difference.failures : difference.gains).push_back(line);
    }
    if (!types.contains("f64")) {
      continue;
    }
    for (const std::string& text : now.narrow) {
      if (!before.narrow.contains(text)) {
        difference.failures.push_back(name + " refuses what would be right: " + text);
      }
    }
    for (const std::string& text : before.narrow) {
      if (!now.narrow.contains(text)) {
        difference.gains.push_back(name + " is no longer narrow: " + text);
      }
    }
  }
  return difference;
}

Record updated(const Record& recorded, const Record& found, const std::set<std::string>& types) {
  Record result;
  for (const auto& [name, now] : found) {
    RecordedOperator& one = result[name];
    if (const auto before = recorded.find(name); before != recorded.end()) {
      one = before->second;
    }
    for (const std::string& type : types) {
      one.types.erase(type);
      if (const auto counts = now.types.find(type); counts != now.types.end()) {
        one.types[type] = counts->second;
      }
    }
    if (types.contains("f64")) {
      one.narrow = now.narrow;
    }
  }
  return result;
}

}  // namespace tessera::testing
