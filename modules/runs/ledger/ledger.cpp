module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.ranks;

namespace tessera::runs {
namespace {

constexpr std::array<std::string_view, time_use_count> words = {
    "start", "data", "capture",  "compute", "communication", "slow_ranks", "validation",
    "save",  "heal", "repeated", "end"};
constexpr std::size_t most_rows = 8;

/// For people.
std::string text_of(TimeUse use) {
  std::string text(word_of(use));
  std::ranges::replace(text, '_', ' ');
  return text;
}

/// The uses for which there is time, in their order.
std::vector<TimeUse> used(const TimeBook& all) {
  std::vector<TimeUse> uses;
  for (std::size_t i = 0; i < time_use_count; ++i) {
    if (all.seconds[i] > 0) {
      uses.push_back(static_cast<TimeUse>(i));
    }
  }
  return uses;
}

/// The numbers of the ranks in the table.
std::vector<std::size_t> shown_ranks(std::span<const TimeBook> ranks) {
  std::vector<std::size_t> rows(ranks.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  if (rows.size() <= most_rows) {
    return rows;
  }
  const auto computes = [&](std::size_t a, std::size_t b) {
    return ranks[a][TimeUse::compute] < ranks[b][TimeUse::compute];
  };
  const auto [least, most] = std::ranges::minmax_element(rows, computes);
  return *least < *most ? std::vector{*least, *most} : std::vector{*most, *least};
}

}  // namespace

std::string_view word_of(TimeUse use) { return words[static_cast<std::size_t>(use)]; }

double TimeBook::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

double TimeBook::goodput() const {
  const double all = total();
  return all > 0 ? (*this)[TimeUse::compute] / all : 0;
}

TimeBook& TimeBook::operator+=(const TimeBook& other) {
  for (std::size_t i = 0; i < time_use_count; ++i) {
    seconds[i] += other.seconds[i];
  }
  return *this;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TimeLedger::TimeLedger(double begun, TimeUse use, const TimeBook& before,
                       std::function<double()> clock)
    : clock_(std::move(clock)), book_(before), use_(use), settled_(begun) {}

void TimeLedger::settle() {
  const double now = clock_();
  book_[use_] += now - settled_;
  settled_ = now;
}

TimeUse TimeLedger::enter(TimeUse use) {
  settle();
  return std::exchange(use_, use);
}

double TimeLedger::move(TimeUse from, TimeUse to, double seconds, const TimeBook& since) {
  settle();
  const double moved = std::clamp(seconds, 0.0, std::max(0.0, book_[from] - since[from]));
  book_[from] -= moved;
  book_[to] += moved;
  return moved;
}

void TimeLedger::move_all(TimeUse to, const TimeBook& since) {
  settle();
  const double moved = (book_ - since).total();
  book_ = since;
  book_[to] += moved;
}

TimeBook TimeLedger::book() {
  settle();
  return book_;
}

TimeScope::TimeScope(TimeLedger* ledger, TimeUse use) : ledger_(ledger) {
  if (ledger_ != nullptr) {
    before_ = ledger_->enter(use);
  }
}

TimeScope::~TimeScope() {
  if (ledger_ != nullptr) {
    ledger_->enter(before_);
  }
}

/// Two entries, of which one is whole at any time.
struct TimeBoard::Slot {
  std::atomic<std::uint32_t> newest = 0;
  std::array<Entry, 2> entries = {};
};

TimeBoard::TimeBoard(int ranks)
    : memory_(collective::Region::create(sizeof(Slot) * static_cast<std::size_t>(ranks), true)) {
  if (memory_->bytes() < sizeof(Slot) * static_cast<std::size_t>(ranks)) {
    fail({.thing = "ledger", .wrong = "there is no memory that the ranks can share"});
  }
  for (int rank = 0; rank < ranks; ++rank) {
    new (&slot(rank)) Slot();
  }
}

TimeBoard::Slot& TimeBoard::slot(int rank) const {
  return reinterpret_cast<Slot*>(memory_->base())[rank];
}

void TimeBoard::put(int rank, const Entry& entry) {
  Slot& own = slot(rank);
  const std::uint32_t next = 1 - own.newest.load(std::memory_order_relaxed);
  own.entries[next] = entry;
  own.newest.store(next, std::memory_order_release);
}

TimeBoard::Entry TimeBoard::get(int rank) const {
  const Slot& own = slot(rank);
  return own.entries[own.newest.load(std::memory_order_acquire)];
}

std::vector<std::string> ledger_lines(std::span<const TimeBook> ranks) {
  TimeBook all;
  for (const TimeBook& rank : ranks) {
    all += rank;
  }
  const std::vector<TimeUse> uses = used(all);
  std::vector<std::string> shares;
  for (const TimeUse use : uses) {
    if (all[use] < 0.0005 * all.total()) {
      continue;
    }
    shares.push_back(fmt::format("{} {:.1f}%", text_of(use), 100 * all[use] / all.total()));
  }
  std::vector<std::string> lines = {fmt::format(
      "time of {}: {}, of which {}",
      ranks.size() == 1 ? "the rank" : fmt::format("{} ranks", ranks.size()),
      format_duration(all.total() / static_cast<double>(std::max<std::size_t>(1, ranks.size()))),
      fmt::join(shares, ", "))};
  if (ranks.size() < 2) {
    return lines;
  }
  std::string head = "  seconds ";
  for (const TimeUse use : uses) {
    head += fmt::format("  {:>9}", text_of(use));
  }
  lines.push_back(head + "      total");
  for (const std::size_t rank : shown_ranks(ranks)) {
    std::string row = fmt::format("  rank {:<4}", rank);
    for (const TimeUse use : uses) {
      row += fmt::format("  {:>{}.2f}", ranks[rank][use],
                         std::max<std::size_t>(9, word_of(use).size()));
    }
    lines.push_back(row + fmt::format("  {:>9.2f}", ranks[rank].total()));
  }
  return lines;
}

}  // namespace tessera::runs
