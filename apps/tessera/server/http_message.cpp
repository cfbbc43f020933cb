module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
module tessera.app.server;

namespace tessera::app {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  }
  return lower;
}

const std::string* HttpHead::header(std::string_view name) const {
  const auto found = std::ranges::find(headers, name, &HttpHeader::name);
  return found == headers.end() ? nullptr : &found->value;
}

bool HeaderScan::refuse(int status, const char* text) {
  problem_ = {.status = status, .text = text};
  return false;
}

bool HeaderScan::add_byte(char byte) {
  const bool first_line = lines_ == 0;
  if (++size_ > limits_->header_bytes) {
    return refuse(431, "the header is too large");
  }
  if (byte == '\0' || (last_ == '\r') != (byte == '\n')) {
    return refuse(400, "a line of the header does not end with CR LF, or contains NUL");
  }
  last_ = byte;
  if (byte == '\n') {
    ended_ = in_line_ == 1;  // nothing but the CR
    in_line_ = 0;
    if (ended_ && first_line) {
      return refuse(400, "the request begins with an empty line");
    }
    return ended_ || ++lines_ <= limits_->header_lines ||
           refuse(431, "the header has too many lines");
  }
  if (in_line_++ == 0) {
    const bool letter = (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
    if (first_line && !letter && byte != '\r') {
      return refuse(400, "this is not a request of HTTP");
    }
    if (byte == ' ' || byte == '\t') {
      return refuse(400, "a line of the header begins with a blank");
    }
  }
  if (first_line && in_line_ > limits_->request_line) {
    return refuse(414, "the request line is too long");
  }
  return true;
}

bool HeaderScan::add(std::string_view bytes) {
  for (const char byte : bytes) {
    if (ended_) {
      break;
    }
    if (!add_byte(byte)) {
      return false;
    }
  }
  return true;
}

std::optional<HttpProblem> problem_of(const HttpHead& head, std::string_view target) {
  // Two readers may take another one of two.
  constexpr std::array<std::string_view, 8> once = {
      "authorization", "content-encoding", "content-length",   "content-type", "expect",
      "host",          "origin",           "transfer-encoding"};
  for (const std::string_view name : once) {
    if (std::ranges::count(head.headers, name, &HttpHeader::name) > 1) {
      return HttpProblem{400, fmt::format("the header {} occurs twice", name)};
    }
  }
  const std::string* const length = head.header("content-length");
  const std::string* const encoding = head.header("transfer-encoding");
  if (length != nullptr && encoding != nullptr) {
    return HttpProblem{400, "the body has a length and a transfer encoding"};
  }
  if (length != nullptr && (length->empty() || length->size() > 18 ||
                            length->find_first_not_of("0123456789") != std::string::npos)) {
    return HttpProblem{400, "content-length must be one number"};
  }
  if (encoding != nullptr && (lower_case(*encoding) != "chunked" || !head.http_1_1)) {
    return HttpProblem{head.http_1_1 ? 501 : 400, "the transfer encoding must be chunked"};
  }
  if (const std::string* coding = head.header("content-encoding");
      coding != nullptr && lower_case(*coding) != "identity") {
    return HttpProblem{415, "compressed bodies are not supported"};
  }
  if (const std::string* expected = head.header("expect");
      expected != nullptr && lower_case(*expected) != "100-continue") {
    return HttpProblem{417, "expect must be 100-continue"};
  }
  if (head.http_1_1 && head.header("host") == nullptr) {
    return HttpProblem{400, "the header host is missing"};
  }
  const bool printable = std::ranges::all_of(target, [](char c) { return c > ' ' && c < 0x7F; });
  if (!target.starts_with('/') || !printable || target.find('#') != std::string_view::npos) {
    return HttpProblem{400, "the target of the request must be a path"};
  }
  return std::nullopt;
}

}  // namespace tessera::app
