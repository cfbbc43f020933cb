module;
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tessera/limits.hpp>
#include <thread>
#include <utility>
module tessera.app.server;

import tessera.base;
import :http_connection;

namespace tessera::app {
namespace {

AddressKey key_of(const net::ip::address& address) {
  AddressKey key = {};
  if (address.is_v4()) {
    std::ranges::copy(address.to_v4().to_bytes(), key.begin() + 8);
    return key;
  }
  const auto bytes = address.to_v6().to_bytes();
  const bool mapped = address.to_v6().is_v4_mapped();
  std::ranges::copy(mapped ? std::span(bytes).last(4) : std::span(bytes).first(8),
                    mapped ? key.begin() + 8 : key.begin());
  return key;
}

}  // namespace

// All connections.

void HttpServer::Core::listen(const std::string& host, int port, bool loopback_only) {
  const rlim_t needed = limits.connections + 128;  // the model's files, and the ranks'
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < needed && files.rlim_max >= needed) {
    files.rlim_cur = needed;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (files.rlim_cur < needed) {
    fail_input({.thing = "--connections",
                .wrong = fmt::format("{} connections need more open files than are allowed",
                                     limits.connections),
                .expected = fmt::format("at most {}",
                                        files.rlim_cur - std::min<rlim_t>(files.rlim_cur, 128)),
                .advice = "raise `ulimit -n`"});
  }
  error_code error;
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  const std::string name = bracketed ? host.substr(1, host.size() - 2) : host;
  const auto found = tcp::resolver(io).resolve(
      name, std::to_string(port), tcp::resolver::passive | tcp::resolver::numeric_service, error);
  for (const auto& one : found) {
    const tcp::endpoint end = one.endpoint();
    if (loopback_only && !end.address().is_loopback()) {
      error = net::error::access_denied;
      continue;
    }
    error = {};
    acceptor_.close(error);
    acceptor_.open(end.protocol(), error);
    if (!error) {
      error_code ignored;
      acceptor_.set_option(net::socket_base::reuse_address(true), ignored);
      acceptor_.bind(end, error);
    }
    if (!error) {
      acceptor_.listen(net::socket_base::max_listen_connections, error);
    }
    if (!error) {
      port_ = acceptor_.local_endpoint().port();
      return;
    }
  }
  fail_input(
      {.thing = fmt::format("{}:{}", host, port),
       .wrong = fmt::format("the server cannot listen at this address ({})", error.message()),
       .advice = "choose another --port; another program may use it"});
}

void HttpServer::Core::begin() {
  accept();
  thread_ = start_thread("the server", [this] { run(); });
}

void HttpServer::Core::run() {
  try {
    io.run();
  } catch (const std::exception& error) {
    problem_ = error.what();
    failed_ = true;
  }
}

void HttpServer::Core::accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    if (stopping || error == net::error::operation_aborted) {
      return;
    }
    if (!error) {
      add(std::move(socket));
    } else if (error != net::error::connection_aborted) {
      drop_one(nullptr);  // no file or memory is left
      accept_later();
      return;
    }
    accept();
  });
}

void HttpServer::Core::accept_later() {
  retry_.expires_after(std::chrono::milliseconds(20));
  retry_.async_wait([this](const error_code& error) {
    if (!error && !stopping) {
      accept();
    }
  });
}

void HttpServer::Core::add(tcp::socket socket) {
  error_code error;
  const tcp::endpoint end = socket.remote_endpoint(error);
  if (!error) {
    socket.non_blocking(true, error);
  }
  if (error) {
    return;  // it has gone
  }
  const AddressKey address = key_of(end.address());
  const auto own = of_address_.find(address);
  const bool full_of_own = own != of_address_.end() && own->second >= limits.connections_of_address;
  if ((full_of_own && !drop_one(&address)) ||
      (connections_.size() >= limits.connections && !drop_one(nullptr))) {
    return;  // all of them have requests
  }
  socket.set_option(tcp::no_delay(true), error);
  const auto connection = std::make_shared<Connection>(*this, std::move(socket), address);
  connections_.insert(connection);
  ++of_address_[address];
  connection->begin(connection);
}

