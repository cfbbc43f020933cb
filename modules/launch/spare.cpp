module;
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <utility>
module tessera.launch;

import tessera.base;
import tessera.machines;
import :introduction;
import :start;

namespace tessera::collective {
namespace {

/// Nothing passes for hours: the system must look whether the other end is still there.
void keep_alive(const Socket& socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket.descriptor(), level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);   // seconds
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);  // seconds
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

/// What machine 0 says; nothing: the connection has ended.
std::optional<std::string> answer_on(ProvenLink link) {
  keep_alive(link.socket);
  MessageStream first(std::move(link));
  first.send(spare_text());
  while (true) {
    const bool alive = first.progress();
    if (std::optional<std::string> answer = first.receive(); answer || !alive) {
      return answer;
    }
    pollfd waiting{first.socket().descriptor(), POLLIN, 0};
    poll(&waiting, 1, 1000);
  }
}

}  // namespace

std::optional<int> wait_as_spare(const std::string& meet) {
  const Endpoint at = parse_endpoint("--meet", meet);
  const RunKey key = run_key({.host = at.host});
  while (true) {
    Patience patience;
    ProofFailure failure;
    const std::string& why = failure.why;
    std::optional<ProvenLink> link;
    while (!(link = connect_proven(at, key, launchers_meet, 2, failure))) {
      refuse_other_key(at, failure);
      if (!patience.look([&] {
            return fmt::format("launch: machine 0 does not listen at {} ({})", meet, why);
          })) {
        fail({.thing = "launch",
              .wrong = fmt::format("machine 0 cannot be reached at {} within {:.4g} s ({})", meet,
                                   patience.limit(), why),
              .advice = "start the spare machine when the run has started"});
      }
      poll(nullptr, 0, 100);
    }
    const std::optional<std::string> answer = answer_on(std::move(*link));
    if (!answer) {
      continue;  // machine 0 is lost; another one may come in its place
    }
    Reader reader(*answer);
    switch (reader.get<Word>()) {
      case Word::place:
        return reader.get<int>();
      case Word::over:
        return std::nullopt;
      case Word::refused: {
        const ErrorKind kind = get_error_kind(reader);
        throw Error(get_error_text(reader), kind);
      }
      default:
        fail("launch: machine 0 answers something else");
    }
  }
}

}  // namespace tessera::collective
