module;
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tessera/limits.hpp>
#include <tessera/shown.hpp>
#include <thread>
#include <utility>
#include <vector>
module tessera.machines;

import tessera.base;
import tessera.plugin;
import tessera.ranks;
import tessera.calls;
import :bridge;
import :mirror;
import :transport;
import :wire;

namespace tessera::collective {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<MessageTransport>();

using Clock = std::chrono::steady_clock;

constexpr std::size_t longest_error = 1 << 16;
constexpr std::size_t longest_name = 200;

}  // namespace

MessageTransport::Receiver::~Receiver() = default;
MessageTransport::~MessageTransport() = default;

struct Bridge::Thread {
  std::thread thread;
};

struct Bridge::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<OutgoingMessage> outbox;
  std::vector<std::string> met;
  std::exception_ptr refused;
  bool has_met = false;
  bool attached = false;
  bool finishing = false;
  bool ended = false;
  std::atomic<std::uint64_t> posted{0};
  std::atomic<std::uint64_t> left{0};
};

Bridge::Bridge(MakeTransport make, int rank, int size)
    : make_(std::move(make)),
      rank_(rank),
      size_(size),
      thread_(std::make_unique<Thread>()),
      shared_(std::make_unique<Shared>()) {}

Bridge::~Bridge() {
  if (thread_->thread.joinable()) {
    {
      const std::lock_guard guard(shared_->mutex);
      shared_->finishing = true;
    }
    shared_->changed.notify_all();
    thread_->thread.join();
  }
}

const Machines& Bridge::meet(std::uint64_t protocol, std::string_view machine, double timeout,
                             double report_after) {
  const std::string text = fmt::format("{:016x} {}", protocol, machine);
  thread_->thread = start_thread("launch", [this, text] {
    try {
      transport_ = make_();
      std::vector<std::string> met = transport_->exchange(rank_, size_, text);
      const std::lock_guard guard(shared_->mutex);
      shared_->met = std::move(met);
      shared_->has_met = true;
    } catch (...) {
      const std::lock_guard guard(shared_->mutex);
      shared_->refused = std::current_exception();
    }
    shared_->changed.notify_all();
    run();
  });
  std::unique_lock lock(shared_->mutex);
  Patience patience(timeout, report_after);
  const auto what = [&] {
    return fmt::format("launch: the {} ranks did not all meet through the transport", size_);
  };
  bool came = false;
  do {
    came = shared_->changed.wait_for(lock, std::chrono::milliseconds(250), [&] {
      return shared_->has_met || shared_->refused != nullptr;
    });
  } while (!came && patience.look(what));
  if (shared_->refused != nullptr) {
    try {
      std::rethrow_exception(shared_->refused);
    } catch (const Error& error) {  // it may be another rank's text
      const std::string told = error.what();
      if (const std::string safe = shown(told, longest_error); safe != told) {
        throw Error(safe, error.kind());
      }
      throw;
    }
  }
  if (!came) {
    thread_->thread.detach();  // it waits in the transport, which cannot be told to stop
    fail({.thing = "launch",
          .wrong = fmt::format("the {} ranks did not meet within {:.4g} s", size_, timeout),
          .advice = "are all of them started, on machines that reach each other?"});
  }
  std::vector<std::string> names;
  for (const std::string& other : shared_->met) {
    if (other.substr(0, std::min<std::size_t>(other.size(), 17)) != text.substr(0, 17)) {
      fail_input({.thing = "launch",
                  .wrong = "the machines run different versions of Tessera",
                  .advice = "install the same on all"});
    }
    names.push_back(terminal_line(other.substr(17), longest_name));
  }
  machines_ = std::make_unique<const Machines>(names);
  return *machines_;
}

void Bridge::attach(std::shared_ptr<Region> region, bool watch) {
  {
    const std::lock_guard guard(shared_->mutex);
    region_ = std::move(region);
    control_ = reinterpret_cast<Control*>(region_->base());
    mirror_ = std::make_unique<Mirror>(region_, *machines_, rank_);
    watch_ = watch;
    shared_->attached = true;
  }
  shared_->changed.notify_all();
}

void Bridge::run() {
  prctl(PR_SET_TIMERSLACK, 1000);  // short sleeps are short
  {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait(lock, [&] { return shared_->attached || shared_->finishing; });
    if (!shared_->attached) {
      return;
    }
  }
  try {
    serve();
  } catch (const std::exception& error) {
    control_->publish_error(rank_, error.what(), ErrorKind::run);
  }
  try {
    transport_->finish(all_ended());  // after an error too: nobody leaves before it is printed
  } catch (const std::exception& error) {
    log(LogLevel::warning, fmt::format("transport: {}", error.what()));
  }
  {
    const std::lock_guard guard(shared_->mutex);
    shared_->ended = true;
  }
  shared_->changed.notify_all();
}

void Bridge::serve() {
  constexpr double grace = 2;  // seconds in which messages about an error reach the others
  std::int64_t failed_at = 0;
  while (true) {
    bool finishing = false;  // first: what was noted before it is told to the others below
    {
      const std::lock_guard guard(shared_->mutex);
      finishing = shared_->finishing;
    }
    bool moved = send_posted();
    moved |= transport_->progress(*this);
    moved |= mirror_->apply();
    forward();
    if (finishing) {
      const bool quiet = !moved && shared_->posted.load() == shared_->left.load();
      if (quiet && sent_.ended && all_ended()) {
        return;
      }
      if (control_->failed.load() != 0) {
        failed_at = failed_at == 0 ? steady_nanoseconds() : failed_at;
        if (static_cast<double>(steady_nanoseconds() - failed_at) * 1e-9 > grace) {
          return;
        }
      }
    }
    idle(moved);
  }
}

