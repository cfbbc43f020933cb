// Two ends of connections on this machine. Include it after the imports.
#pragma once

namespace run_keys {

/// A connection without anything of ours: what a stranger has.
class Raw {
 public:
  /// `from`: the address that it comes from.
  explicit Raw(int port, const char* from = "127.0.0.1")
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    REQUIRE(inet_pton(AF_INET, from, &address.sin_addr) == 1);
    REQUIRE(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  explicit Raw(tessera::collective::Socket socket) : socket_(socket.release()) {}
  Raw(Raw&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;
  ~Raw() { close(socket_); }

  int descriptor() const { return socket_; }
  void send(std::string_view bytes) const {
    ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  /// What has come; `ended`: and nothing more comes.
  std::string received(bool* ended = nullptr) const {
    std::string all;
    std::array<char, 65536> room{};
    ssize_t got = 0;
    while ((got = recv(socket_, room.data(), room.size(), MSG_DONTWAIT)) > 0) {
      all.append(room.data(), static_cast<std::size_t>(got));
    }
    if (ended != nullptr) {
      *ended = got == 0;
    }
    return all;
  }

 private:
  int socket_;
};

inline tessera::collective::Gate gate_with(const tessera::collective::RunKey& key,
                                           const std::string& purpose = "test") {
  return tessera::collective::Gate(tessera::collective::listen_at({"127.0.0.1"}, 0), key,
                                   {purpose});
}

/// A connection that begins to prove itself at this port.
inline tessera::collective::Proof proof_at(int port, const tessera::collective::RunKey& key,
                                           const std::string& purpose = "test") {
  std::string why;
  tessera::collective::Socket socket = tessera::collective::begin_connect({"127.0.0.1", port}, why);
  REQUIRE(socket.open());
  return {std::move(socket), key, purpose};
}

/// Until `what`, for at most so many seconds.
inline bool until(double seconds, const std::function<bool()>& what) {
  const auto begin = std::chrono::steady_clock::now();
  while (!what()) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > seconds) {
      return false;
    }
    usleep(1000);
  }
  return true;
}

/// Moves a proof to its end; what the gate has let in meanwhile is added.
inline tessera::collective::Proof::State prove(tessera::collective::Proof& proof,
                                               tessera::collective::Gate& gate,
                                               std::vector<tessera::collective::ProvenLink>& in) {
  using State = tessera::collective::Proof::State;
  until(5, [&] {
    for (auto& link : gate.admit()) {
      in.push_back(std::move(link));
    }
    return proof.progress() != State::going;
  });
  return proof.progress();
}

/// The other end of a connection that a proof has made to this listener.
inline Raw accepted(const tessera::collective::Socket& listener,
                    tessera::collective::Proof& proof) {
  tessera::collective::Socket socket;
  REQUIRE(until(5, [&] {
    proof.progress();
    return (socket = tessera::collective::accept_from(listener)).open();
  }));
  return Raw(std::move(socket));
}

/// Both ends of a connection whose bytes pass through the test.
struct Relayed {
  tessera::collective::ProvenLink connects;
  tessera::collective::ProvenLink listens;
  Raw to_connects;  // the relay's ends
  Raw to_listens;
  /// Moves what one end has sent to the other one, changed by `change`.
  void pass(const std::function<void(std::string&)>& change = {}) const {
    std::string bytes = to_connects.received();
    if (change) {
      change(bytes);
    }
    to_listens.send(bytes);
    to_connects.send(to_listens.received());
  }
};

inline Relayed relayed(const tessera::collective::RunKey& key) {
  using namespace tessera::collective;
  Gate gate = gate_with(key);
  std::vector<Socket> between = listen_at({"127.0.0.1"}, 0);
  Proof proof = proof_at(between.front().own_end().port, key);
  Raw to_connects = accepted(between.front(), proof);
  Raw to_listens(gate.port());
  std::vector<ProvenLink> in;
  REQUIRE(until(5, [&] {
    to_listens.send(to_connects.received());
    to_connects.send(to_listens.received());
    for (ProvenLink& link : gate.admit()) {
      in.push_back(std::move(link));
    }
    return proof.progress() == Proof::State::proven && in.size() == 1;
  }));
  return {proof.take(), std::move(in.front()), std::move(to_connects), std::move(to_listens)};
}

}  // namespace run_keys
