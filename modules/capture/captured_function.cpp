// Which program a call has, and how it is recorded and replayed.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.capture;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.execute;
import :captured_function;
import :recording;

namespace tessera {
namespace {

/// Programs that are kept, and how many of them with their memory; and kinds of calls that are
/// waiting for one.
constexpr std::size_t most_captures = 16;
constexpr std::size_t most_with_memory = 4;
constexpr std::size_t most_kinds = 64;
constexpr std::size_t most_reasons = 8;

/// Styles learn the order of their groups in the first call of a kind.
constexpr std::int64_t calls_before = 1;

constexpr const char* first_capture = "the first";

/// The numbers that the guards within a call had, as far as they are known, in their order.
using GuardPath = std::vector<GuardValue>;

void count_capture(ReplayCounts& counts, const std::string& reason) {
  ++counts.captured;
  const bool room = counts.reasons.contains(reason) || counts.reasons.size() < most_reasons;
  ++counts.reasons[room ? reason : "others"];
  if (counts.captured > 1) {
    log(LogLevel::info,
        fmt::format("captured step: program {} is captured: {}", counts.captured, reason));
  }
}

/// The numbers that a replay has read until a guard ended it.
GuardPath path_of(const GuardFailure& failed, const GuardPath& recorded) {
  const auto known = static_cast<std::ptrdiff_t>(failed.number()) + 1;
  GuardPath path(recorded.begin(), recorded.begin() + known);
  path.back().value = failed.now();
  return path;
}

/// Whether the guards of a program had the numbers that are known.
bool agrees(const GuardPath& recorded, const GuardPath& known) {
  return recorded.size() >= known.size() &&
         std::equal(known.begin(), known.end(), recorded.begin(),
                    [](const GuardValue& a, const GuardValue& b) {
                      return a.name == b.name && a.value == b.value;
                    });
}

std::string text_of(const GuardPath& path) {
  std::string text;
  for (const GuardValue& one : path) {
    text += fmt::format(" {}:{}", one.name, one.value);
  }
  return text;
}

/// How many calls of a kind were taken without a program; of few kinds.
std::int64_t& taken_of(std::map<std::string, std::int64_t>& kinds, const std::string& kind) {
  if (kinds.size() >= most_kinds && !kinds.contains(kind)) {
    kinds.clear();
  }
  return kinds[kind];
}

/// The program of the first of two recordings of equal calls, the one that there is without a
/// comparison. Errors: see program_of.
Program compared_program(Recording first, Recording second) {
  static_cast<void>(program_of(first, std::move(second)));
  return program_of(std::move(first));
}

}  // namespace

std::string to_string(const ReplayCounts& counts) {
  std::string text = fmt::format("{} replayed, {} recorded, {} others", counts.replayed,
                                 counts.recorded, counts.eager);
  if (counts.verified > 0) {
    text += fmt::format("; {} verified", counts.verified);
  }
  if (counts.left > 0) {
    text += fmt::format("; {} left their update", counts.left);
  }
  if (!counts.not_left.empty()) {
    text += "; updates are not left: " + counts.not_left;
  }
  if (counts.captured > 1) {
    std::vector<std::string> reasons;
    for (const auto& [reason, count] : counts.reasons) {
      reasons.push_back(fmt::format("{} ({})", reason, count));
    }
    text += fmt::format("; {} programs{}: {}", counts.captured,
                        counts.evicted == 0
                            ? ""
                            : fmt::format(", {} of them dropped for newer ones", counts.evicted),
                        fmt::format("{}", fmt::join(reasons, ", ")));
  }
  if (counts.given_up > 0) {
    text += fmt::format("; {} replays given up at a guard", counts.given_up);
  }
  return text + (counts.refusal.empty() ? "" : "; " + counts.refusal);
}

CapturedFunction::Entry::~Entry() = default;
CapturedFunction::CapturedFunction(std::function<void()> before_switch)
    : before_switch_(std::move(before_switch)) {}
CapturedFunction::~CapturedFunction() = default;

CapturedFunction::CachedProgram* CapturedFunction::find(const Call& call, const GuardPath& known) {
  counts_.refusal.clear();
  for (auto one = entries_.end(); one != entries_.begin();) {
    --one;
    if (const std::string why = call.misfit(*one->program); !why.empty()) {
      counts_.refusal = counts_.refusal.empty() ? why : counts_.refusal;
      continue;
    }
    if (!agrees(one->guards, known)) {
      continue;
    }
    if (std::next(one) != entries_.end()) {
      before_switch_();
      std::rotate(one, std::next(one), entries_.end());
      release_old_memory();
    }
    return &entries_.back();
  }
  return nullptr;
}

void CapturedFunction::release_old_memory() {
  for (std::size_t i = 0; i + most_with_memory < entries_.size(); ++i) {
    entries_[i].program->release_memory();
  }
}

bool CapturedFunction::replayed(const Call& call, GuardPath& known) {
  std::string given_up;
  for (std::size_t tried = 0; tried < most_captures; ++tried) {
    CachedProgram* const kept = find(call, known);
    if (kept == nullptr) {
      break;
    }
    // A stream is made at its first use, which a replay from the first call has not had.
    for (const auto& [stream, drawn] : kept->program->program().draws) {
      random_stream(stream);
    }
    try {
      call.replay(*kept->program);
      ++counts_.replayed;
      return true;
    } catch (const GuardFailure& failed) {  // nothing was changed
      known = path_of(failed, kept->guards);
      given_up = guard_in_words(kept->guards[failed.number()], failed.now());
      ++counts_.given_up;
      kept->program->abandon();
      release_memory();
    }
  }
  counts_.refusal = given_up.empty() ? counts_.refusal : given_up;
  return false;
}

void CapturedFunction::record(const Call& call, const std::string& kind) {
  std::optional<Recording> recording = call.record();
  if (!recording) {
    ++counts_.eager;
    return;
  }
  ++counts_.recorded;
  const bool compares = compares_ || always_compares_;
  // Values that guards have read are part of the kind.
  const std::string whole_kind = kind + text_of(guards_of(recording->program));
  const auto same = recorded_.find(whole_kind);
  if (compares && same == recorded_.end()) {
    if (recorded_.size() >= most_kinds) {
      recorded_.clear();
    }
    recorded_.emplace(whole_kind, *std::move(recording));
    return;
  }
  Program program = compares ? compared_program(std::move(same->second), *std::move(recording))
                             : program_of(*std::move(recording));
  if (compares) {
    recorded_.erase(same);
  }
  add(std::move(program), call.make, entries_.empty() ? first_capture : counts_.refusal);
}

void CapturedFunction::call(const Call& call) {
  GuardPath known;
  if (!call.refused.empty()) {
    counts_.refusal = call.refused;
  } else if (replayed(call, known)) {
    return;
  }
  call.before_taking(counts_.refusal.empty() ? "none was set" : counts_.refusal);
  release_memory();
  const std::string kind = call.kind();
  const std::string kind_with_guards = kind + text_of(known);
  if (call.refused.empty() && taken_of(kinds_, kind_with_guards) >= calls_before) {
    record(call, kind);
    return;
  }
  const std::string shown = call.take();
  ++counts_.eager;
  ++taken_of(kinds_, shown.empty() ? kind_with_guards : shown + text_of(known));
}

void CapturedFunction::add(Program program, const Make& make, const std::string& reason) {
  before_switch_();
  check_guards(program);
  GuardPath guards = guards_of(program);
  if (entries_.size() >= most_captures) {
    entries_.erase(entries_.begin());  // its memory is free before the new one's is taken
    if (++counts_.evicted == 1) {
      log(LogLevel::warning,
          fmt::format("captured step: there are more than {} kinds of calls, so programs are "
                      "dropped for newer ones and captured again; make inputs of fewer shapes, or "
                      "fewer values of guards",
                      most_captures));
    }
  }
  entries_.push_back({.program = make(std::move(program)), .guards = std::move(guards)});
  release_old_memory();
  count_capture(counts_, reason);
}

const Program& CapturedFunction::capture(const std::function<void()>& call) {
  compares_ = true;
  while (entries_.empty()) {
    call();
  }
  compares_ = false;
  return entries_.back().program->program();
}

void CapturedFunction::clear() {
  counts_ = {};
  entries_.clear();
  kinds_.clear();
  recorded_ = {};
}

void CapturedFunction::release_memory() noexcept {
  for (const CachedProgram& kept : entries_) {
    kept.program->release_memory();
  }
}

}  // namespace tessera
