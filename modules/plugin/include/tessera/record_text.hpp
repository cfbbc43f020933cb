// A record as JSON in one line, written value by value: for plugins that are sources.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::sources {

/// Appends values to a text. The caller opens and closes objects and lists in pairs, and gives each
/// member of an object a name; commas are written where they belong.
class RecordText {
 public:
  explicit RecordText(std::string& to) : to_(to) {}

  void open_object();
  void close_object();
  void open_list();
  void close_list();
  /// Of the next value, a member of the object that is open.
  void name(std::string_view name);
  /// Bytes that are not UTF-8 stay as they are; the record is then a bad one.
  void text(std::string_view text);
  void number(std::int64_t value);
  void number(std::uint64_t value);
  /// The shortest digits that give the value. Throws std::domain_error for what JSON does not have:
  /// infinity and what is not a number.
  void number(double value);
  void truth(bool value);
  void null();

 private:
  void begin();
  void quoted(std::string_view text);

  std::string& to_;
  bool follows_ = false;  // another value of the same object or list
};

}  // namespace tessera::sources
