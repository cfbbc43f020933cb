module;
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/secret_file.hpp>
#include <tessera/shown.hpp>
#include <tessera/utf8.hpp>
module tessera.app.server;

import tessera.base;

namespace tessera::app {
namespace {

constexpr std::size_t largest_token_file = 4096;  // the header of a request has room for it

/// In a time that does not depend on where they differ.
bool same_secret(std::string_view sent, std::string_view secret) {
  unsigned difference = sent.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    difference |= static_cast<unsigned char>(sent[i] ^ secret[i % secret.size()]);
  }
  return difference == 0;
}

/// "name", "name:port", "[address]:port": the name. Nothing: it is none of them.
std::optional<std::string_view> without_port(std::string_view authority) {
  const std::size_t bracket = authority.find(']');
  const std::size_t colon = authority.find(
      ':', authority.starts_with('[') && bracket != std::string_view::npos ? bracket : 0);
  if (colon == std::string_view::npos) {
    return authority;
  }
  const std::string_view port = authority.substr(colon + 1);
  if (port.size() > 5 || port.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  return authority.substr(0, colon);
}

bool names_this_machine(std::string_view authority) {
  const auto host = without_port(authority);
  return host && is_local(*host);
}

bool has_token(const HttpHead& head, const std::string& token) {
  constexpr std::string_view scheme = "bearer ";
  const std::string* const sent = head.header("authorization");
  return sent != nullptr && sent->size() > scheme.size() &&
         lower_case(std::string_view(*sent).substr(0, scheme.size())) == scheme &&
         same_secret(without_blanks(std::string_view(*sent).substr(scheme.size())), token);
}

/// Pages of other machines, and pages without an origin of their own ("null").
bool is_foreign_page(const std::string& origin) {
  const std::size_t colons = origin.find("://");
  const std::string scheme = lower_case(std::string_view(origin).substr(0, colons));
  if (colons == std::string::npos) {
    return true;
  }
  return (scheme == "http" || scheme == "https") &&
         !names_this_machine(std::string_view(origin).substr(colons + 3));
}

bool is_json(const HttpHead& head) {
  const std::string* const type = head.header("content-type");
  return type != nullptr &&
         lower_case(without_blanks(std::string_view(*type).substr(0, type->find(';')))) ==
             "application/json";
}

}  // namespace

std::string read_token(const std::string& path) {
  const auto refuse = [&](const std::string& wrong, const std::string& advice) {
    fail_input({.thing = shown(path), .wrong = wrong, .advice = advice});
  };
  const SecretFile file =
      read_secret_file(path, {.most = largest_token_file, .links = true, .of_root = true});
  if (!file.wrong.empty()) {
    refuse("the file of the token " + file.wrong,
           file.open_to_all ? fmt::format("run: chmod 600 {}", shell_word(path)) : "");
  }
  const std::string_view all = file.bytes;
  const std::string token(without_blanks(all.substr(0, all.find('\n'))));
  if (token.empty()) {
    refuse("the first line of the file of the token is empty", "write the token there");
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7F'; };
  if (std::ranges::any_of(token, is_control)) {
    refuse("the token contains a control character, which no client can send",
           "use letters and digits");
  }
  return token;
}

bool is_local(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    in6_addr address = {};
    return inet_pton(AF_INET6, std::string(host).c_str(), &address) == 1 &&
           IN6_IS_ADDR_LOOPBACK(&address);
  }
  const std::string name = lower_case(host.substr(0, host.size() - (host.ends_with('.') ? 1 : 0)));
  in_addr four = {};
  in6_addr six = {};
  return name == "localhost" ||
         (inet_pton(AF_INET, name.c_str(), &four) == 1 && (ntohl(four.s_addr) >> 24) == 127) ||
         (inet_pton(AF_INET6, name.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six));
}

std::optional<HttpProblem> access_problem(const HttpHead& head, const std::string& token) {
  if (!token.empty()) {
    if (!has_token(head, token)) {
      return HttpProblem{401, "the token is missing or wrong"};
    }
  } else {
    const std::string* const host = head.header("host");  // HTTP/1.0 need not have it
    if (host != nullptr && !names_this_machine(*host)) {
      return HttpProblem{403, "the request is for another host"};
    }
    if (const std::string* origin = head.header("origin");
        origin != nullptr && is_foreign_page(*origin)) {
      return HttpProblem{403, "pages of other machines may not use the model"};
    }
  }
  if (head.method == "POST" && !is_json(head)) {
    return HttpProblem{415, "the content type must be application/json"};
  }
  return std::nullopt;
}

}  // namespace tessera::app
