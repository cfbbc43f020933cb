export module tessera.machines:wire;

import tessera.base;
import tessera.ranks;
import :transport;

export namespace tessera::collective {

/// Bytes of a head, written and read by one program on machines of one kind.
class Writer {
 public:
  template <class T>
  inline void put(const T& value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof(T));
  }
  void put(std::string_view text);
  void append(const void* data, std::size_t size);
  /// The bytes written so far, in place.
  inline std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::vector<std::byte> bytes;
};
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  explicit Reader(std::string_view text)
      : bytes_(reinterpret_cast<const std::byte*>(text.data()), text.size()) {}
  template <class T>
  inline T get() {
    T value;
    take(&value, sizeof(T));
    return value;
  }
  std::string text();
  /// The next bytes, in place.
  std::span<const std::byte> take(std::size_t size);
  /// A number, of type N, of things that follow and have at least `each` bytes. Error: they are not
  /// there.
  template <class N>
  inline std::size_t count(std::size_t each) {
    return there(static_cast<std::uint64_t>(get<N>()), each);
  }

 private:
  void take(void* to, std::size_t size);
  std::size_t there(std::uint64_t count, std::size_t each) const;
  std::span<const std::byte> bytes_;
};

/// Topic of a message: the first byte of its head.
enum class Topic : std::uint8_t {
  call,       ///< a rank has issued a call: what it publishes, and the data that the machine reads
  result,     ///< the second phase of a call: the reduced piece
  message,    ///< from one rank of a group to another
  state,      ///< what a rank does: progress, waits, the flight recorder
  error,      ///< the first error of a machine
  interrupt,  ///< a request to stop
  printed,    ///< the error is on stderr
  ended,      ///< a rank has ended
};

/// A message to be sent. `owned` lives until it has left.
struct OutgoingMessage {
  int to = -1;
  std::vector<std::byte> head{};
  std::vector<MessageTransport::Part> parts{};
  std::function<void()> left{};
  std::shared_ptr<const void> owned{};
};

/// Writes the name of a group: its ranks and its own name.
void put_group(Writer& writer, GroupBlock& group);

/// Parts of at least this size are received where they belong; smaller ones travel in the head.
inline constexpr std::size_t large_part = std::size_t{32} << 10;
inline constexpr std::size_t largest_part = std::size_t{512} << 20;

/// A range of bytes that a call publishes, relative to a base: the ranges of one base keep their
/// distances on the other machine.
struct PartRange {
  std::uint32_t base = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

}  // namespace tessera::collective
