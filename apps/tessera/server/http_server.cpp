module;
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
module tessera.app.server;

import tessera.base;

namespace tessera::app {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using net::ip::tcp;
using Clock = std::chrono::steady_clock;
using Parser = http::request_parser<http::string_body>;

constexpr std::string_view first_bytes = "HTTP/1.1 ";  // of every answer
// A client that is still sending may need so long to see why it was refused.
constexpr std::chrono::seconds linger_time{2};
constexpr std::size_t linger_bytes = std::size_t{16} << 20;
constexpr std::size_t chunk_line_bytes = 8192;  // of a chunk's header, or of the trailers

/// The address, as far as one client cannot choose among many of them.
using AddressKey = std::array<unsigned char, 16>;

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

HttpHead head_of(const Parser& parser) {
  const auto& message = parser.get();
  HttpHead head;
  const auto text = [](const auto& view) { return std::string(view.data(), view.size()); };
  head.method = text(message.method_string());
  const std::string target = text(message.target());
  head.path = target.substr(0, target.find('?'));
  head.http_1_1 = message.version() == 11;
  for (const auto& field : message) {
    head.headers.push_back({lower_case(text(field.name_string())), text(field.value())});
  }
  return head;
}

std::string header_text(const HttpAnswer& answer, bool chunked, bool with_length, bool keeps) {
  const auto reason =
      http::obsolete_reason(http::int_to_status(static_cast<unsigned>(answer.status)));
  std::string text = fmt::format("{}{} {}\r\nContent-Type: {}\r\n", first_bytes, answer.status,
                                 std::string_view(reason.data(), reason.size()), answer.type);
  for (const HttpHeader& header : answer.headers) {
    text += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  if (with_length) {
    text += fmt::format("Content-Length: {}\r\n", answer.body.size());
  } else if (chunked) {
    text += "Transfer-Encoding: chunked\r\n";
  }
  return text + (keeps ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

}  // namespace

/// What the thread of the server has.
class HttpServer::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(const HttpLimits& most, HttpService& answers) : limits(most), service(answers) {}
  ~Core() { end(); }

  void listen(const std::string& host, int port, bool loopback_only);
  void begin() {
    accept();
    thread_ = std::thread([this] { run(); });
  }
  void stop(std::chrono::milliseconds within);
  void end();
  void check() const {
    if (failed_) {
      fail({.thing = "server", .wrong = problem_});
    }
  }
  int port() const { return port_; }
  void remove(const std::shared_ptr<Connection>& connection);

  net::io_context io{1};
  const HttpLimits limits;
  HttpService& service;
  std::array<char, std::size_t{1} << 16> received = {};  // by the read that is in progress
  bool stopping = false;

 private:
  void run();
  void accept();
  void accept_later();
  void add(tcp::socket socket);
  bool drop_one(const AddressKey* of);

  tcp::acceptor acceptor_{io};
  int port_ = 0;
  net::steady_timer retry_{io};
  net::steady_timer last_moment_{io};
  std::set<std::shared_ptr<Connection>> connections_;
  std::map<AddressKey, std::size_t> of_address_;
  std::thread thread_;
  std::string problem_;
  std::atomic<bool> failed_ = false;
};

/// A request and its answer; the copies of a responder own it.
struct HttpResponder::Exchange {
  std::weak_ptr<HttpServer::Core> core;
  std::weak_ptr<HttpServer::Connection> connection;
  std::size_t number = 0;  // of the connection's requests
  std::mutex mutex;
  bool left = false;
  std::atomic<bool> answered = false;
  std::function<void()> on_leave = nullptr;

  ~Exchange();
  void leave();
  /// Calls the function of the connection in the server's thread, while it answers this request.
  template <class Act>
  void post(Act act);
};

/// A client's connection. All of it happens in the server's thread.
class HttpServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Exchange = HttpResponder::Exchange;

  Connection(Core& core, tcp::socket socket, const AddressKey& address)
      : core_(core), socket_(std::move(socket)), timer_(core.io), address_(address) {}

  void begin() { next_request(); }
  const AddressKey& address() const { return address_; }
  /// Whether it has no request that is being answered: it may be dropped for another one.
  bool waits() const { return phase_ != Phase::answer; }
  bool answers(std::size_t number) const { return !waits() && requests_ == number; }
  Clock::time_point since() const { return since_; }
  void close();

  void answer(const HttpAnswer& answer);
  void begin_stream(const HttpAnswer& head, std::string filler);
  void write(const std::string& part);
  void end();
  void fail() { answer(core_.service.error({500, "the request has no answer"})); }

 private:
  enum class Phase { header, body, answer, linger, closed };

  void next_request();
  void advance();
  bool read_header();
  bool read_body();
  bool take_header();
  void dispatch();
  void refuse(const HttpAnswer& answer);
  void refuse(int status, const std::string& text) {
    refuse(core_.service.error({.status = status, .text = text}));
  }

  void wait_to_read();
  void read();
  void received(std::string_view bytes);
  void at_end();
  void ask_whether_there();

  void send(std::string_view text);
  void write_some();
  void all_sent();
  bool keeps() const {
    return keep_ && !core_.stopping && requests_ < core_.limits.requests_of_connection;
  }

  void set_deadline(std::chrono::milliseconds within);
  void clear_deadline() { timer_.expires_at(Clock::time_point::max()); }
  void on_deadline();

  Core& core_;
  tcp::socket socket_;
  net::steady_timer timer_;
  AddressKey address_;
  Phase phase_ = Phase::header;
  Clock::time_point since_ = Clock::now();
  std::string in_;  // received, and not yet used
  bool reading_ = false;
  bool half_closed_ = false;  // the client sends no more
  std::size_t lingered_ = 0;
  std::size_t requests_ = 0;
  // The request.
  std::optional<HeaderScan> scan_;
  std::optional<Parser> parser_;
  HttpHead head_;
  bool keep_ = false;
  // The answer.
  std::weak_ptr<Exchange> exchange_;
  std::string filler_;
  bool first_bytes_sent_ = false;
  bool streams_ = false;
  bool chunked_ = false;
  bool answer_ends_ = false;
  std::string out_;      // to be sent after what is being sent
  std::string sending_;  // from sent_ on
  std::size_t sent_ = 0;
  bool writing_ = false;
};

// A connection's requests.

void HttpServer::Connection::next_request() {
  phase_ = Phase::header;
  since_ = Clock::now();
  scan_.emplace(core_.limits);
  parser_.reset();
  head_ = {};
  first_bytes_sent_ = streams_ = chunked_ = answer_ends_ = false;
  filler_.clear();
  set_deadline(requests_ == 0 ? core_.limits.header_time : core_.limits.idle_time);
  advance();
}

void HttpServer::Connection::advance() {
  if (phase_ == Phase::header && !read_header()) {
    return;
  }
  if (phase_ == Phase::body) {
    static_cast<void>(read_body());
  }
}

/// Whether the header is whole and the body may be read.
bool HttpServer::Connection::read_header() {
  if (in_.empty()) {
    wait_to_read();
    return false;
  }
  if (scan_->size() == 0 && requests_ > 0) {
    set_deadline(core_.limits.header_time);
  }
  if (!scan_->add(std::string_view(in_).substr(scan_->size()))) {
    refuse(scan_->problem().status, scan_->problem().text);
    return false;
  }
  if (!scan_->ended()) {
    wait_to_read();
    return false;
  }
  return take_header();
}

bool HttpServer::Connection::take_header() {
  parser_.emplace();
  parser_->header_limit(std::numeric_limits<std::uint32_t>::max());  // the scan has its own
  parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
  parser_->eager(false);
  error_code error;
  const std::size_t used = parser_->put(net::buffer(in_.data(), scan_->size()), error);
  if (error || used != scan_->size() || !parser_->is_header_done()) {
    refuse(400, "the header is not one of HTTP/1.1 or 1.0");
    return false;
  }
  in_.erase(0, used);
  head_ = head_of(*parser_);
  const auto target = parser_->get().target();
  if (const auto problem = problem_of(head_, {target.data(), target.size()})) {
    refuse(problem->status, problem->text);
    return false;
  }
  if (const auto refusal = core_.service.refusal(head_)) {
    refuse(*refusal);
    return false;
  }
  const auto length = parser_->content_length();
  if (length && *length > core_.limits.body_bytes) {
    refuse(413, "the body is too large");
    return false;
  }
  keep_ = parser_->keep_alive();
  parser_->body_limit(core_.limits.body_bytes);
  parser_->eager(true);
  phase_ = Phase::body;
  set_deadline(core_.limits.body_time);
  if (!parser_->is_done() && in_.empty() && head_.http_1_1 && head_.header("expect") != nullptr) {
    send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return phase_ == Phase::body;
}

bool HttpServer::Connection::read_body() {
  while (!parser_->is_done() && !in_.empty()) {
    error_code error;
    const std::size_t used = parser_->put(net::buffer(in_), error);
    in_.erase(0, used);
    if (error == http::error::need_more) {
      if (in_.size() > chunk_line_bytes) {
        refuse(400, "a line between the chunks of the body is too long");
        return false;
      }
      break;
    }
    if (error) {
      error == http::error::body_limit ? refuse(413, "the body is too large")
                                       : refuse(400, "the chunks of the body are malformed");
      return false;
    }
  }
  if (!parser_->is_done()) {
    wait_to_read();
    return false;
  }
  dispatch();
  return true;
}

void HttpServer::Connection::dispatch() {
  phase_ = Phase::answer;
  clear_deadline();
  ++requests_;
  HttpRequest request;
  static_cast<HttpHead&>(request) = head_;
  request.body = std::move(parser_->get().body());
  const auto exchange = std::make_shared<Exchange>();
  exchange->core = core_.weak_from_this();
  exchange->connection = weak_from_this();
  exchange->number = requests_;
  exchange_ = exchange;
  if (half_closed_) {
    ask_whether_there();
  }
  wait_to_read();  // to see it leave
  core_.service.handle(std::move(request), HttpResponder(exchange));
}

/// The rest of what the client sends is no request.
void HttpServer::Connection::refuse(const HttpAnswer& answer) {
  phase_ = Phase::linger;
  keep_ = false;
  in_.clear();
  set_deadline(linger_time);
  send(header_text(answer, false, true, false) + answer.body);
}

// What a connection receives.

void HttpServer::Connection::wait_to_read() {
  if (reading_ || phase_ == Phase::closed) {
    return;
  }
  if (half_closed_) {
    if (phase_ != Phase::answer) {
      close();
    }
    return;
  }
  reading_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->reading_ = false;
    error ? self->close() : self->read();
  });
}

