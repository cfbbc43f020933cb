// Messages of the machines of a world to each other besides calls.
module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <tessera/shown.hpp>
#include <vector>
module tessera.machines;

import tessera.base;
import tessera.ranks;
import tessera.calls;
import :bridge;
import :mirror;
import :transport;
import :wire;

namespace tessera::collective {
namespace {

constexpr std::int64_t state_interval = 100'000'000;  // nanoseconds
constexpr std::uint64_t told_calls = 8;

}  // namespace

void Bridge::to_gateways(const std::vector<std::byte>& head) {
  for (int m = 0; m < static_cast<int>(machines_->names.size()); ++m) {
    if (m != machine()) {
      post({.to = machines_->gateway(rank_, m), .head = head});
    }
  }
}

void Bridge::to_everyone(const std::vector<std::byte>& head) {
  for (int r = 0; r < size_; ++r) {
    if (!is_here(r) && r != control_->gone.load()) {
      post({.to = r, .head = head});
    }
  }
}

void Bridge::forward() {
  const std::int64_t now = steady_nanoseconds();
  const bool failed = control_->failed.load(std::memory_order_acquire) == 2 && !sent_.failed;
  const bool ends =
      control_->ranks()[rank_].ended.load(std::memory_order_acquire) != 0 && !sent_.ended;
  if (failed || ends || now - sent_.at > state_interval) {
    sent_.at = now;
    forward_state();
    watch_mates();
  }
  if (failed) {
    sent_.failed = true;
    if (control_->failed_elsewhere.load() == 0) {
      const FirstError error = control_->first_error();
      Writer writer;
      writer.put(Topic::error);
      writer.put(static_cast<std::int32_t>(error.rank));
      writer.put(error.kind);
      writer.put(error.step);
      writer.put(control_->gone.load());
      writer.put(static_cast<std::uint8_t>(control_->failed_in_calls.load()));
      writer.put(std::string_view(error.where));
      writer.put(std::string_view(error.text));
      to_everyone(writer.bytes);
    }
  }
  if (control_->interrupts.load() != 0 && !sent_.interrupted) {
    sent_.interrupted = true;
    to_everyone({static_cast<std::byte>(Topic::interrupt)});
  }
  if (control_->printed.load() != 0 && !sent_.printed) {
    sent_.printed = true;
    to_everyone({static_cast<std::byte>(Topic::printed)});
  }
  if (ends) {
    sent_.ended = true;
    to_gateways({static_cast<std::byte>(Topic::ended)});
  }
}

void Bridge::forward_state() {
  RankRecord& own = control_->ranks()[rank_];
  const std::uint64_t end = own.recorded.load(std::memory_order_acquire);
  const std::uint64_t begin = end - std::min(end, told_calls);
  Writer writer;
  writer.put(Topic::state);
  writer.put(own.step.load(std::memory_order_relaxed));
  writer.put(own.waiting_for.load(std::memory_order_relaxed));
  writer.put(std::string_view(own.where.load()));
  writer.put(own.waits.load());
  writer.put(begin);
  writer.put(end);
  for (std::uint64_t i = begin; i < end; ++i) {
    const RecordedCall& call = own.calls[i % RankRecord::kept_calls];
    put_group(writer, *reinterpret_cast<GroupBlock*>(region_->at(call.group.load())));
    writer.put(call.sequence.load(std::memory_order_relaxed));
    writer.put(PackedCall{call.head.load(std::memory_order_relaxed),
                          call.count.load(std::memory_order_relaxed),
                          call.shape.load(std::memory_order_relaxed)});
    writer.put(call.done.load(std::memory_order_relaxed));
  }
  const std::uint64_t hash = std::hash<std::string_view>{}(
      {reinterpret_cast<const char*>(writer.bytes.data()), writer.bytes.size()});
  if (hash != sent_.state) {
    sent_.state = hash;
    to_gateways(writer.bytes);
  }
}

void Bridge::take_state(int from, Reader& reader) {
  RankRecord& record = control_->ranks()[from];
  record.step.store(reader.get<std::int64_t>(), std::memory_order_relaxed);
  const auto waiting_for = reader.get<std::int32_t>();
  require(waiting_for >= -1 && waiting_for < size_, "transport: a rank waits for one that is none");
  record.waiting_for.store(waiting_for, std::memory_order_relaxed);
  record.where.store(terminal_line(reader.text(), 200));
  if (const auto waits = reader.get<ReportedWaits::StepWaits>(); waits.step >= 0) {
    record.waits.store(waits);
  }
  const auto begin = reader.get<std::uint64_t>();
  const auto end = reader.get<std::uint64_t>();
  require(begin <= end && end - begin <= told_calls, "transport: a rank tells too many calls");
  for (std::uint64_t i = begin; i < end; ++i) {
    RecordedCall& call = record.calls[i % RankRecord::kept_calls];
    call.group.store(region_->offset_of(mirror_->group(reader)), std::memory_order_relaxed);
    call.sequence.store(reader.get<std::uint64_t>(), std::memory_order_relaxed);
    const PackedCall packed = get_call(reader);
    call.head.store(packed.head, std::memory_order_relaxed);
    call.count.store(packed.count, std::memory_order_relaxed);
    call.shape.store(packed.shape, std::memory_order_relaxed);
    call.done.store(reader.get<decltype(call.done.load())>(), std::memory_order_relaxed);
  }
  record.recorded.store(end, std::memory_order_release);
}

void Bridge::watch_mates() {
  if (!watch_ || control_->failed.load() != 0) {
    return;
  }
  for (const int mate : mates()) {
    const RankRecord& record = control_->ranks()[mate];
    const Process process{record.process.load(), record.process_start.load()};
    if (mate != rank_ && process.id > 0 && record.ended.load() == 0 &&
        state_of(process) == ProcessState::gone && record.ended.load() == 0) {
      control_->publish_error(
          rank_,
          fmt::format(
              "rank {}, on the machine of this rank, has died at step {}; its last call: {}", mate,
              record.step.load(), control_->last_call(*region_, mate)),
          ErrorKind::run, true);
    }
  }
}

bool Bridge::all_ended() const {
  for (int r = 0; r < size_; ++r) {
    if (control_->ranks()[r].ended.load(std::memory_order_acquire) == 0) {
      return false;
    }
  }
  return true;
}

}  // namespace tessera::collective
