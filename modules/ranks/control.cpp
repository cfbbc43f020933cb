module;
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.ranks;

import tessera.base;
import tessera.calls;
import :control;
import :region;

namespace tessera::collective {
namespace {

FlightRecord kept(const Region& region, const RecordedCall& entry) {
  const Call call = unpack({entry.head.load(std::memory_order_relaxed),
                            entry.count.load(std::memory_order_relaxed),
                            entry.shape.load(std::memory_order_relaxed)});
  return {.call = to_string(call),
          .group =
              reinterpret_cast<GroupBlock*>(region.at(entry.group.load(std::memory_order_relaxed))),
          .sequence = entry.sequence.load(std::memory_order_relaxed),
          .complete = entry.done.load(std::memory_order_relaxed) != 0};
}

std::string describe(const FlightRecord& call) {
  return fmt::format("{}, call {} of group {}", call.call, call.sequence,
                     describe_group(*call.group));
}

}  // namespace

// The futex is the low half of the value; x86-64 and arm64 are little-endian.
void Counter::wake() {
  woken.store(steady_nanoseconds(), std::memory_order_relaxed);
  wake_on(&value, std::numeric_limits<int>::max());
}

void Counter::sleep(std::uint64_t seen, double seconds) {
  waiters.fetch_add(1, std::memory_order_seq_cst);
  if (value.load(std::memory_order_seq_cst) == seen) {
    sleep_on(&value, static_cast<std::uint32_t>(seen), seconds);
  }
  waiters.fetch_sub(1, std::memory_order_seq_cst);
}

Control* Control::create(Region& region, int size) {
  const std::uint64_t records = sizeof(RankRecord) * static_cast<std::uint64_t>(size);
  const std::uint64_t begin = (ranks_offset() + records + 4095) & ~std::uint64_t{4095};
  constexpr std::uint64_t rest = std::uint64_t{1} << 20;  // for groups and their first calls
  if (begin + rest > region.bytes()) {
    fail_input({.thing = "launch",
                .wrong = fmt::format("{} ranks do not fit into {} of shared memory", size,
                                     format_bytes(region.bytes())),
                .expected = fmt::format("at least {}", format_bytes(begin + rest)),
                .advice = "start fewer ranks, or raise `ulimit -v`"});
  }
  auto* control = new (region.base()) Control;
  control->size = static_cast<std::uint32_t>(size);
  control->region_bytes = region.bytes();
  for (int r = 0; r < size; ++r) {
    new (control->ranks() + r) RankRecord;
  }
  control->extents.reset(region.base(), begin, region.bytes());
  control->magic = expected_magic;
  return control;
}

bool Control::publish_error(int rank, std::string_view text, ErrorKind kind, bool about_calls) {
  std::uint32_t none = 0;
  if (!failed.compare_exchange_strong(none, 1)) {
    return false;
  }
  failed_rank.store(rank);
  failed_kind.store(static_cast<std::uint32_t>(kind));
  failed_in_calls.store(about_calls ? 1 : 0);
  if (rank >= 0) {
    failed_step.store(ranks()[rank].step.load());
    failed_where.store(ranks()[rank].where.load());
  }
  failed_text.store(text);
  failed.store(2, std::memory_order_release);
  return true;
}

void Control::take_error(const FirstError& error, bool about_calls) {
  std::uint32_t none = 0;
  if (!failed.compare_exchange_strong(none, 1)) {
    return;
  }
  failed_elsewhere.store(1);
  failed_rank.store(error.rank);
  failed_kind.store(static_cast<std::uint32_t>(error.kind));
  failed_in_calls.store(about_calls ? 1 : 0);
  failed_step.store(error.step);
  failed_where.store(error.where);
  failed_text.store(error.text);
  failed.store(2, std::memory_order_release);
}

FirstError Control::first_error() const {
  FirstError error;
  for (int tries = 0; failed.load(std::memory_order_acquire) == 1 && tries < 1000; ++tries) {
    usleep(100);  // its writer is between two stores
  }
  if (failed.load(std::memory_order_acquire) == 0) {
    return error;
  }
  error.rank = failed_rank.load();
  error.kind = static_cast<ErrorKind>(failed_kind.load());
  error.step = failed_step.load();
  error.where = failed_where.load();
  error.text = failed_text.load();
  if (error.text.empty()) {
    error.text = "a rank died while it reported an error";
  }
  return error;
}

std::vector<FlightRecord> Control::kept_calls(const Region& region, int rank, std::uint64_t most) {
  std::vector<FlightRecord> calls;
  RankRecord& record = ranks()[rank];
  const std::uint64_t end = record.recorded.load(std::memory_order_acquire);
  for (std::uint64_t i = end - std::min({end, RankRecord::kept_calls, most}); i < end; ++i) {
    const RecordedCall& entry = record.calls[i % RankRecord::kept_calls];
    if (entry.group.load(std::memory_order_relaxed) != 0) {  // else of another machine, which tells
      calls.push_back(kept(region, entry));                  // the last calls only
    }
  }
  return calls;
}

std::string Control::recent_calls(const Region& region, int calls_per_rank) {
  constexpr std::uint32_t few = 16;
  std::string text;
  std::vector<std::pair<std::string, std::vector<std::int32_t>>> alike;
  for (std::uint32_t r = 0; r < size; ++r) {
    std::string calls;
    for (const FlightRecord& one :
         kept_calls(region, static_cast<int>(r), static_cast<std::uint64_t>(calls_per_rank))) {
      const std::string call =
          fmt::format("{}{}", describe(one), one.complete ? "" : " (not complete)");
      calls += size <= few ? fmt::format("rank {}: {}\n", r, call) : fmt::format("  {}\n", call);
    }
    if (size <= few) {
      text += calls;
    } else if (const auto known =
                   std::ranges::find(alike, calls, [](const auto& a) { return a.first; });
               known != alike.end()) {
      known->second.push_back(static_cast<std::int32_t>(r));
    } else if (!calls.empty()) {
      alike.emplace_back(calls, std::vector{static_cast<std::int32_t>(r)});
    }
  }
  // Ranks with the same calls are shown once, of many.
  for (const auto& [calls, of] : alike) {
    text += fmt::format("{}:\n{}", numbers_text("rank", of), calls);
  }
  return text;
}

std::string Control::describe_rank(int rank) {
  const std::int64_t step = ranks()[rank].step.load();
  const std::string where = ranks()[rank].where.load();
  std::string doing = step >= 0 ? fmt::format("step {}", step) : "";
  if (!where.empty()) {
    doing += (doing.empty() ? "" : ", ") + where;
  }
  return fmt::format("rank {}{}", rank, doing.empty() ? "" : fmt::format(" ({})", doing));
}

std::string Control::last_call(const Region& region, int rank) {
  RankRecord& record = ranks()[rank];
  const std::uint64_t end = record.recorded.load(std::memory_order_acquire);
  return end == 0 ? "no call yet"
                  : describe(kept(region, record.calls[(end - 1) % RankRecord::kept_calls]));
}

std::string describe_group(GroupBlock& group) {
  const std::span<const std::int32_t> ranks(group.ranks(), group.size);
  const std::string_view name(group.name, group.name_bytes);
  return fmt::format("{}{}[{}]", name, name.empty() ? "" : " ", list_numbers(ranks));
}

}  // namespace tessera::collective
