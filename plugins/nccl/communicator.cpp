#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "library.hpp"

import tessera.base;
import tessera.device;

#include "communicator.hpp"

namespace tessera::nccl {
namespace {

Config non_blocking() {
  Config config;
  config.blocking = 0;
  return config;
}

}  // namespace

Communicator::Communicator(GroupMember place, const UniqueId& id, bool shares)
    : place_(std::move(place)) {
  place_.device.make_current();
  try {
    // The first one of a process also opens the network. It returns before the others have called
    // it.
    const auto [result, made] = place_.device.watch().call(
        "ncclCommInitRankConfig",
        [id, shares, size = place_.size, rank = place_.rank](const cuda::WatchedThread& watched) {
          Config config = non_blocking();
          config.split_share = shares ? 1 : 0;
          Comm comm = nullptr;
          const Result begun = api().comm_init_rank_config(watched, &comm, size, id, rank, &config);
          return std::pair(begun, comm);
        });
    comm_ = made;
    wait_until_accepted("ncclCommInitRankConfig", result);
  } catch (...) {
    abort();
    throw;
  }
}

Communicator::Communicator(Communicator& same_members, WaitCheck check)
    : place_{same_members.place_.device, same_members.place_.members, same_members.place_.rank,
             same_members.place_.size, std::move(check)} {
  place_.device.make_current();
  Config config = non_blocking();
  same_members.call("ncclCommSplit", [&](Comm from) {
    return api().comm_split(from, 0, place_.rank, &comm_, &config);
  });
  try {
    wait_until_accepted("ncclCommSplit", Result::in_progress);
  } catch (...) {
    abort();
    throw;
  }
}

Communicator::~Communicator() {
  if (aborted_) {
    return;
  }
  try {
    call("ncclCommFinalize", [](Comm comm) { return api().comm_finalize(comm); });
    place_.device.watch().end(
        "ncclCommDestroy",
        [comm = comm_](const cuda::WatchedThread& watched) { api().comm_destroy(watched, comm); });
  } catch (const std::exception&) {  // the run has failed, and says why
    abort();
  }
}

Comm Communicator::handle() const {
  if (aborted_ || comm_ == nullptr) {
    fail({.thing = "NCCL", .wrong = "the communicator of " + place_.members + " was aborted"});
  }
  return comm_;
}

void Communicator::call(std::string_view name, const std::function<Result(Comm)>& function) {
  const std::lock_guard lock(calls_);
  place_.device.make_current();
  Result result = Result::success;
  {
    const std::lock_guard guard(handle_);
    result = function(handle());
  }
  wait_until_accepted(name, result);
}

void Communicator::wait_until_accepted(std::string_view name, Result result) {
  constexpr auto pause = std::chrono::microseconds(50);
  for (int looks = 0; result == Result::in_progress; ++looks) {
    if (looks > 0) {
      place_.check();
      std::this_thread::sleep_for(pause);
    }
    const std::lock_guard guard(handle_);
    const Result asked = api().comm_get_async_error(handle(), &result);
    result = asked == Result::success ? result : asked;
  }
  if (result != Result::success) {
    fail_call(name, result);
  }
}

std::string Communicator::words(Result result) const {
  const char* const text = api().get_error_string(result);
  const char* const last = api().get_last_error(comm_);
  return fmt::format("{}{}{}", text == nullptr ? "unknown error" : text,
                     last == nullptr || *last == '\0' ? "" : ": ", last == nullptr ? "" : last);
}

void Communicator::fail_call(std::string_view name, Result result) {
  ErrorFields error = {
      .thing = "collectives 'cuda'",
      .wrong = fmt::format("{} of {} fails: {}", name, place_.members, words(result))};
  if (result == Result::invalid_usage) {
    error.advice =
        "give each rank a GPU of its own (train.device = \"cuda\"), or set "
        "mesh.device_collectives = \"host\"";
    fail_input(std::move(error));
  }
  error.advice = "run again with NCCL_DEBUG=WARN for NCCL's own report";
  fail(std::move(error));
}

void Communicator::abort() noexcept {
  Comm comm = nullptr;
  {
    const std::lock_guard guard(handle_);
    aborted_ = true;
    comm = std::exchange(comm_, nullptr);
  }
  if (comm != nullptr) {
    place_.device.watch().leave(
        [comm](const cuda::WatchedThread& watched) { api().comm_abort(watched, comm); });
  }
}

std::string Communicator::failure() {
  const std::lock_guard guard(handle_);
  if (aborted_ || comm_ == nullptr) {
    return {};
  }
  Result result = Result::success;
  const Result asked = api().comm_get_async_error(comm_, &result);
  result = asked == Result::success ? result : asked;
  if (result == Result::success || result == Result::in_progress) {
    return {};
  }
  return fmt::format("NCCL, {}: {}", place_.members, words(result));
}

}  // namespace tessera::nccl