void HttpServer::Connection::read() {
  if (phase_ == Phase::closed) {
    return;
  }
  error_code error;
  const std::size_t count = socket_.read_some(net::buffer(core_.received), error);
  if (error == net::error::would_block || error == net::error::interrupted) {
    wait_to_read();
  } else if (error == net::error::eof) {
    at_end();
  } else if (error) {
    close();
  } else {
    received({core_.received.data(), count});
  }
}

void HttpServer::Connection::received(std::string_view bytes) {
  if (phase_ == Phase::linger) {
    lingered_ += bytes.size();
    lingered_ > linger_bytes ? close() : wait_to_read();
    return;
  }
  if (phase_ != Phase::answer) {
    in_ += bytes;
    advance();
    return;
  }
  // A further request waits for its turn, or where it is too much to keep, gets no answer.
  keep_ = keep_ && in_.size() + bytes.size() <= core_.limits.header_bytes;
  if (keep_) {
    in_ += bytes;
  }
  wait_to_read();
}

void HttpServer::Connection::at_end() {
  half_closed_ = true;
  if (phase_ != Phase::answer) {
    close();
    return;
  }
  ask_whether_there();
}

/// A client that has closed its connection looks like one that only sends no more. Bytes that the
/// answer has in any case make the system of the former refuse them.
void HttpServer::Connection::ask_whether_there() {
  socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](const error_code& error) {
    if (!error && self->phase_ == Phase::answer) {
      self->close();
    }
  });
  if (answer_ends_) {
    return;  // its last bytes ask
  }
  if (!streams_ && !first_bytes_sent_) {
    first_bytes_sent_ = true;
    send(first_bytes);
  } else if (streams_ && !filler_.empty()) {
    write(filler_);
  }
}

