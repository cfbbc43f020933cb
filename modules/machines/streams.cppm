export module tessera.machines:streams;

import tessera.base;
import :proof;
import :sockets;

export namespace tessera::collective {

/// Short messages over one connection, in both directions, without waiting. Each has a checksum:
/// one that was changed on the way ends the connection.
class MessageStream {
 public:
  /// A message longer than `longest` bytes ends the connection; so does an other end that does not
  /// read what is sent.
  explicit MessageStream(ProvenLink link, std::size_t longest = std::size_t{1} << 20);

  /// Queues a message.
  void send(std::string_view message);
  /// Moves what can be moved. False: the connection has ended; messages that came before it can be
  /// received.
  bool progress();
  /// The next message that has arrived whole.
  std::optional<std::string> receive();
  /// Whether everything that was sent has left.
  inline bool flushed() const { return out_.empty(); }
  /// Why the connection has ended.
  inline const std::string& why() const { return why_; }
  inline const Socket& socket() const { return link_.socket; }
  /// The numeric address of the other end, also when the connection has ended.
  inline const std::string& host() const { return host_; }

 private:
  void end(std::string_view why);

  std::string host_;
  ProvenLink link_;
  std::size_t longest_;
  std::string in_;
  std::string out_;
  std::string why_;
};

/// Asked after every piece and at least every twentieth of a second: whether to go on.
using GoOn = std::function<bool()>;

/// Sends bytes that are in several places, and their checksum; or receives them. False: the
/// connection or the caller has ended it. Error: they were changed on the way.
bool send_sealed(ProvenLink& link, std::span<const std::span<const std::byte>> places,
                 const GoOn& go_on);
bool receive_sealed(ProvenLink& link, std::span<const std::span<std::byte>> places,
                    const GoOn& go_on);

}  // namespace tessera::collective
