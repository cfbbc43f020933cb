#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tessera/shown.hpp>

#include "jinja/syntax.hpp"
#include "jinja/tokens.hpp"

import tessera.base;

namespace tessera::data::jinja {
namespace {

using Kind = ExpressionKind;

const std::map<std::string, Kind, std::less<>> comparison_signs = {
    {"==", Kind::equal},      {"!=", Kind::not_equal}, {"<", Kind::less},
    {"<=", Kind::less_equal}, {">", Kind::greater},    {">=", Kind::greater_equal}};
const std::map<std::string, Kind, std::less<>> sum_signs = {{"+", Kind::add},
                                                            {"-", Kind::subtract}};
const std::map<std::string, Kind, std::less<>> product_signs = {
    {"*", Kind::multiply}, {"/", Kind::divide}, {"//", Kind::floor_divide}, {"%", Kind::remainder}};

/// The tokens of a template, one after the other.
class Cursor {
 public:
  Cursor(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}

  const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  int line() const { return peek().line; }

  bool is_sign(std::string_view sign, std::size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::sign && peek(ahead).text == sign;
  }
  bool is_word(std::string_view word, std::size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::name && peek(ahead).text == word;
  }
  bool take_sign(std::string_view sign) { return is_sign(sign) && (next(), true); }
  bool take_word(std::string_view word) { return is_word(word) && (next(), true); }

  void expect_sign(std::string_view sign) {
    if (!take_sign(sign)) {
      refuse(fmt::format("expected '{}', got {}", sign, shown_token()));
    }
  }
  void expect(TokenKind kind, const char* what) {
    if (peek().kind != kind) {
      refuse(fmt::format("expected {}, got {}", what, shown_token()));
    }
    next();
  }
  std::string expect_name() {
    if (peek().kind != TokenKind::name) {
      refuse(fmt::format("expected a name, got {}", shown_token()));
    }
    return next().text;
  }
  [[noreturn]] void refuse(const std::string& wrong) const { refuse(wrong, line()); }
  [[noreturn]] void refuse(const std::string& wrong, int line) const {
    Place{name_, line}.refuse(wrong);
  }

 private:
  std::string shown_token() const {
    switch (peek().kind) {
      case TokenKind::end_block:
        return "the end of the tag %}";
      case TokenKind::end_output:
        return "the end of the tag }}";
      case TokenKind::name:
      case TokenKind::sign:
        return fmt::format("'{}'", shown(peek().text, 40));
      case TokenKind::text:
        return "a text";
      case TokenKind::number:
        return "a number";
      default:
        return "the end of the template";
    }
  }

  std::vector<Token> tokens_;
  const std::string& name_;
  std::size_t at_ = 0;
};

ExpressionPointer node(Kind kind, int line) {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = line;
  return made;
}

template <class... Items>
ExpressionPointer node(Kind kind, int line, Items... items) {
  ExpressionPointer made = node(kind, line);
  (made->items.push_back(std::move(items)), ...);
  return made;
}

/// Expressions, by Jinja's precedence. Each call goes one level down, so a limit on the levels
/// bounds the stack.
class Expressions {
 public:
  explicit Expressions(Cursor& cursor) : c_(cursor) {}

  /// A value, with `a if b else c`.
  ExpressionPointer full() {
    if (++depth_ > deepest) {
      c_.refuse(fmt::format("expressions are nested too deeply (expected at most {})", deepest));
    }
    ExpressionPointer value = either();
    while (c_.is_word("if")) {
      const int line = c_.line();
      c_.next();
      ExpressionPointer condition = either();
      value = node(Kind::condition, line, std::move(condition), std::move(value));
      if (c_.take_word("else")) {
        value->items.push_back(full());
      }
    }
    --depth_;
    return value;
  }

  /// Several values with commas between them are a list, as Python's tuple.
  ExpressionPointer with_commas() {
    ExpressionPointer first = full();
    if (!c_.is_sign(",")) {
      return first;
    }
    ExpressionPointer list = node(Kind::list, first->line, std::move(first));
    while (c_.take_sign(",") && c_.peek().kind != TokenKind::end_block &&
           c_.peek().kind != TokenKind::end_output && !c_.is_sign(")")) {
      list->items.push_back(full());
    }
    return list;
  }

