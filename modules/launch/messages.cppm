// Messages between ranks that another program started, before they share memory.
module tessera.launch:messages;

import tessera.base;
import tessera.ranks;
import :external;

namespace tessera::collective {

/// Introduction of a rank.
struct Hello {
  std::uint64_t protocol;
  std::uint64_t pid_namespace;
  std::uint64_t start;
  std::int32_t process;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t refused;  ///< 1: this rank ends before it joins
};

/// Answer of rank 0. With `memory`, a descriptor comes beside it.
struct Answer {
  enum class State : std::uint32_t {
    memory,   ///< the rank has joined
    wrong,    ///< the rank cannot join, for the reason in `text`, which it prints
    printed,  ///< nobody can join, for the reason in `text`, which rank 0 has printed
    go_on,    ///< to a rank that said that it is refused: it prints its own reason
  };

  std::uint64_t bytes;  ///< of the memory
  State state;
  ErrorKind kind;
  char text[1000];
};

/// Changes with the layout of what the ranks exchange.
std::uint64_t protocol_number();
std::uint64_t own_pid_namespace();
Hello own_hello(const ExternalRank& self, bool refused);
Answer make_answer(Answer::State state, ErrorKind kind, std::string_view text);

/// A socket that listens at the job's address, which has no file. Error (input): another job of
/// that name is starting.
int listen_for_ranks(const ExternalRank& self);
/// A connection to rank 0; -1: nobody listens.
int try_connect(const ExternalRank& self);
bool is_same_user(int socket);
/// Error (input): a process of another user listens at the job's address.
[[noreturn]] void refuse_other_user(const std::string& job);
bool readable_within(int socket, int milliseconds);
void send_answer(int socket, const Answer& answer, int descriptor);
/// Whether an answer came before the connection ended; `descriptor` is -1 when none came with it.
bool receive_answer(int socket, Answer& answer, int& descriptor);

}  // namespace tessera::collective
