// Values of chat templates: what JSON has, and what Jinja adds to it.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/utf8.hpp>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/budget.hpp"

namespace tessera::data::jinja {

class Value;
using List = std::vector<Value>;

/// What a value that is shared takes from a budget, as long as it exists. Values within values are
/// destroyed and compared recursively: their depth is bounded when they are made.
class Node {
 public:
  Node(Budget* budget, std::size_t bytes, int depth);  // Problem: too deep, or no memory left
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  int depth() const { return depth_; }

 private:
  Budget* budget_;  // null: of a constant of the template
  std::size_t bytes_;
  int depth_;
};

/// Members in the order of their insertion, as in Python.
class Dict {
 public:
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
  const std::vector<std::pair<std::string, Value>>& members() const { return members_; }

 private:
  std::vector<std::pair<std::string, Value>> members_;
  std::unordered_map<std::string, std::size_t> places_;  // where there are many members
};

struct None {};
struct Undefined {
  std::shared_ptr<const std::string> name;  // of what is not defined
};

/// What a sequence is in Python, which decides what can be done with it.
enum class SequenceKind : std::uint8_t { list, tuple, generator, range, keys, values, items };

struct Text;
struct Sequence;
struct Object;
struct BigNumber;
struct Callable;
struct Loop;
struct Namespace;

struct Arguments {
  List values;
  std::vector<std::pair<std::string, Value>> named;
};

class Value {
 public:
  /// Namespaces belong to the run: they may contain themselves.
  using Data = std::variant<Undefined, None, bool, std::int64_t, double,
                            std::shared_ptr<const Text>, std::shared_ptr<const Sequence>,
                            std::shared_ptr<const Object>, std::shared_ptr<const BigNumber>,
                            std::shared_ptr<const Callable>, std::shared_ptr<Loop>, Namespace*>;

  Value() : data_(None{}) {}
  Value(Data data) : data_(std::move(data)) {}
  Value(bool flag) : data_(flag) {}
  Value(std::int64_t number) : data_(number) {}
  Value(double number) : data_(number) {}
  static Value undefined(std::string name);
  // Constants of a template; what a run makes is charged to its budget (make_text and others).
  static Value constant(std::string text);
  /// A whole number from its digits, of any size.
  static Value whole_number(const std::string& digits, Budget* budget = nullptr);

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_text() const { return is<std::shared_ptr<const Text>>(); }
  bool is_sequence() const { return is<std::shared_ptr<const Sequence>>(); }
  bool is_form(SequenceKind form) const;
  bool is_dict() const { return is<std::shared_ptr<const Object>>(); }
  bool is_big() const { return is<std::shared_ptr<const BigNumber>>(); }
  /// A number or a boolean, which Python computes with too; not a big one.
  bool is_number() const { return is<bool>() || is<std::int64_t>() || is<double>(); }
  bool is_whole() const { return is<bool>() || is<std::int64_t>(); }
  /// A text that `safe` or `escape` made: further operations with it would escape others.
  bool is_markup() const;

  // Problems: the value has another type.
  const std::string& text() const;
  const Sequence& sequence() const;
  const Dict& dict() const;
  std::int64_t whole() const;
  double number() const;
  const std::string& digits() const;  // of a big number
  Namespace* space() const;
  const Callable* callable() const;
  Loop* loop() const;

  /// Python's bool().
  bool truth() const;
  /// "a text", "a list", for problems.
  std::string kind() const;
  int depth() const;
  /// Whether both are the same object in Python. Problem: numbers and texts, for which Python has
  /// no rule.
  bool same(const Value& other) const;

 private:
  Data data_;
};

struct Text : Node {
  Text(Budget* budget, std::string value, bool is_markup = false);
  std::string text;
  bool markup;
};
struct Sequence : Node {
  Sequence(Budget& budget, List values, SequenceKind kind);
  List entries;
  SequenceKind form;
  std::array<std::int64_t, 3> bounds = {};  // of a range
  mutable bool used = false;                // of a generator, which gives its values once
};
struct Object : Node {
  Object(Budget& budget, Dict values);
  Dict members;
};
struct BigNumber : Node {
  BigNumber(Budget* budget, std::string value);
  std::string digits;  // with their sign, without leading zeros
};
/// A macro, a function that every template has, or a method with its object.
struct Callable : Node {
  using Call = std::function<Value(const Arguments&)>;
  Callable(Budget& budget, std::string called, Call calls, int depth_of_object = 0);
  std::string name;
  Call call;
};
/// `loop` of a {% for %}.
struct Loop : Node {
  Loop(Budget& budget, List values);
  List entries;
  std::size_t at = 0;
};
/// An object whose members a template may set.
struct Namespace {
  Dict members;
};

Value make_text(Budget& budget, std::string text);
Value make_list(Budget& budget, List entries, SequenceKind form = SequenceKind::list);
Value make_dict(Budget& budget, Dict members);

/// Python's str(); undefined is empty. Problem: a function, a generator.
std::string printed(const Value& value, Budget& budget);
/// The same for what is written or joined, without a copy of texts.
void print(const Value& value, Writer& out);

struct JsonStyle {
  bool ascii = false;
  bool indents = false;
  std::string indent = {};
  std::string item = ", ";
  std::string member = ": ";
  bool sorts = false;
};
/// Python's json.dumps. Problem: what JSON does not have.
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);
/// What a text of JSON that has been checked has; whole numbers of any size as they are.
Value from_json(std::string_view json, Budget& budget);

bool equal(const Value& a, const Value& b, Budget& budget);
/// Negative, 0 or positive. Problem: the types have no order.
int compare(const Value& a, const Value& b, Budget& budget);

// Texts as Python has them: positions count characters.
class Characters {
 public:
  Characters(std::string_view text, Budget& budget);
  std::size_t size() const { return starts_.empty() ? text_.size() : starts_.size() - 1; }
  std::string_view operator[](std::size_t i) const {
    return starts_.empty() ? text_.substr(i, 1)
                           : text_.substr(starts_[i], starts_[i + 1] - starts_[i]);
  }

 private:
  std::string_view text_;
  std::vector<std::size_t> starts_;  // of a text that is not ASCII, and its end
};
/// Where `what` begins at or after `from`, or npos; in time proportional to the text.
std::size_t find(std::string_view text, std::string_view what, std::size_t from, Budget& budget);
/// Without the characters of `set` (Python's white space where it is null) at the sides.
std::string_view stripped(std::string_view text, const std::string* set, bool left, bool right);
bool is_space(std::uint32_t character);
std::uint32_t character_at(std::string_view text, std::size_t at);

}  // namespace tessera::data::jinja
