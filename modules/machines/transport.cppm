export module tessera.machines:transport;

import tessera.base;
import tessera.plugin;

export namespace tessera::collective {

/// How messages move between machines: what a plugin of the kind "transport" provides. It knows
/// neither groups nor calls. One object for each rank of a world over several machines; the world
/// makes one thread for it, which calls everything but the constructor.
class MessageTransport {
 public:
  static constexpr plugin::Kind plugin_kind{"transport"};

  /// Bytes that a message is taken from or received into.
  struct Part {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  /// Receives the reports of the transport, in calls from `progress`.
  class Receiver {
   public:
    Receiver() = default;
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;
    virtual ~Receiver();
    /// The head of a message has arrived. Heads of one sender arrive in the order in which they
    /// were sent. Returns where its parts belong, as many and as large as they were sent; `arrived`
    /// is called with `token` when all of them are there (also when there are none).
    virtual std::vector<Part> arrive(int from, std::span<const std::byte> head,
                                     std::uint64_t& token) = 0;
    virtual void arrived(std::uint64_t token) = 0;
    /// The parts of a sent message may be overwritten.
    virtual void sent(std::uint64_t token) = 0;
    /// No more messages can be exchanged with this rank.
    virtual void lost(int rank, std::string_view why) = 0;
  };

  MessageTransport() = default;
  MessageTransport(const MessageTransport&) = delete;
  MessageTransport& operator=(const MessageTransport&) = delete;
  virtual ~MessageTransport();

  /// Meets all ranks and gives each the texts of all, by rank. Called first. Error (input): the
  /// ranks that it meets are not `size`, or this one is not `rank` among them.
  virtual std::vector<std::string> exchange(int rank, int size, std::string_view text) = 0;
  /// Begins to send. The parts stay as they are until `sent` is called with `token`. Never waits
  /// for the receiver.
  virtual void send(int to, std::vector<std::byte> head, std::span<const Part> parts,
                    std::uint64_t token) = 0;
  /// Moves messages, without waiting. Returns whether anything has moved.
  virtual bool progress(Receiver& receiver) = 0;
  /// Called last. `orderly`: all ranks call it, and every message has arrived; otherwise other
  /// ranks may be gone, and it must not wait for them.
  virtual void finish(bool orderly) = 0;
};

}  // namespace tessera::collective
