export module tessera.text:rank_process;

import tessera.base;
import tessera.collective;

// Ranks in processes of their own, which are started again when one of them dies.

export namespace tessera::text {

/// Messages of numbers between two processes.
class MessageSocket {
 public:
  explicit MessageSocket(int descriptor = -1) : descriptor_(descriptor) {}
  ~MessageSocket();
  MessageSocket(MessageSocket&& other) noexcept;
  MessageSocket& operator=(MessageSocket&& other) noexcept;

  /// False: the other end has gone.
  bool send(std::span<const std::int64_t> message) const;
  /// Nothing: the other end has gone.
  std::optional<std::vector<std::int64_t>> receive() const;

 private:
  int descriptor_;
};

/// What was being computed is lost: the ranks have been started again, and keep nothing of texts.
class RestartedRanks : public std::runtime_error {
 public:
  RestartedRanks() : std::runtime_error("the ranks of the model have been started again") {}
};

/// Ranks that a process of this one launches, as often as one of them dies.
class RankProcess {
 public:
  /// What a rank does; the first one connects by connect_first(). Returns its exit code.
  using Run = std::function<int(collective::World& world, int control)>;

  /// Before this process has threads. After 20 deaths within an hour, or where ranks end by an
  /// input error, they are started no more. Error (run): no process can be started.
  RankProcess(collective::LaunchOptions options, const Run& run);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  /// Waits for the first rank that has started; what it tells of itself is its first message. Error
  /// (run): the ranks have ended, with what they have printed.
  std::vector<std::int64_t> connect();
  /// The answer to a message. Nothing: the rank has died; connect() waits for the next one.
  std::optional<std::vector<std::int64_t>> call(std::span<const std::int64_t> message);
  /// Whether there will be no ranks any more: connect() has found that, or who launches them has
  /// ended.
  bool ended() const;

 private:
  int control_ = -1;
  int process_ = -1;
  bool ended_ = false;
  MessageSocket first_;
};

/// The connection of the first rank with the process that uses the ranks. Error (run): it has gone.
MessageSocket connect_first(int control);

/// Numbers and texts in a message.
class MessageWriter {
 public:
  inline void add(std::int64_t value) { message_.push_back(value); }
  void add(double value);
  void add(const std::string& text);
  void add(std::span<const float> values);
  std::vector<std::int64_t> take() { return std::move(message_); }

 private:
  std::vector<std::int64_t> message_;
};

/// The same, read in that order from a message of this program.
class MessageReader {
 public:
  /// The message must outlive it.
  explicit MessageReader(std::span<const std::int64_t> message) : left_(message) {}
  std::int64_t number();
  double real();
  std::string text();
  /// As many as were added.
  std::vector<float> floats();
  std::span<const std::int64_t> rest() const { return left_; }

 private:
  std::span<const std::int64_t> take(std::size_t count);

  std::span<const std::int64_t> left_;
};

}  // namespace tessera::text