  /// Without a condition: what `for` goes through.
  ExpressionPointer either() {
    ExpressionPointer left = both();
    while (c_.is_word("or")) {
      const int line = c_.next().line;
      left = node(Kind::logical_or, line, std::move(left), both());
    }
    return left;
  }

 private:
  static constexpr int deepest = 200;

  ExpressionPointer both() {
    ExpressionPointer left = negation();
    while (c_.is_word("and")) {
      const int line = c_.next().line;
      left = node(Kind::logical_and, line, std::move(left), negation());
    }
    return left;
  }

  ExpressionPointer negation() {
    if (c_.is_word("not")) {
      const int line = c_.next().line;
      return node(Kind::logical_not, line, negation());
    }
    return comparison();
  }

  std::optional<Kind> take_comparison() {
    if (c_.peek().kind == TokenKind::sign) {
      const auto sign = comparison_signs.find(c_.peek().text);
      if (sign == comparison_signs.end()) {
        return std::nullopt;
      }
      c_.next();
      return sign->second;
    }
    if (c_.take_word("in")) {
      return Kind::in;
    }
    if (c_.is_word("not") && c_.is_word("in", 1)) {
      c_.next();
      c_.next();
      return Kind::not_in;
    }
    return std::nullopt;
  }

  /// `a < b < c` is a < b and b < c.
  ExpressionPointer comparison() {
    ExpressionPointer first = sum();
    const int line = c_.line();
    const auto kind = take_comparison();
    if (!kind) {
      return first;
    }
    ExpressionPointer all = node(*kind, line, std::move(first), sum());
    if (c_.peek().kind == TokenKind::sign && comparison_signs.contains(c_.peek().text)) {
      c_.refuse("a chain of comparisons is not supported; write them with 'and'");
    }
    return all;
  }

  /// Operations of one precedence, from left to right.
  template <class Next>
  ExpressionPointer chain(const std::map<std::string, Kind, std::less<>>& signs, Next next) {
    ExpressionPointer left = next();
    while (c_.peek().kind == TokenKind::sign && signs.contains(c_.peek().text)) {
      const Token sign = c_.next();
      left = node(signs.at(sign.text), sign.line, std::move(left), next());
    }
    return left;
  }

  ExpressionPointer sum() {
    return chain(sum_signs, [this] { return concatenation(); });
  }
  ExpressionPointer concatenation() {
    ExpressionPointer left = product();
    while (c_.is_sign("~")) {
      const int line = c_.next().line;
      left = node(Kind::concatenate, line, std::move(left), product());
    }
    return left;
  }
  ExpressionPointer product() {
    return chain(product_signs, [this] { return power(); });
  }
  ExpressionPointer power() {
    ExpressionPointer left = unary(true);
    while (c_.is_sign("**")) {
      const int line = c_.next().line;
      left = node(Kind::power, line, std::move(left), unary(true));
    }
    return left;
  }

  ExpressionPointer unary(bool with_filters) {
    ExpressionPointer value;
    if (c_.is_sign("-")) {
      const int line = c_.next().line;
      value = node(Kind::negate, line, unary(false));
    } else if (c_.take_sign("+")) {
      value = unary(false);
    } else {
      value = postfix(primary());
    }
    return with_filters ? filtered(std::move(value)) : std::move(value);
  }

  ExpressionPointer primary() {
    const Token token = c_.next();
    if (token.kind == TokenKind::name) {
      return named(token);
    }
    if (token.kind == TokenKind::number || token.kind == TokenKind::text) {
      ExpressionPointer made = node(Kind::literal, token.line);
      std::string text = token.literal.is_text() ? token.literal.text() : "";
      while (token.kind == TokenKind::text && c_.peek().kind == TokenKind::text) {
        text += c_.next().literal.text();
      }
      made->literal = token.kind == TokenKind::text ? Value(std::move(text)) : token.literal;
      return made;
    }
    if (token.kind == TokenKind::sign && token.text == "(") {
      ExpressionPointer inner = c_.is_sign(")") ? node(Kind::list, token.line) : with_commas();
      c_.expect_sign(")");
      return inner;
    }
    if (token.kind == TokenKind::sign && token.text == "[") {
      return list(token.line);
    }
    if (token.kind == TokenKind::sign && token.text == "{") {
      return dict(token.line);
    }
    c_.refuse(token.text.empty() ? "expected a value"
                                 : fmt::format("expected a value, got '{}'", shown(token.text, 40)),
              token.line);
  }