void Bridge::idle(bool moved) {
  const std::int64_t now = steady_nanoseconds();
  if (moved) {
    moved_at_ = now;
    return;
  }
  if (now - moved_at_ < 100'000) {
    sched_yield();
    return;
  }
  // Data may come at any time while a rank waits for it; otherwise this thread leaves the core to
  // the ranks.
  const bool waits = control_->ranks()[rank_].waiting_for.load(std::memory_order_relaxed) >= 0 ||
                     !leaving_.empty();
  std::unique_lock lock(shared_->mutex);
  if (shared_->outbox.empty()) {
    shared_->changed.wait_for(lock, std::chrono::microseconds(waits ? 30 : 300));
  }
}

void Bridge::post(OutgoingMessage&& message) {
  shared_->posted.fetch_add(1);
  {
    const std::lock_guard guard(shared_->mutex);
    shared_->outbox.push_back(std::move(message));
  }
  shared_->changed.notify_all();
}

bool Bridge::send_posted() {
  std::deque<OutgoingMessage> messages;
  {
    const std::lock_guard guard(shared_->mutex);
    messages.swap(shared_->outbox);
  }
  for (OutgoingMessage& message : messages) {
    const std::uint64_t token = next_token_++;
    std::vector<std::byte> head = std::move(message.head);
    const auto& kept = leaving_.emplace(token, std::move(message)).first->second;
    transport_->send(kept.to, std::move(head), kept.parts, token);
  }
  return !messages.empty();
}

void Bridge::sent(std::uint64_t token) {
  const auto at = leaving_.find(token);
  require(at != leaving_.end(), "transport: it reports a message that was not sent");
  if (at->second.left) {
    at->second.left();
  }
  leaving_.erase(at);
  shared_->left.fetch_add(1);
}

void Bridge::flush() {
  const std::uint64_t posted = shared_->posted.load();
  while (shared_->left.load() < posted && control_->failed.load() == 0) {
    usleep(50);
  }
}

std::vector<MessageTransport::Part> Bridge::arrive(int from, std::span<const std::byte> head,
                                                   std::uint64_t& token) {
  Reader reader(head);
  const auto topic = reader.get<Topic>();
  token = 0;
  switch (topic) {
    case Topic::call:
    case Topic::result:
    case Topic::message:
      return mirror_->arrive(from, topic, reader, token);
    case Topic::state:
      take_state(from, reader);
      break;
    case Topic::error: {
      FirstError error;
      error.rank = reader.get<std::int32_t>();
      error.kind = reader.get<ErrorKind>();
      error.step = reader.get<std::int64_t>();
      const auto gone = reader.get<std::int32_t>();
      const bool known = error.kind == ErrorKind::input || error.kind == ErrorKind::run ||
                         error.kind == ErrorKind::interrupted;
      require(known && error.rank >= -1 && error.rank < size_ && gone >= -1 && gone < size_,
              "transport: an error of another machine names what there is not");
      if (gone >= 0) {
        control_->gone.store(gone);
      }
      const bool in_calls = reader.get<std::uint8_t>() != 0;
      error.where = terminal_line(reader.text(), longest_name);
      error.text = shown(terminal_text(reader.text()), longest_error);
      control_->take_error(error, in_calls);
      break;
    }
    case Topic::interrupt:
      sent_.interrupted = true;
      control_->interrupts.store(1);
      break;
    case Topic::printed:
      sent_.printed = true;
      control_->printed.store(1);
      break;
    case Topic::ended:
      mirror_->ended(from);
      break;
  }
  return {};
}

void Bridge::arrived(std::uint64_t token) {
  if (token != 0) {
    mirror_->arrived(token);
  }
}

void Bridge::lost(int rank, std::string_view why) {
  if (control_->ranks()[rank].ended.load() == 0) {
    control_->gone.store(rank);
    control_->publish_error(
        rank_,
        fmt::format("rank {} on machine '{}' cannot be reached any more ({}); its last call: {}",
                    rank,
                    machines_->names[static_cast<std::size_t>(
                        machines_->of_rank[static_cast<std::size_t>(rank)])],
                    terminal_line(why, longest_name), control_->last_call(*region_, rank)),
        ErrorKind::run, true);
  }
}

bool Bridge::prints_error() {
  if (machine() == 0) {
    usleep(50'000);  // the others tell their last calls
    return true;
  }
  // The first machine needs a moment to learn of the error, print it, and say so.
  const auto limit = Clock::now() + std::chrono::milliseconds(600 + 200 * machine());
  while (Clock::now() < limit) {
    if (control_->printed.load() != 0) {
      return false;
    }
    usleep(1000);
  }
  return true;
}

void Bridge::finish() {
  if (!thread_->thread.joinable()) {
    return;
  }
  {
    const std::lock_guard guard(shared_->mutex);
    shared_->finishing = true;
  }
  shared_->changed.notify_all();
  {
    std::unique_lock lock(shared_->mutex);
    if (control_ != nullptr && control_->failed.load() != 0) {
      // A transport may hang when a rank is gone. The process ends in any case.
      if (!shared_->changed.wait_for(lock, std::chrono::seconds(5),
                                     [&] { return shared_->ended; })) {
        thread_->thread.detach();
        return;
      }
    }
  }
  thread_->thread.join();
}

}  // namespace tessera::collective
