module;
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tuple>
#include <utility>
#include <vector>
module tessera.dtensor;

import tessera.base;
import tessera.tensor;
import tessera.autograd;

namespace tessera {
namespace {

struct ReportState {
  CommunicationReport* open = nullptr;
  AllowRedistribution* allowed = nullptr;
};

ReportState& state() {
  thread_local ReportState instance;
  return instance;
}

std::string_view phase_of(const Communication& c) { return c.backward ? "backward" : "forward"; }

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

double CommunicationReport::seconds() const {
  double sum = 0;
  for (const Communication& c : entries_) {
    sum += c.seconds;
  }
  return sum;
}

std::string CommunicationReport::to_string() const {
  struct Sum {
    int times = 0;
    std::int64_t bytes = 0;
    double seconds = 0;
  };
  using Key = std::tuple<std::string, std::string, std::string, bool, std::string, bool>;
  std::map<Key, Sum> groups;
  for (const Communication& c : entries_) {
    Sum& sum = groups[{c.module, c.operation, c.axis, c.backward, c.where, c.implicit}];
    ++sum.times;
    sum.bytes += c.bytes;
    sum.seconds += c.seconds;
  }
  std::string text;
  for (const auto& [key, sum] : groups) {
    const auto& [module, operation, axis, backward, where, implicit] = key;
    text += fmt::format("{} x {} on {}, {}, {:.3f} ms, {} ({}{}{}{})\n", sum.times, operation, axis,
                        format_bytes(static_cast<std::uint64_t>(sum.bytes)), sum.seconds * 1e3,
                        backward ? "backward" : "forward", where, module.empty() ? "" : ", in ",
                        module, implicit ? ", implicit" : "");
  }
  return text;
}

std::string CommunicationReport::to_json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const Communication& c : entries_) {
    list.push_back({{"operation", c.operation},
                    {"axis", c.axis},
                    {"bytes", c.bytes},
                    {"where", c.where},
                    {"implicit", c.implicit},
                    {"module", c.module},
                    {"phase", phase_of(c)},
                    {"seconds", c.seconds}});
  }
  return json_text(list);
}

void record_communication(Communication entry) {
  if (!communication_reported()) {
    return;
  }
  if (const std::string* const module = current_module();
      module != nullptr && entry.module.empty()) {
    entry.module = *module;
  }
  entry.backward =
      entry.backward || in_backward();  // a replayed step goes backward without autograd
  if (entry.implicit && state().allowed != nullptr) {
    state().allowed->entries_.push_back(entry);
  }
  if (state().open != nullptr) {
    state().open->entries_.push_back(std::move(entry));
  }
}

bool communication_reported() { return state().open != nullptr || state().allowed != nullptr; }

CommunicationTimer::CommunicationTimer()
    : begin_(communication_reported() ? std::chrono::steady_clock::now()
                                      : std::chrono::steady_clock::time_point{}) {}

double CommunicationTimer::seconds() const {
  if (begin_ == std::chrono::steady_clock::time_point{}) {
    return 0;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

AllowRedistribution::AllowRedistribution()
    : outer_(std::exchange(state().allowed, this)), permission_({.redistribution = true}) {}
AllowRedistribution::~AllowRedistribution() { state().allowed = outer_; }
bool redistribution_allowed() { return call_permissions().redistribution; }

PlainIsReplicate::PlainIsReplicate() : permission_({.plain_is_replicate = true}) {}
PlainIsReplicate::~PlainIsReplicate() = default;
bool plain_is_replicate() { return call_permissions().plain_is_replicate; }

}  // namespace tessera