  static ExpressionPointer named(const Token& token) {
    static const std::map<std::string, Value, std::less<>> constants = {
        {"true", Value(true)},   {"True", Value(true)}, {"false", Value(false)},
        {"False", Value(false)}, {"none", Value()},     {"None", Value()}};
    const auto constant = constants.find(token.text);
    ExpressionPointer made =
        node(constant == constants.end() ? Kind::name : Kind::literal, token.line);
    made->text = token.text;
    made->literal = constant == constants.end() ? Value() : constant->second;
    return made;
  }

  ExpressionPointer list(int line) {
    ExpressionPointer made = node(Kind::list, line);
    while (!c_.take_sign("]")) {
      made->items.push_back(full());
      if (!c_.is_sign("]")) {
        c_.expect_sign(",");
      }
    }
    return made;
  }

  ExpressionPointer dict(int line) {
    ExpressionPointer made = node(Kind::dict, line);
    while (!c_.take_sign("}")) {
      made->items.push_back(full());
      c_.expect_sign(":");
      made->items.push_back(full());
      if (!c_.is_sign("}")) {
        c_.expect_sign(",");
      }
    }
    return made;
  }

  ExpressionPointer postfix(ExpressionPointer value) {
    while (true) {
      const int line = c_.line();
      if (c_.take_sign(".")) {
        value = member(std::move(value), line);
      } else if (c_.take_sign("[")) {
        value = subscript(std::move(value), line);
      } else if (c_.is_sign("(")) {
        value = node(Kind::call, line, std::move(value));
        arguments(*value);
      } else {
        return value;
      }
    }
  }

  ExpressionPointer member(ExpressionPointer object, int line) {
    if (c_.peek().kind == TokenKind::number && c_.peek().literal.is_whole()) {
      ExpressionPointer index = node(Kind::literal, line);
      index->literal = c_.next().literal;
      return node(Kind::item, line, std::move(object), std::move(index));
    }
    const std::string name = c_.expect_name();
    if (!c_.is_sign("(")) {
      ExpressionPointer made = node(Kind::attribute, line, std::move(object));
      made->text = name;
      return made;
    }
    ExpressionPointer made = node(Kind::method, line, std::move(object));
    made->text = name;
    made->filter = find_method(name);
    if (made->filter == nullptr) {
      c_.refuse(fmt::format("the method .{}() is not supported", shown(name, 40)), line);
    }
    arguments(*made);
    return made;
  }

  ExpressionPointer subscript(ExpressionPointer object, int line) {
    ExpressionPointer parts[3];
    int colons = 0;
    while (!c_.is_sign("]")) {
      if (c_.take_sign(":")) {
        if (++colons > 2) {
          c_.refuse("a slice has more than three parts");
        }
      } else {
        parts[colons] = full();
      }
    }
    c_.expect_sign("]");
    if (colons == 0) {
      if (!parts[0]) {
        c_.refuse("expected an index", line);
      }
      return node(Kind::item, line, std::move(object), std::move(parts[0]));
    }
    return node(Kind::slice, line, std::move(object), std::move(parts[0]), std::move(parts[1]),
                std::move(parts[2]));
  }

  /// (a, b, name=c)
  void arguments(Expression& call) {
    c_.expect_sign("(");
    while (!c_.take_sign(")")) {
      if (c_.is_sign("*") || c_.is_sign("**")) {
        c_.refuse("arguments with * are not supported");
      }
      if (c_.peek().kind == TokenKind::name && c_.is_sign("=", 1)) {
        const std::string name = c_.next().text;
        c_.next();
        call.named.emplace_back(name, full());
      } else {
        call.items.push_back(full());
      }
      if (!c_.is_sign(")")) {
        c_.expect_sign(",");
      }
    }
  }

