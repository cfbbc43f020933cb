// Values of chat templates: what JSON has, and what Jinja adds to it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::data::jinja {

/// An operation that a template does with values that do not allow it; whoever knows the line adds
/// it.
struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Value;
using List = std::vector<Value>;

/// Members in the order of their insertion, as in Python.
class Dict {
 public:
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
  const std::vector<std::pair<std::string, Value>>& members() const { return members_; }

 private:
  std::vector<std::pair<std::string, Value>> members_;
};

struct Undefined {
  std::string name;  // of what is not defined
};
struct None {};
/// An object whose members a template may set.
struct Namespace {
  Dict members;
};

struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};
/// A macro, or a function that every template has.
struct Function {
  std::function<Value(const Arguments&)> call;
};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, std::string,
                            std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                            std::shared_ptr<Namespace>, std::shared_ptr<const Function>>;

  Value() : data_(None{}) {}
  Value(Data data) : data_(std::move(data)) {}
  Value(List list) : data_(std::make_shared<const List>(std::move(list))) {}
  Value(Dict dict) : data_(std::make_shared<const Dict>(std::move(dict))) {}
  Value(std::string text) : data_(std::move(text)) {}
  Value(bool flag) : data_(flag) {}
  Value(std::int64_t number) : data_(number) {}
  Value(double number) : data_(number) {}
  static Value undefined(std::string name) { return Data(Undefined{std::move(name)}); }

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_text() const { return is<std::string>(); }
  bool is_list() const { return is<std::shared_ptr<const List>>(); }
  bool is_dict() const { return is<std::shared_ptr<const Dict>>(); }
  /// A number or a boolean, which Python computes with too.
  bool is_number() const { return is<bool>() || is<std::int64_t>() || is<double>(); }
  bool is_whole() const { return is<bool>() || is<std::int64_t>(); }

  // Problems: the value has another type.
  const std::string& text() const;
  const List& list() const;
  const Dict& dict() const;
  std::int64_t whole() const;
  double number() const;
  Namespace* space() const;
  const Function* function() const;

  /// Python's bool().
  bool truth() const;
  /// "a text", "a list", for problems.
  std::string kind() const;
  /// Python's str(); undefined is empty. Problem: a function.
  std::string printed() const;

 private:
  Data data_;
};

bool equal(const Value& a, const Value& b);
/// Negative, 0 or positive. Problem: the types have no order.
int compare(const Value& a, const Value& b);

Value from_json(const nlohmann::ordered_json& json);
/// Python's json.dumps(ensure_ascii=False); `indent` below 0: one line. Problem: what JSON does not
/// have.
std::string to_json(const Value& value, std::int64_t indent);

// Texts as Python has them: positions count characters.
std::int64_t characters(std::string_view text);
/// The byte at which each character begins, and the end.
std::vector<std::size_t> character_starts(std::string_view text);
/// Without the characters of `set` (Python's white space where it is null) at the sides.
std::string_view stripped(std::string_view text, const std::string* set, bool left, bool right);
bool is_space(std::uint32_t character);

}  // namespace tessera::data::jinja