/// Drops the connection that has waited for the longest time, of this address or of the one that
/// has most of those that wait: so another client gets in, whatever one address does.
bool HttpServer::Core::drop_one(const AddressKey* of) {
  AddressKey most = {};
  if (of == nullptr) {
    std::map<AddressKey, std::size_t> waiting;
    std::size_t count = 0;
    for (const auto& one : connections_) {
      if (one->waits() && ++waiting[one->address()] > count) {
        count = waiting[one->address()];
        most = one->address();
      }
    }
    of = &most;
  }
  std::shared_ptr<Connection> oldest;
  for (const auto& one : connections_) {
    if (one->waits() && one->address() == *of &&
        (oldest == nullptr || one->since() < oldest->since())) {
      oldest = one;
    }
  }
  if (oldest != nullptr) {
    oldest->close();
  }
  return oldest != nullptr;
}

void HttpServer::Core::remove(const std::shared_ptr<Connection>& connection) {
  if (connections_.erase(connection) == 0) {
    return;
  }
  const auto own = of_address_.find(connection->address());
  if (--own->second == 0) {
    of_address_.erase(own);
  }
  if (stopping && connections_.empty()) {
    last_moment_.cancel();
  }
}

void HttpServer::Core::stop(std::chrono::milliseconds within) {
  net::post(io, [this, within] {
    stopping = true;
    error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    const auto all = connections_;
    for (const auto& one : all) {
      if (one->waits()) {
        one->close();
      }
    }
    if (!connections_.empty()) {
      last_moment_.expires_after(within);
      last_moment_.async_wait([this](const error_code& error) {
        if (!error) {
          io.stop();
        }
      });
    }
  });
  if (thread_.joinable()) {
    thread_.join();
  }
}

void HttpServer::Core::end() {
  if (thread_.joinable()) {
    stop(std::chrono::milliseconds(0));
  }
  // Connections that an io_context destroys would look for this object.
  const auto all = std::exchange(connections_, {});
  for (const auto& one : all) {
    one->close();
  }
}

// The exchange, from any thread.

template <class Act>
void HttpResponder::Exchange::post(Act act) {
  if (const auto server = core.lock()) {
    net::post(server->io, [to = connection, of = number, act = std::move(act)]() mutable {
      if (const auto there = to.lock(); there && there->answers(of)) {
        act(*there);
      }
    });
  }
}

HttpResponder::Exchange::~Exchange() {
  if (answered || left) {
    return;
  }
  post([](HttpServer::Connection& there) { there.fail(); });
}

void HttpResponder::Exchange::leave() {
  std::function<void()> act;
  {
    const std::lock_guard lock(mutex);
    left = true;
    act = std::exchange(on_leave, nullptr);
  }
  if (act) {
    act();
  }
}

void HttpResponder::answer(HttpAnswer answer) const {
  exchange_->answered = true;
  exchange_->post([answer = std::move(answer)](HttpServer::Connection& to) { to.answer(answer); });
}

void HttpResponder::begin(HttpAnswer head, std::string filler) const {
  exchange_->answered = true;
  exchange_->post(
      [head = std::move(head), filler = std::move(filler)](HttpServer::Connection& to) mutable {
        to.begin_stream(head, std::move(filler));
      });
}

void HttpResponder::write(std::string part) const {
  exchange_->post([part = std::move(part)](HttpServer::Connection& to) { to.write(part); });
}

void HttpResponder::end() const {
  exchange_->post([](HttpServer::Connection& to) { to.end(); });
}

void HttpResponder::on_leave(std::function<void()> act) const {
  {
    const std::lock_guard lock(exchange_->mutex);
    if (!exchange_->left) {
      exchange_->on_leave = std::move(act);
      return;
    }
  }
  act();
}

HttpServer::HttpServer(const std::string& host, int port, bool loopback_only,
                       const HttpLimits& limits, HttpService& service)
    : core_(std::make_shared<Core>(limits, service)) {
  core_->self = core_;
  core_->listen(host, port, loopback_only);
  core_->begin();
}

HttpServer::~HttpServer() { core_->end(); }

int HttpServer::port() const { return core_->port(); }
void HttpServer::check() const { core_->check(); }
void HttpServer::stop(std::chrono::milliseconds within) { core_->stop(within); }

}  // namespace tessera::app