  /// Filters, tests and calls behind a value.
  ExpressionPointer filtered(ExpressionPointer value) {
    while (true) {
      const int line = c_.line();
      if (c_.take_sign("|")) {
        const std::string name = c_.expect_name();
        value = node(Kind::filter, line, std::move(value));
        value->text = name;
        value->filter = find_filter(name);
        if (value->filter == nullptr) {
          c_.refuse(fmt::format("the filter '{}' is not supported", shown(name, 40)), line);
        }
        if (c_.is_sign("(")) {
          arguments(*value);
        }
      } else if (c_.take_word("is")) {
        value = test(std::move(value), line);
      } else if (c_.is_sign("(")) {
        value = node(Kind::call, line, std::move(value));
        arguments(*value);
      } else {
        return value;
      }
    }
  }

  ExpressionPointer test(ExpressionPointer value, int line) {
    const bool negated = c_.take_word("not");
    const std::string name = c_.expect_name();
    ExpressionPointer made = node(Kind::test, line, std::move(value));
    made->text = name;
    made->test = find_test(name);
    if (made->test == nullptr) {
      c_.refuse(fmt::format("the test 'is {}' is not supported", shown(name, 40)), line);
    }
    const TokenKind kind = c_.peek().kind;
    if (c_.is_sign("(")) {
      arguments(*made);
    } else if (kind == TokenKind::text || kind == TokenKind::number || c_.is_sign("[") ||
               c_.is_sign("{") ||
               (kind == TokenKind::name && !c_.is_word("else") && !c_.is_word("or") &&
                !c_.is_word("and") && !c_.is_word("is") && !c_.is_word("if") &&
                !c_.is_word("not") && !c_.is_word("in"))) {
      made->items.push_back(postfix(primary()));
    }
    return negated ? node(Kind::logical_not, line, std::move(made)) : std::move(made);
  }

  Cursor& c_;
  int depth_ = 0;
};

class Parser {
 public:
  Parser(std::vector<Token> tokens, Template& out)
      : c_(std::move(tokens), out.name), expressions_(c_), out_(out) {}

  void parse() {
    out_.body = statements({});
    if (c_.peek().kind != TokenKind::end) {
      c_.refuse(fmt::format("the tag {{% {} %}} has no beginning", shown(c_.peek(1).text, 40)));
    }
  }

 private:
  using Names = std::initializer_list<std::string_view>;
  static constexpr int deepest = 60;

  /// Up to a tag with one of these names, which is not consumed; or to the end.
  Statements statements(Names ends) {
    if (++depth_ > deepest) {
      c_.refuse(fmt::format("tags are nested too deeply (expected at most {})", deepest));
    }
    Statements all;
    while (c_.peek().kind != TokenKind::end) {
      const Token token = c_.peek();
      if (token.kind == TokenKind::data) {
        all.push_back({StatementKind::text, token.line, c_.next().text});
      } else if (token.kind == TokenKind::begin_output) {
        c_.next();
        Statement output{StatementKind::output, token.line};
        output.expressions.push_back(expressions_.with_commas());
        all.push_back(std::move(output));
        c_.expect(TokenKind::end_output, "the end of the tag }}");
      } else {
        const bool ended =
            std::ranges::any_of(ends, [&](std::string_view end) { return c_.is_word(end, 1); });
        if (ended || c_.is_word("else", 1) || c_.peek(1).text.starts_with("end")) {
          break;
        }
        c_.next();
        all.push_back(tag());
      }
    }
    --depth_;
    return all;
  }

  void close() { c_.expect(TokenKind::end_block, "the end of the tag %}"); }

  /// {% NAME %}
  void end_tag(std::string_view name, const Statement& opened) {
    if (c_.peek().kind != TokenKind::begin_block || !c_.is_word(name, 1)) {
      c_.refuse(fmt::format("a tag does not end (expected {{% {} %}})", name), opened.line);
    }
    c_.next();
    c_.next();
    close();
  }

  Statement tag() {
    const Token name = c_.next();
    using Parse = Statement (Parser::*)(int);
    static const std::map<std::string, Parse, std::less<>> tags = {
        {"if", &Parser::branch},
        {"for", &Parser::loop},
        {"set", &Parser::set},
        {"macro", &Parser::macro},
        {"generation", &Parser::generation},
        {"break", &Parser::jump<StatementKind::leave>},
        {"continue", &Parser::jump<StatementKind::next>}};
    const auto found = name.kind == TokenKind::name ? tags.find(name.text) : tags.end();
    if (found == tags.end()) {
      c_.refuse(fmt::format("the tag {{% {} %}} is not supported", shown(name.text, 40)),
                name.line);
    }
    return (this->*found->second)(name.line);
  }

