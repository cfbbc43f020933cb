module;
#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
module tessera.dtensor;

import tessera.base;

namespace tessera {
namespace {

struct ReportState {
  CommunicationReport* open = nullptr;
  bool allowed = false;
};

ReportState& state() {
  thread_local ReportState instance;
  return instance;
}

}  // namespace

CommunicationReport::CommunicationReport() : outer_(std::exchange(state().open, this)) {}
CommunicationReport::~CommunicationReport() { state().open = outer_; }

std::int64_t CommunicationReport::count(const std::string& operation) const {
  std::int64_t n = 0;
  for (const Communication& c : entries_) {
    n += c.operation == operation ? 1 : 0;
  }
  return n;
}

std::int64_t CommunicationReport::bytes() const {
  std::int64_t n = 0;
  for (const Communication& c : entries_) {
    n += c.bytes;
  }
  return n;
}

std::string CommunicationReport::to_string() const {
  std::map<std::tuple<std::string, std::string, std::string, bool>, std::pair<int, std::int64_t>>
      groups;
  for (const Communication& c : entries_) {
    auto& [times, total] = groups[{c.operation, c.axis, c.where, c.implicit}];
    ++times;
    total += c.bytes;
  }
  std::string text;
  for (const auto& [key, sum] : groups) {
    const auto& [operation, axis, where, implicit] = key;
    text += fmt::format("{} x {} on {}, {} ({}{})\n", sum.first, operation, axis,
                        format_bytes(static_cast<std::uint64_t>(sum.second)), where,
                        implicit ? ", implicit" : "");
  }
  return text;
}

void record_communication(Communication entry) {
  if (state().open != nullptr) {
    state().open->entries_.push_back(std::move(entry));
  }
}

bool communication_reported() { return state().open != nullptr; }

AllowRedistribution::AllowRedistribution() : before_(std::exchange(state().allowed, true)) {}
AllowRedistribution::~AllowRedistribution() { state().allowed = before_; }
bool redistribution_allowed() { return state().allowed; }

}  // namespace tessera
