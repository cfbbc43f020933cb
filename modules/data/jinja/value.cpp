#include "jinja/value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tessera/utf8.hpp>

namespace tessera::data::jinja {
namespace {

[[noreturn]] void wrong_type(const Value& value, const char* expected) {
  throw Problem(fmt::format("expected {}, got {}", expected, value.kind()));
}

template <class T>
const T& pointed(const std::shared_ptr<const T>* pointer, const Value& value,
                 const char* expected) {
  return pointer != nullptr ? **pointer : (wrong_type(value, expected), **pointer);
}

constexpr std::size_t node_bytes = 64;  // of a node besides its contents: counts, the allocation
constexpr std::size_t indexed = 16;     // members from which on an object has an index

int depth_of(const List& values) {
  int depth = 0;
  for (const Value& value : values) {
    depth = std::max(depth, value.depth());
  }
  return depth;
}

int depth_of(const Dict& dict) {
  int depth = 0;
  for (const auto& member : dict.members()) {
    depth = std::max(depth, member.second.depth());
  }
  return depth;
}

std::size_t bytes_of(const Dict& dict) {
  const std::size_t each = sizeof(std::pair<std::string, Value>) +
                           (dict.members().size() > indexed ? 2 * node_bytes : 0);
  std::size_t bytes = node_bytes + dict.members().size() * each;
  for (const auto& member : dict.members()) {
    bytes += member.first.size();
  }
  return bytes;
}

}  // namespace

Node::Node(Budget* budget, std::size_t bytes, int depth)
    : budget_(budget), bytes_(bytes), depth_(depth) {
  if (depth > Limits::depth) {
    throw Problem(
        fmt::format("values are nested too deeply (expected at most {} levels)", Limits::depth));
  }
  if (budget_ != nullptr) {
    budget_->take(bytes_);
  }
}

Node::~Node() {
  if (budget_ != nullptr) {
    budget_->give_back(bytes_);
  }
}

Text::Text(Budget* budget, std::string value, bool is_markup)
    : Node(budget, node_bytes + value.size(), 0), text(std::move(value)), markup(is_markup) {}

Sequence::Sequence(Budget& budget, List values, SequenceKind kind)
    : Node(&budget, node_bytes + values.capacity() * sizeof(Value), depth_of(values) + 1),
      entries(std::move(values)),
      form(kind) {}

Object::Object(Budget& budget, Dict values)
    : Node(&budget, bytes_of(values), depth_of(values) + 1), members(std::move(values)) {}

BigNumber::BigNumber(Budget* budget, std::string value)
    : Node(budget, node_bytes + value.size(), 0), digits(std::move(value)) {}

Callable::Callable(Budget& budget, std::string called, Call calls, int depth_of_object)
    : Node(&budget, 2 * node_bytes + called.size(), depth_of_object + 1),
      name(std::move(called)),
      call(std::move(calls)) {}

Loop::Loop(Budget& budget, List values)
    : Node(&budget, node_bytes + values.capacity() * sizeof(Value), depth_of(values) + 1),
      entries(std::move(values)) {}

const Value* Dict::find(std::string_view name) const {
  if (members_.size() > indexed) {
    const auto found = places_.find(std::string(name));
    return found == places_.end() ? nullptr : &members_[found->second].second;
  }
  const auto at = std::ranges::find(members_, name, &std::pair<std::string, Value>::first);
  return at == members_.end() ? nullptr : &at->second;
}

void Dict::set(const std::string& name, Value value) {
  if (const Value* found = find(name)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  members_.emplace_back(name, std::move(value));
  if (members_.size() == indexed + 1) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      places_.emplace(members_[i].first, i);
    }
  } else if (members_.size() > indexed) {
    places_.emplace(name, members_.size() - 1);
  }
}

Value Value::undefined(std::string name) {
  return Data(Undefined{std::make_shared<const std::string>(std::move(name))});
}

Value Value::constant(std::string text) {
  return Data(std::make_shared<const Text>(nullptr, std::move(text)));
}

Value Value::whole_number(const std::string& digits, Budget* budget) {
  const bool minus = digits.starts_with('-');
  std::string own = digits.substr(minus ? 1 : 0);
  own.erase(0, std::min(own.find_first_not_of('0'), own.size() - 1));
  std::int64_t number = 0;
  for (const char c : own) {
    if (__builtin_mul_overflow(number, std::int64_t{10}, &number) ||
        __builtin_sub_overflow(number, static_cast<std::int64_t>(c - '0'), &number)) {
      return Data(std::make_shared<const BigNumber>(budget, (minus ? "-" : "") + own));
    }
  }
  if (!minus && number == std::numeric_limits<std::int64_t>::min()) {
    return Data(std::make_shared<const BigNumber>(budget, own));
  }
  return minus ? number : -number;
}

bool Value::is_form(SequenceKind form) const { return is_sequence() && sequence().form == form; }

bool Value::is_markup() const {
  const auto* text = std::get_if<std::shared_ptr<const Text>>(&data_);
  return text != nullptr && (*text)->markup;
}

