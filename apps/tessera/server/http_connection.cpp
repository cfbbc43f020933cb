module;
#include <fmt/format.h>

#include <boost/asio.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
module tessera.app.server;

import tessera.base;
import :http_connection;

namespace tessera::app {
namespace {

namespace http = boost::beast::http;

constexpr std::string_view first_bytes = "HTTP/1.1 ";  // of every answer
// A client that is still sending may need so long to see why it was refused.
constexpr std::chrono::seconds linger_time{2};
constexpr std::size_t linger_bytes = std::size_t{16} << 20;
constexpr std::size_t chunk_line_bytes = 8192;  // of a chunk's header, or of the trailers

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
  exchange->core = core_.self;
  exchange->connection = self_;
  exchange->number = requests_;
  exchange_ = exchange;
  if (half_closed_) {
    ask_whether_there();
  }
  wait_to_read();  // to see it leave
  core_.service.handle(std::move(request), HttpResponder(exchange));
}

/// The rest of what the client sends is not a request.
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
  socket_.async_wait(tcp::socket::wait_read, [self = self_.lock()](const error_code& error) {
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
  socket_.async_wait(tcp::socket::wait_error, [self = self_.lock()](const error_code& error) {
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
                           [self = self_.lock()](const error_code& error, std::size_t count) {
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
  timer_.async_wait([self = self_.lock()](const error_code& error) {
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
  core_.remove(self_.lock());
}

}  // namespace tessera::app