  Statement branch(int line) {
    Statement made{StatementKind::branch, line};
    do {
      made.expressions.push_back(expressions_.with_commas());
      close();
      made.bodies.push_back(statements({"elif"}));
    } while (c_.peek().kind == TokenKind::begin_block && c_.is_word("elif", 1) &&
             (c_.next(), c_.next(), true));
    other_case(made);
    end_tag("endif", made);
    return made;
  }

  /// {% else %} and its body.
  void other_case(Statement& made) {
    if (c_.peek().kind == TokenKind::begin_block && c_.is_word("else", 1)) {
      c_.next();
      c_.next();
      close();
      made.bodies.push_back(statements({}));
    }
  }

  std::vector<std::string> names() {
    const bool braced = c_.take_sign("(");
    std::vector<std::string> all = {c_.expect_name()};
    while (c_.take_sign(",")) {
      all.push_back(c_.expect_name());
    }
    if (braced) {
      c_.expect_sign(")");
    }
    return all;
  }

  Statement loop(int line) {
    Statement made{StatementKind::loop, line};
    made.targets = names();
    if (!c_.take_word("in")) {
      c_.refuse("expected 'in' after the names of {% for %}");
    }
    made.expressions.push_back(expressions_.either());
    if (c_.take_word("if")) {
      made.expressions.push_back(expressions_.full());
    }
    if (c_.is_word("recursive")) {
      c_.refuse("{% for %} with 'recursive' is not supported");
    }
    close();
    ++loops_;
    made.bodies.push_back(statements({}));
    --loops_;
    other_case(made);
    end_tag("endfor", made);
    return made;
  }

  Statement set(int line) {
    Statement made{StatementKind::set, line};
    made.targets = names();
    if (c_.take_sign(".")) {
      made.kind = StatementKind::set_member;
      made.targets.push_back(c_.expect_name());
    }
    if (c_.take_sign("=")) {
      made.expressions.push_back(expressions_.with_commas());
      close();
      return made;
    }
    if (made.kind != StatementKind::set || made.targets.size() != 1 || c_.is_sign("|")) {
      c_.refuse("this form of {% set %} is not supported");
    }
    close();
    made.kind = StatementKind::set_body;
    made.bodies.push_back(captured());
    end_tag("endset", made);
    return made;
  }

  /// A body whose text is a value: what it generates has no place in the output.
  Statements captured() {
    ++captured_;
    const int loops = std::exchange(loops_, 0);
    Statements body = statements({});
    loops_ = loops;
    --captured_;
    return body;
  }

  Statement macro(int line) {
    Statement made{StatementKind::macro, line};
    made.targets.push_back(c_.expect_name());
    c_.expect_sign("(");
    while (!c_.take_sign(")")) {
      made.targets.push_back(c_.expect_name());
      made.expressions.push_back(c_.take_sign("=") ? expressions_.full() : nullptr);
      if (!c_.is_sign(")")) {
        c_.expect_sign(",");
      }
    }
    close();
    made.bodies.push_back(captured());
    end_tag("endmacro", made);
    return made;
  }

  Statement generation(int line) {
    if (captured_ > 0) {
      c_.refuse("{% generation %} within {% macro %} or {% set %} is not supported", line);
    }
    Statement made{StatementKind::generation, line};
    close();
    made.bodies.push_back(statements({}));
    end_tag("endgeneration", made);
    out_.has_generation = true;
    return made;
  }

  template <StatementKind kind>
  Statement jump(int line) {
    if (loops_ == 0) {
      c_.refuse("{% break %} and {% continue %} must be within {% for %}", line);
    }
    close();
    return {kind, line};
  }

  Cursor c_;
  Expressions expressions_;
  Template& out_;
  int depth_ = 0;
  int loops_ = 0;
  int captured_ = 0;
};

}  // namespace

Template parse(std::string_view text, const std::string& name) {
  Template out;
  out.name = name;
  Parser(tokens_of(text, name), out).parse();
  return out;
}

}  // namespace tessera::data::jinja