const std::string& Value::text() const {
  return pointed(std::get_if<std::shared_ptr<const Text>>(&data_), *this, "a text").text;
}

const Sequence& Value::sequence() const {
  return pointed(std::get_if<std::shared_ptr<const Sequence>>(&data_), *this, "a list");
}

const Dict& Value::dict() const {
  return pointed(std::get_if<std::shared_ptr<const Object>>(&data_), *this, "an object").members;
}

const std::string& Value::digits() const {
  return pointed(std::get_if<std::shared_ptr<const BigNumber>>(&data_), *this, "a large number")
      .digits;
}

std::int64_t Value::whole() const {
  if (const auto* number = std::get_if<std::int64_t>(&data_)) {
    return *number;
  }
  if (is_big()) {
    throw Problem("a whole number of more than 64 bits can only be written and compared");
  }
  const auto* flag = std::get_if<bool>(&data_);
  return flag != nullptr ? *flag : (wrong_type(*this, "a whole number"), 0);
}

double Value::number() const {
  const auto* number = std::get_if<double>(&data_);
  return number != nullptr ? *number : static_cast<double>(whole());
}

Namespace* Value::space() const {
  const auto* space = std::get_if<Namespace*>(&data_);
  return space == nullptr ? nullptr : *space;
}

const Callable* Value::callable() const {
  const auto* callable = std::get_if<std::shared_ptr<const Callable>>(&data_);
  return callable == nullptr ? nullptr : callable->get();
}

Loop* Value::loop() const {
  const auto* loop = std::get_if<std::shared_ptr<Loop>>(&data_);
  return loop == nullptr ? nullptr : loop->get();
}

bool Value::truth() const {
  if (is_undefined() || is_none()) {
    return false;
  }
  if (is_number()) {
    return number() != 0;
  }
  if (is_text()) {
    return !text().empty();
  }
  if (is_sequence()) {
    return sequence().form == SequenceKind::generator || !sequence().entries.empty();
  }
  return !is_dict() || !dict().members().empty();
}

std::string Value::kind() const {
  if (const auto* undefined = std::get_if<Undefined>(&data_)) {
    return fmt::format("'{}', which is not defined", *undefined->name);
  }
  if (is_sequence()) {
    constexpr std::array names = {"a list",
                                  "a tuple",
                                  "a sequence that is made step by step",
                                  "a range",
                                  "an object's names",
                                  "an object's values",
                                  "an object's members"};
    return names[static_cast<std::size_t>(sequence().form)];
  }
  return is_none()            ? "none"
         : is<bool>()         ? "a boolean"
         : is<std::int64_t>() ? "a whole number"
         : is_big()           ? "a whole number of more than 64 bits"
         : is<double>()       ? "a number"
         : is_text()          ? "a text"
         : is_dict()          ? "an object"
         : space() != nullptr ? "a namespace"
         : loop() != nullptr  ? "a loop"
                              : "a function";
}

int Value::depth() const {
  return std::visit(
      [](const auto& data) {
        if constexpr (requires { data->depth(); }) {
          return data->depth();
        } else {
          return 0;
        }
      },
      data_);
}

bool Value::same(const Value& other) const {
  if (data_.index() != other.data_.index()) {
    return false;
  }
  return std::visit(
      [&](const auto& data) -> bool {
        using Kind = std::decay_t<decltype(data)>;
        const auto& others = std::get<Kind>(other.data_);
        if constexpr (std::is_same_v<Kind, None>) {
          return true;
        } else if constexpr (std::is_same_v<Kind, Undefined>) {
          return data.name == others.name;
        } else if constexpr ((std::is_arithmetic_v<Kind> && !std::is_same_v<Kind, bool>) ||
                             std::is_same_v<Kind, std::shared_ptr<const Text>> ||
                             std::is_same_v<Kind, std::shared_ptr<const BigNumber>>) {
          throw Problem("whether numbers or texts are the same object is not supported; use '=='");
        } else {
          return data == others;
        }
      },
      data_);
}

Value make_text(Budget& budget, std::string text) {
  return Value::Data(std::make_shared<const Text>(&budget, std::move(text)));
}

Value make_list(Budget& budget, List entries, SequenceKind form) {
  return Value::Data(std::make_shared<const Sequence>(budget, std::move(entries), form));
}

Value make_dict(Budget& budget, Dict members) {
  return Value::Data(std::make_shared<const Object>(budget, std::move(members)));
}

