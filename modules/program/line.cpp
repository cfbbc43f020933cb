module;
#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
module tessera.program;

import tessera.base;
import :line;

namespace tessera {

bool Line::take(std::string_view literal) {
  if (!rest_.starts_with(literal)) {
    return false;
  }
  rest_.remove_prefix(literal.size());
  return true;
}

void Line::expect(std::string_view literal) {
  if (!take(literal)) {
    refuse(fmt::format("'{}'", literal));
  }
}

std::string_view Line::until(std::string_view end) {
  const std::size_t at = rest_.find(end);
  if (at == std::string_view::npos) {
    refuse(fmt::format("'{}' after it", end));
  }
  const std::string_view word = rest_.substr(0, at);
  rest_.remove_prefix(at + end.size());
  return word;
}

std::string_view Line::all() { return std::exchange(rest_, std::string_view()); }

template <class T>
T Line::number() {
  T value{};
  const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
  if (error != std::errc()) {
    refuse("a number");
  }
  rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
  return value;
}
template int Line::number<int>();
template std::int64_t Line::number<std::int64_t>();
template std::uint64_t Line::number<std::uint64_t>();
template double Line::number<double>();

void Line::end() const {
  if (!ended()) {
    fail_input(fmt::format("'{}' follows what the line says", shown()));
  }
}

void Line::refuse(std::string expected) const {
  fail_input({.wrong = "the line is wrong",
              .expected = std::move(expected),
              .got = fmt::format("'{}'", shown())});
}

void Line::check_version() {
  constexpr std::string_view version = "2";
  const std::string_view whole = rest_;
  if (!take("tessera program ")) {
    fail_input({.wrong = "this is not a program",
                .expected = fmt::format("'tessera program {}'", version),
                .got = fmt::format("'{}'", whole.substr(0, 40))});
  }
  if (rest_ != version) {
    fail_input({.wrong = "the program has another version of the format",
                .expected = fmt::format("version {}", version),
                .got = fmt::format("version {}", rest_.substr(0, 40)),
                .advice = "record the step again with this Tessera"});
  }
}

std::string_view Line::shown() const {
  return rest_.empty() ? "the end of the line" : rest_.substr(0, 40);
}

}  // namespace tessera
