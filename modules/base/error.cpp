module;
#include <fmt/format.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
module tessera.base;

namespace tessera {

int exit_code_of(ErrorKind kind) {
  return kind == ErrorKind::input ? 2 : kind == ErrorKind::run ? 1 : 130;
}

std::string to_string(const ErrorFields& fields) {
  std::string text;
  const auto lead = [&](const std::string& part) {
    if (!part.empty()) {
      text += part + ": ";
    }
  };
  lead(fields.where);
  std::string module;
  if (fields.module) {
    module = fields.module->empty() ? "the model" : fmt::format("module '{}'", *fields.module);
    lead(module + (fields.backward ? ", backward" : ""));
  }
  // These two echo what came from outside: names, paths and values.
  constexpr std::size_t longest = 400;
  const std::string got = shown(fields.got, longest);
  lead(fields.thing == module ? "" : shown(fields.thing, longest));
  text += fields.wrong;
  if (!fields.expected.empty() && !got.empty()) {
    text += fmt::format(" (expected {}, got {})", fields.expected, got);
  } else if (!fields.expected.empty()) {
    text += fmt::format(" (expected {})", fields.expected);
  } else if (!got.empty()) {
    text += fmt::format(" (got {})", got);
  }
  if (!fields.advice.empty()) {
    text += "; " + fields.advice;
  }
  if (!fields.details.empty()) {
    text += "\n" + fields.details;
  }
  return text;
}

Error::Error(ErrorFields fields, ErrorKind kind)
    : std::runtime_error(terminal_text(to_string(fields))),
      kind_(kind),
      fields_(std::make_shared<const ErrorFields>(std::move(fields))) {}

Error::Error(const std::string& text, ErrorKind kind) : Error(ErrorFields{.wrong = text}, kind) {}

ErrorKind Error::kind() const noexcept { return kind_; }

const ErrorFields& Error::fields() const noexcept { return *fields_; }

void fail(const std::string& text) { throw Error(text, ErrorKind::run); }
void fail(ErrorFields fields) { throw Error(std::move(fields), ErrorKind::run); }

void fail_input(const std::string& text) { throw Error(text, ErrorKind::input); }
void fail_input(ErrorFields fields) { throw Error(std::move(fields), ErrorKind::input); }

void fail_at(const std::string& where, const Error& error) {
  ErrorFields fields = error.fields();
  if (fields.where.empty()) {
    fields.where = where;
  }
  fail_input(std::move(fields));
}

}  // namespace tessera