namespace {

bool has_equality(SequenceKind form) {
  return form == SequenceKind::list || form == SequenceKind::tuple || form == SequenceKind::range;
}

/// Python's order of numbers of any size.
int compare_numbers(const Value& a, const Value& b) {
  const auto order = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
  if (a.is_big() || b.is_big()) {
    const auto number = [](const Value& x) { return x.is<double>() ? x.number() : 0.0; };
    if (std::isinf(number(a)) || std::isinf(number(b))) {
      return order(number(a), number(b));
    }
    // A fraction is smaller than what has more than 64 bits, so its whole part has the same order.
    const auto digits = [](const Value& x) {
      return x.is_big()       ? x.digits()
             : x.is<double>() ? fmt::format("{:.0f}", std::trunc(x.number()) + 0.0)
                              : fmt::format("{}", x.whole());
    };
    const std::string own = digits(a);
    const std::string other = digits(b);
    const bool minus = own.starts_with('-');
    if (minus != other.starts_with('-')) {
      return minus ? -1 : 1;
    }
    const int size = order(own.size(), other.size());
    const int by_digits = size != 0 ? size : own.compare(other);
    return minus ? -by_digits : by_digits;
  }
  if (a.is_whole() && b.is_whole()) {
    return order(a.whole(), b.whole());
  }
  const auto exact = [](const Value& x) {  // 64 bits fit into a long double
    return x.is_whole() ? static_cast<long double>(x.whole())
                        : static_cast<long double>(x.number());
  };
  return order(exact(a), exact(b));
}

bool is_any_number(const Value& value) { return value.is_number() || value.is_big(); }
bool is_nan(const Value& value) { return value.is<double>() && std::isnan(value.number()); }

}  // namespace

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (is_any_number(a) && is_any_number(b)) {
    return !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
  }
  if (a.is_text() && b.is_text()) {
    budget.read(std::min(a.text().size(), b.text().size()));
    return a.text() == b.text();
  }
  if (a.is_sequence() && b.is_sequence()) {
    const Sequence& own = a.sequence();
    const Sequence& other = b.sequence();
    if (&own == &other) {
      return true;
    }
    if (!has_equality(own.form) && !has_equality(other.form)) {
      throw Problem(fmt::format("{} and {} cannot be compared", a.kind(), b.kind()));
    }
    return own.form == other.form &&
           std::ranges::equal(own.entries, other.entries,
                              [&](const Value& x, const Value& y) { return equal(x, y, budget); });
  }
  if (a.is_dict() && b.is_dict()) {
    const auto& members = a.dict().members();
    return &a.dict() == &b.dict() ||
           (members.size() == b.dict().members().size() &&
            std::ranges::all_of(members, [&](const auto& member) {
              budget.read(member.first.size());
              const Value* other = b.dict().find(member.first);
              return other != nullptr && equal(member.second, *other, budget);
            }));
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined()) ||
         (a.space() != nullptr && a.space() == b.space());
}

int compare(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (is_any_number(a) && is_any_number(b)) {
    if (is_nan(a) || is_nan(b)) {
      throw Problem("a number that is not a number (nan) has no order");
    }
    return compare_numbers(a, b);
  }
  if (a.is_text() && b.is_text()) {
    budget.read(std::min(a.text().size(), b.text().size()));
    return a.text().compare(b.text());
  }
  if (a.is_sequence() && b.is_sequence() && a.sequence().form == b.sequence().form &&
      (a.is_form(SequenceKind::list) || a.is_form(SequenceKind::tuple))) {
    const List& own = a.sequence().entries;
    const List& other = b.sequence().entries;
    for (std::size_t i = 0; i < std::min(own.size(), other.size()); ++i) {
      if (!equal(own[i], other[i], budget)) {
        return compare(own[i], other[i], budget);
      }
    }
    return own.size() < other.size() ? -1 : own.size() > other.size() ? 1 : 0;
  }
  throw Problem(fmt::format("{} and {} have no order", a.kind(), b.kind()));
}

Characters::Characters(std::string_view text, Budget& budget) : text_(text) {
  budget.read(text.size());
  const auto count = static_cast<std::size_t>(count_characters(text));
  if (count == text.size()) {
    return;
  }
  budget.check_room((count + 1) * sizeof(std::size_t));
  starts_.reserve(count + 1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_continuation(text[i])) {
      starts_.push_back(i);
    }
  }
  starts_.push_back(text.size());
}

std::size_t find(std::string_view text, std::string_view what, std::size_t from, Budget& budget) {
  if (from > text.size()) {
    return std::string_view::npos;
  }
  if (what.empty()) {
    return from;
  }
  const void* const found =  // linear, which std::string's need not be
      ::memmem(text.data() + from, text.size() - from, what.data(), what.size());
  const std::size_t at =
      found == nullptr ? std::string_view::npos
                       : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  budget.read((found == nullptr ? text.size() : at + what.size()) - from);
  return at;
}

bool is_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::uint32_t character_at(std::string_view text, std::size_t at) {
  return first_character(text.substr(at)).code;
}

std::string_view stripped(std::string_view text, const std::string* set, bool left, bool right) {
  const auto goes = [&](std::size_t at, std::size_t bytes) {
    return set == nullptr ? is_space(character_at(text, at))
                          : set->find(text.substr(at, bytes)) != std::string::npos;
  };
  while (left && !text.empty()) {
    std::size_t bytes = 1;
    while (bytes < text.size() && is_continuation(text[bytes])) {
      ++bytes;
    }
    if (!goes(0, bytes)) {
      break;
    }
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && is_continuation(text[at])) {
      --at;
    }
    if (!goes(at, text.size() - at)) {
      break;
    }
    text.remove_suffix(text.size() - at);
  }
  return text;
}

}  // namespace tessera::data::jinja
