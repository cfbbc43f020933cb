module;
#include <boost/asio.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
module tessera.app.server:http_connection;

import tessera.base;
import tessera.app.base;
import :http_message;
import :http_server;

// The connections of a server, with Boost.Asio's sockets and Beast's parser. All that is here
// happens in the server's thread, but for HttpResponder::Exchange.

namespace tessera::app {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;
using Clock = std::chrono::steady_clock;
using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

/// The address, as far as one client cannot choose among many of them.
using AddressKey = std::array<unsigned char, 16>;

/// What the thread of the server has.
class HttpServer::Core {
 public:
  Core(const HttpLimits& most, HttpService& answers) : limits(most), service(answers) {}
  ~Core() { end(); }

  void listen(const std::string& host, int port, bool loopback_only);
  void begin();
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
  // Not enable_shared_from_this, whose friend Clang 19 does not emit for a class of a partition.
  std::weak_ptr<Core> self;

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

/// A client's connection.
class HttpServer::Connection {
 public:
  using Exchange = HttpResponder::Exchange;

  Connection(Core& core, tcp::socket socket, const AddressKey& address)
      : core_(core), socket_(std::move(socket)), timer_(core.io), address_(address) {}

  void begin(const std::shared_ptr<Connection>& self) {
    self_ = self;
    next_request();
  }
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
  std::weak_ptr<Connection> self_;  // each operation that waits keeps it
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

}  // namespace tessera::app
