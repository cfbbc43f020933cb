export module tessera.machines:sockets;

import tessera.base;

export namespace tessera::collective {

/// Where a process listens: HOST:PORT. An IPv6 address is in brackets, as in [::1]:29500.
struct Endpoint {
  std::string host;
  int port = 0;
};
/// Error (input), about `thing`: the text has another form.
Endpoint parse_endpoint(std::string_view thing, std::string_view text);
std::string to_string(const Endpoint& endpoint);

/// A TCP socket whose calls never wait; closed with the object.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  inline bool open() const { return descriptor_ >= 0; }
  inline int descriptor() const { return descriptor_; }
  int release();
  void close();
  /// Its own end, and the other one, with a numeric address; an empty host where the connection has
  /// ended.
  Endpoint own_end() const;
  Endpoint other_end() const;

 private:
  int descriptor_ = -1;
};

/// Whether a numeric address is one that only processes of the same machine reach.
bool is_loopback(const Endpoint& numeric);

/// Listens on all addresses of this machine; port 0: any free one. Error (input): the port is in
/// use, or this user may not have it.
Socket listen_at(int port);
/// A connection to this listener; not open where there is none.
Socket accept_from(const Socket& listener);
/// Begins to connect to a numeric address. Not open: it failed at once, for the reason `why`.
Socket begin_connect(const Endpoint& numeric, std::string& why);
/// Connects, and waits for at most `seconds`. Not open: it failed, for the reason `why`.
Socket connect_within(const Endpoint& to, double seconds, std::string& why);

/// Short messages over one connection, in both directions, without waiting.
class MessageStream {
 public:
  /// A message longer than `longest` bytes ends the connection.
  explicit MessageStream(Socket socket, std::size_t longest = std::size_t{1} << 20);

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
  inline const Socket& socket() const { return socket_; }
  /// The numeric address of the other end, also when the connection has ended.
  inline const std::string& host() const { return host_; }

 private:
  void end(std::string_view why);

  std::string host_;
  Socket socket_;
  std::size_t longest_;
  std::string in_;
  std::string out_;
  std::string why_;
};

}  // namespace tessera::collective
