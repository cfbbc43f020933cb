// A rank of a launch by another program that fails before it has joined.
module;
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
module tessera.launch;

import tessera.base;
import tessera.ranks;
import :external;
import :start;
import :messages;
import :runner;

namespace tessera::collective {
namespace {

/// Ranks that fail for the same reason fail within this time.
constexpr double patience = 3;

std::atomic<bool>& met() {
  static std::atomic<bool> flag{false};
  return flag;
}

/// Tells rank 0 that this rank is refused. Whether rank 0 is refused as well, and has printed why.
bool printed_by_first(const ExternalRank& self) {
  Stopwatch watch;
  Pause pause;
  int socket = -1;
  while ((socket = try_connect(self)) < 0) {
    if (watch.waited() > patience) {
      return false;
    }
    pause.sleep();
  }
  Answer answer{};
  int descriptor = -1;
  const Hello hello = own_hello(self, true);
  const bool answered = is_same_user(socket) &&
                        send(socket, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello) &&
                        readable_within(socket, static_cast<int>(1000 * patience)) &&
                        receive_answer(socket, answer, descriptor);
  if (descriptor >= 0) {
    close(descriptor);
  }
  close(socket);
  return answered && answer.state == Answer::State::printed;
}

}  // namespace

void note_meeting() { met() = true; }

void turn_away(const ExternalRank& self, int missing, std::string_view text, ErrorKind kind) {
  const Answer answer = make_answer(Answer::State::printed, kind, text);
  int listener = -1;
  try {
    listener = listen_for_ranks(self);
  } catch (const Error&) {
    return;  // another job has the name: there is nobody to tell
  }
  Stopwatch watch;
  std::set<int> told;
  while (static_cast<int>(told.size()) < missing && watch.waited() < patience) {
    if (!readable_within(listener, 50)) {
      continue;
    }
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) {
      continue;
    }
    Hello hello{};
    if (is_same_user(socket) && readable_within(socket, 500) &&
        recv(socket, &hello, sizeof(hello), 0) == sizeof(hello) &&
        hello.protocol == protocol_number()) {
      send_answer(socket, answer, -1);
      told.insert(hello.rank);
    }
    close(socket);
  }
  close(listener);
}

void report_refusal(std::string_view text, ErrorKind kind, const std::function<void()>& print,
                    const MachineOptions& said) {
  const std::optional<ExternalRank> self = met() ? std::nullopt : reachable_rank(said);
  if (!self || self->several) {
    if (self && self->rank != 0) {
      usleep(1'500'000);  // rank 0 may fail too, and its launcher then ends this one
    }
    if (met() || speaks_for_machine(said)) {
      print();
    }
    return;
  }
  if (self->rank == 0) {
    print();
    turn_away(*self, self->size - 1, text, kind);
  } else if (!printed_by_first(*self)) {
    print();
  }
}

}  // namespace tessera::collective
