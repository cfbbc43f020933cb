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

/// The addresses at which machine 0 listens for others that meet at `host`: those of the host. An
/// empty list is all addresses, where a name leads here to nothing but loopback (as in Debian's
/// /etc/hosts) and TESSERA_INTERFACE names no interface. Error (input): the host is not known.
std::vector<std::string> meeting_addresses(const std::string& host);
/// The addresses at which a process listens beside such a meeting: those of the interface that
/// TESSERA_INTERFACE names, or `own_address`, the end here of a connection to the meeting; empty:
/// it is where that is. Error (input): there is no such interface.
std::vector<std::string> addresses_beside(const std::string& own_address, const std::string& host);
/// Where others connect to this machine: an address of the interface that TESSERA_INTERFACE names;
/// empty: they see it.
std::string announced_address();
/// From here on this process and those that it forks are reached by this interface, or address,
/// unless TESSERA_INTERFACE names another one; "": as if there had been no call.
void use_interface(const std::string& name);
/// Error (input), about `thing`: this machine has no interface or address of this name.
void check_interface(const std::string& thing, const std::string& name);
/// Whether only processes of the same machine reach this host: localhost, or such an address.
bool is_local_host(const std::string& host);

/// Listens at these addresses of this machine (none: at all), at one port; port 0: any free one.
/// Error (input): the port is in use, this user may not have it, or no address is this machine's.
std::vector<Socket> listen_at(const std::vector<std::string>& addresses, int port);
/// A connection to this listener; not open where there is none.
Socket accept_from(const Socket& listener);
/// Begins to connect to a numeric address. Not open: it failed at once, for the reason `why`.
Socket begin_connect(const Endpoint& numeric, std::string& why);
/// Connects, and waits for at most `seconds`. Not open: it failed, for the reason `why`.
Socket connect_within(const Endpoint& to, double seconds, std::string& why);

}  // namespace tessera::collective