// What a connection sends.

void HttpServer::Connection::answer(const HttpAnswer& answer) {
  if (answer_ends_) {
    return;
  }
  if (streams_) {  // an error after the beginning
    close();
    return;
  }
  std::string text = header_text(answer, false, true, keeps());
  if (head_.method != "HEAD") {
    text += answer.body;
  }
  answer_ends_ = true;
  send(std::string_view(text).substr(first_bytes_sent_ ? first_bytes.size() : 0));
}

void HttpServer::Connection::begin_stream(const HttpAnswer& head, std::string filler) {
  if (streams_ || answer_ends_) {
    return;
  }
  streams_ = true;
  chunked_ = head_.http_1_1;
  keep_ = keep_ && chunked_;
  filler_ = std::move(filler);
  const std::string text = header_text(head, chunked_, false, keeps());
  send(std::string_view(text).substr(first_bytes_sent_ ? first_bytes.size() : 0));
  if (!head.body.empty()) {
    write(head.body);
  }
}

void HttpServer::Connection::write(const std::string& part) {
  if (!streams_ || answer_ends_ || part.empty()) {
    return;
  }
  if (out_.size() + sending_.size() - sent_ + part.size() > core_.limits.unread_bytes) {
    close();  // it does not read
    return;
  }
  send(chunked_ ? fmt::format("{:x}\r\n{}\r\n", part.size(), part) : part);
}

