// What launchers on several machines say to each other first, and how every message begins.
module tessera.launch:introduction;

import tessera.base;
import tessera.calls;
import tessera.machines;
import :start;

namespace tessera::collective {

/// The first byte of a message between launchers.
enum class Word : std::uint8_t {
  introduction,  ///< of a machine, to machine 0
  refused,       ///< nobody starts, for this reason
  welcome,       ///< all are there: their names and numbers of ranks
  ready,         ///< to machine 0: this one can begin an attempt
  begin,         ///< where the ranks of the attempt meet
  beat,          ///< the launcher is alive
  error,         ///< the first error of a machine
  ended,         ///< to machine 0: all ranks here have ended
  decision,      ///< of machine 0: whether the ranks start again
  stop,          ///< to machine 0: no longer wait for lost machines
  spare,         ///< of a spare machine, to machine 0
  place,         ///< to a spare machine: the number of the one whose place it takes
  over,          ///< to a spare machine: the run has ended
};

/// A message that begins with this word.
Writer message(Word word);

template <class T>
void put_all(Writer& writer, const std::vector<T>& values) {
  writer.put(static_cast<std::uint64_t>(values.size()));
  for (const T& value : values) {
    writer.put(value);
  }
}

template <class T>
std::vector<T> get_all(Reader& reader) {
  std::vector<T> values(reader.count<std::uint64_t>(sizeof(T)));
  for (T& value : values) {
    value = reader.get<T>();
  }
  return values;
}

/// What a connection between launchers is for.
inline constexpr std::string_view launchers_meet = "launchers meet";

/// Error: it is none.
ErrorKind get_error_kind(Reader& reader);
/// A name, or a text of several lines, that is shown: with nothing that a terminal would obey.
std::string get_name(Reader& reader);
std::string get_error_text(Reader& reader);
/// The first error of another machine. Error: it names a rank that is none of `ranks`.
FirstError get_first_error(Reader& reader, int ranks);

/// The steps of the states that a launcher has: of its own ranks, and of those of the one before.
struct HeldSteps {
  std::vector<std::int64_t> own{};
  std::vector<std::int64_t> of_other{};
};
void put_held(Writer& writer, const HeldSteps& held);
HeldSteps get_held(Reader& reader);

/// The newest step of which the state of every machine is in its own memory or in that of the next
/// one; -1: there is none. `held`: by machine.
std::int64_t newest_common(const std::vector<HeldSteps>& held);

/// What a spare machine says first.
std::string spare_text();
/// Why it cannot serve this launcher, that of machine 0; empty: it can. `host`: its name. Nothing:
/// the text is of something else.
std::optional<std::string> objection_to_spare(std::string_view text, const std::string& host);

/// What a launcher says of itself.
struct Introduction {
  std::uint64_t protocol = 0;  ///< see protocol_number
  std::string job;             ///< TESSERA_JOB
  LauncherPlace place;
  int ranks = 0;     ///< of the world
  int here = 0;      ///< that it starts
  std::string name;  ///< of its machine: "1 (beta)"
  int attempts = 0;  ///< that it has seen
  HeldSteps held;
  /// See LaunchOptions.
  std::vector<std::pair<std::string, std::string>> agreed;
  std::vector<std::pair<std::string, std::string>> agreed_at_start;

  /// Of this process.
  Introduction(const LaunchOptions& options, int attempts, HeldSteps held);
  /// As read() finds it.
  Introduction() = default;
  std::string text() const;
  /// Nothing: the text is something else than an introduction. Of another version of Tessera it
  /// has the protocol only, and its name is `host`.
  static std::optional<Introduction> read(std::string_view text, const std::string& host);

  /// Why `theirs` cannot start with this launcher, that of machine 0; empty: it can. `begun`:
  /// there was an attempt, so that what must be the same at a start need not be.
  std::string objection(const Introduction& theirs, bool begun) const;
};

}  // namespace tessera::collective
