// mpi: messages between machines by plain MPI-3. The ranks are those of MPI_COMM_WORLD. All calls
// come from one thread, which also initialises MPI (MPI_THREAD_FUNNELED). Heads have one tag and
// are taken in their order; parts have another, and their receives are posted in the order of the
// heads, so that each meets its message.
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.collective;

namespace {

using tessera::collective::MessageTransport;

constexpr int head_tag = 1;
constexpr int part_tag = 2;

std::string text_of(int error) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(error, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

void check(int error, const char* what) {
  if (error != MPI_SUCCESS) {
    tessera::fail(
        {.thing = "transport mpi", .wrong = std::string(what) + " failed: " + text_of(error)});
  }
}

class Mpi final : public MessageTransport {
 public:
  std::vector<std::string> exchange(int rank, int size, std::string_view text) override {
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int own = -1;
    int all = 0;
    MPI_Comm_rank(world_, &own);
    MPI_Comm_size(world_, &all);
    if (own != rank || all != size) {
      tessera::fail_input(
          {.thing = "transport mpi",
           .wrong = "MPI has other ranks than the run",
           .expected = "rank " + std::to_string(rank) + " of " + std::to_string(size),
           .got = "rank " + std::to_string(own) + " of " + std::to_string(all),
           .advice = "start the ranks with the mpirun of the MPI that the plugin is built for"});
    }
    heads_.resize(static_cast<std::size_t>(size));
    return gather(text, size);
  }

  void send(int to, std::vector<std::byte> head, std::span<const Part> parts,
            std::uint64_t token) override {
    SendRequest& message = sending_.emplace_back(SendRequest{token, to, std::move(head), {}});
    message.requests.resize(1 + parts.size(), MPI_REQUEST_NULL);
    int error = MPI_Isend(message.head.data(), static_cast<int>(message.head.size()), MPI_BYTE, to,
                          head_tag, world_, message.requests.data());
    for (std::size_t i = 0; i < parts.size() && error == MPI_SUCCESS; ++i) {
      error = MPI_Isend(parts[i].data, static_cast<int>(parts[i].bytes), MPI_BYTE, to, part_tag,
                        world_, &message.requests[i + 1]);
    }
    if (error != MPI_SUCCESS) {
      failed_.emplace_back(to, text_of(error));
    }
  }

  bool progress(Receiver& receiver) override {
    bool moved = probe();
    for (std::size_t from = 0; from < heads_.size(); ++from) {
      moved |= take_heads(static_cast<int>(from), receiver);
    }
    moved |= std::erase_if(receiving_, [&](ReceiveRequest& message) {
               return complete(message.requests, message.from) &&
                      (receiver.arrived(message.token), true);
             }) != 0;
    moved |=
        std::erase_if(sending_, [&](SendRequest& message) {
          return complete(message.requests, message.to) && (receiver.sent(message.token), true);
        }) != 0;
    for (const auto& [rank, why] : std::exchange(failed_, {})) {
      receiver.lost(rank, why);
    }
    return moved;
  }

  void finish(bool orderly) override {
    if (orderly) {
      MPI_Comm_free(&world_);
      MPI_Finalize();
    }
    // Otherwise the process ends without: MPI_Finalize would wait for ranks that are gone.
  }

 private:
  struct SendRequest {
    std::uint64_t token;
    int to;
    std::vector<std::byte> head;
    std::vector<MPI_Request> requests;
  };
  struct Head {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct ReceiveRequest {
    std::uint64_t token;
    int from;
    std::vector<MPI_Request> requests;
  };

  std::vector<std::string> gather(std::string_view text, int size) {
    int longest = static_cast<int>(text.size());
    check(MPI_Allreduce(MPI_IN_PLACE, &longest, 1, MPI_INT, MPI_MAX, world_), "MPI_Allreduce");
    const auto width = static_cast<std::size_t>(longest) + 1;
    std::string own(width, '\0');
    std::copy(text.begin(), text.end(), own.begin());
    std::vector<char> all(width * static_cast<std::size_t>(size));
    check(MPI_Allgather(own.data(), static_cast<int>(width), MPI_CHAR, all.data(),
                        static_cast<int>(width), MPI_CHAR, world_),
          "MPI_Allgather");
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < static_cast<std::size_t>(size); ++r) {
      texts.emplace_back(all.data() + r * width);
    }
    return texts;
  }

  /// Begins to receive the heads that are announced.
  bool probe() {
    bool any = false;
    while (true) {
      int found = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      check(MPI_Improbe(MPI_ANY_SOURCE, head_tag, world_, &found, &message, &status),
            "MPI_Improbe");
      if (found == 0) {
        return any;
      }
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      Head& head = heads_[static_cast<std::size_t>(status.MPI_SOURCE)].emplace_back();
      head.bytes.resize(static_cast<std::size_t>(bytes));
      check(MPI_Imrecv(head.bytes.data(), bytes, MPI_BYTE, &message, &head.request), "MPI_Imrecv");
      any = true;
    }
  }

  /// Hands over the heads of one rank that are complete, in their order.
  bool take_heads(int from, Receiver& receiver) {
    std::deque<Head>& heads = heads_[static_cast<std::size_t>(from)];
    bool any = false;
    while (!heads.empty()) {
      int done = 0;
      if (MPI_Test(&heads.front().request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0) {
        break;
      }
      const Head head = std::move(heads.front());
      heads.pop_front();
      ReceiveRequest message{0, from, {}};
      const std::vector<Part> places = receiver.arrive(from, head.bytes, message.token);
      message.requests.resize(places.size(), MPI_REQUEST_NULL);
      for (std::size_t i = 0; i < places.size(); ++i) {
        check(MPI_Irecv(places[i].data, static_cast<int>(places[i].bytes), MPI_BYTE, from, part_tag,
                        world_, &message.requests[i]),
              "MPI_Irecv");
      }
      receiving_.push_back(std::move(message));
      any = true;
    }
    return any;
  }

  bool complete(std::vector<MPI_Request>& requests, int other) {
    int done = 0;
    const int error =
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (error != MPI_SUCCESS) {
      failed_.emplace_back(other, text_of(error));
      return false;
    }
    return done != 0;
  }

  MPI_Comm world_ = MPI_COMM_NULL;
  std::list<SendRequest> sending_;
  std::list<ReceiveRequest> receiving_;
  std::vector<std::deque<Head>> heads_;  // by sender
  std::vector<std::pair<int, std::string>> failed_;
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<MessageTransport>("mpi", [] { return std::make_unique<Mpi>(); });
}
