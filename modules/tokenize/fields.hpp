// A JSON object of a tokenizer's file, read field by field. What no read asked for is an error, so
// that nothing of a file is ignored in silence.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>

namespace tessera::tokenize {

class Fields {
 public:
  /// `where` begins the errors (input) and ends with the object's path: "t.json: normalizer".
  /// Error: not an object.
  Fields(const nlohmann::json& object, std::string where);

  /// Null and absent are the same: each returns `otherwise`.
  bool flag(const std::string& name, bool otherwise);
  std::int64_t integer(const std::string& name, std::int64_t low, std::int64_t high,
                       std::int64_t otherwise);
  std::string text(const std::string& name, const std::string& otherwise);
  // Errors: the field is missing.
  std::string text(const std::string& name);
  char32_t character(const std::string& name);
  std::string choice(const std::string& name, std::initializer_list<std::string_view> choices);
  /// A list or an object.
  const nlohmann::json& list(const std::string& name);
  const nlohmann::json& object(const std::string& name);

  /// The value, or null where there is none.
  const nlohmann::json* find(const std::string& name);
  bool has(const std::string& name) { return find(name) != nullptr; }
  /// Fields that change nothing here.
  void ignore(std::initializer_list<std::string_view> names);

  std::string path(const std::string& name) const { return where_ + "." + name; }
  const std::string& where() const { return where_; }
  [[noreturn]] void wrong(const std::string& name, const std::string& expected) const;
  /// Error: a field that no read asked for has a value.
  void finish() const;

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string, std::less<>> read_;
};

/// The value as an error shows it.
std::string json_shown(const nlohmann::json& value);

}  // namespace tessera::tokenize