void HttpServer::Connection::end() {
  if (!streams_ || answer_ends_) {
    return;
  }
  answer_ends_ = true;
  send(chunked_ ? "0\r\n\r\n" : "");
}

void HttpServer::Connection::send(std::string_view text) {
  out_ += text;
  if (!writing_ && phase_ != Phase::closed) {
    if (out_.empty()) {
      all_sent();
      return;
    }
    writing_ = true;
    write_some();
  }
}

void HttpServer::Connection::write_some() {
  if (sent_ == sending_.size()) {
    sent_ = 0;
    sending_.clear();
    sending_.swap(out_);
  }
  if (phase_ == Phase::answer) {
    set_deadline(core_.limits.unread_time);
  }
  socket_.async_write_some(net::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = shared_from_this()](const error_code& error, std::size_t count) {
                             if (error || self->phase_ == Phase::closed) {
                               self->close();
                               return;
                             }
                             self->sent_ += count;
                             if (self->sent_ < self->sending_.size() || !self->out_.empty()) {
                               self->write_some();
                               return;
                             }
                             self->writing_ = false;
                             self->all_sent();
                           });
}

void HttpServer::Connection::all_sent() {
  if (phase_ == Phase::answer && !answer_ends_) {
    clear_deadline();
    return;
  }
  if (phase_ == Phase::answer) {
    const bool keeps_on = keeps();
    exchange_.reset();  // what its copies do has no effect any more
    if (keeps_on) {
      next_request();
      return;
    }
    phase_ = Phase::linger;
    in_.clear();
    set_deadline(linger_time);
  }
  if (phase_ == Phase::linger) {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    wait_to_read();  // until the client has read it and closes
  }
}

// How long it may take, and its end.

void HttpServer::Connection::set_deadline(std::chrono::milliseconds within) {
  timer_.expires_after(within);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && self->timer_.expiry() <= Clock::now()) {
      self->on_deadline();
    }
  });
}

void HttpServer::Connection::on_deadline() {
  const bool begun = phase_ == Phase::body || (phase_ == Phase::header && !in_.empty());
  begun ? refuse(408, "the request has not arrived in time") : close();
}

void HttpServer::Connection::close() {
  if (phase_ == Phase::closed) {
    return;
  }
  phase_ = Phase::closed;
  timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  if (const auto exchange = exchange_.lock()) {
    exchange->leave();
  }
  core_.remove(shared_from_this());
}

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
  connection->begin();
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
  core_->listen(host, port, loopback_only);
  core_->begin();
}

HttpServer::~HttpServer() { core_->end(); }

int HttpServer::port() const { return core_->port(); }
void HttpServer::check() const { core_->check(); }
void HttpServer::stop(std::chrono::milliseconds within) { core_->stop(within); }

}  // namespace tessera::app
