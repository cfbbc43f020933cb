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

const std::map<std::string, Comparison, std::less<>> comparison_signs = {
    {"==", Comparison::equal},  {"!=", Comparison::not_equal},
    {"<", Comparison::less},    {"<=", Comparison::less_equal},
    {">", Comparison::greater}, {">=", Comparison::greater_equal}};
const std::map<std::string, Operation, std::less<>> sum_signs = {{"+", Operation::add},
                                                                 {"-", Operation::subtract}};
const std::map<std::string, Operation, std::less<>> product_signs = {
    {"*", Operation::multiply},
    {"/", Operation::divide},
    {"//", Operation::floor_divide},
    {"%", Operation::remainder}};

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
    TemplateLine{name_, line}.refuse(wrong);
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

using Node = const Expression*;

/// Expressions, by Jinja's precedence. Only what is in brackets and the other case of a condition
/// go a level down, and their levels are limited, so the stack is bounded too.
class Expressions {
 public:
  Expressions(Cursor& cursor, Template& out) : c_(cursor), out_(out) {}

  /// A value, with `a if b else c`.
  Node full() {
    if (++depth_ > deepest) {
      c_.refuse(fmt::format("expressions are nested too deeply (expected at most {})", deepest));
    }
    Node value = either();
    while (c_.is_word("if")) {
      const int line = c_.next().line;
      Expression& made = node(Kind::condition, line, {either(), value});
      if (c_.take_word("else")) {
        made.items.push_back(full());
      }
      value = &made;
    }
    --depth_;
    return value;
  }

  /// Several values with commas between them are a tuple.
  Node with_commas() {
    Node first = full();
    if (!c_.is_sign(",")) {
      return first;
    }
    Expression& tuple = node(Kind::tuple, first->line, {first});
    while (c_.take_sign(",") && c_.peek().kind != TokenKind::end_block &&
           c_.peek().kind != TokenKind::end_output && !c_.is_sign(")")) {
      tuple.items.push_back(full());
    }
    return &tuple;
  }

  /// Without a condition: what `for` goes through.
  Node either() {
    Node left = both();
    while (c_.is_word("or")) {
      const int line = c_.next().line;
      left = &node(Kind::logical_or, line, {left, both()});
    }
    return left;
  }

 private:
  static constexpr int deepest = 60;
  static constexpr std::size_t most = 100'000;

  Expression& node(Kind kind, int line, std::vector<Node> items = {}) {
    if (out_.expressions.size() >= most) {
      c_.refuse(fmt::format("the template has too many expressions (expected at most {})", most));
    }
    Expression& made = *out_.expressions.emplace_back(std::make_unique<Expression>());
    made.kind = kind;
    made.line = line;
    made.items = std::move(items);
    return made;
  }

  Node both() {
    Node left = negation();
    while (c_.is_word("and")) {
      const int line = c_.next().line;
      left = &node(Kind::logical_and, line, {left, negation()});
    }
    return left;
  }

  Node negation() {
    std::vector<int> lines;
    while (c_.is_word("not")) {
      lines.push_back(c_.next().line);
    }
    Node value = comparison();
    for (; !lines.empty(); lines.pop_back()) {
      value = &node(Kind::logical_not, lines.back(), {value});
    }
    return value;
  }

  std::optional<Comparison> take_comparison() {
    if (c_.peek().kind == TokenKind::sign) {
      const auto sign = comparison_signs.find(c_.peek().text);
      if (sign == comparison_signs.end()) {
        return std::nullopt;
      }
      c_.next();
      return sign->second;
    }
    if (c_.take_word("in")) {
      return Comparison::in;
    }
    if (c_.is_word("not") && c_.is_word("in", 1)) {
      c_.next();
      c_.next();
      return Comparison::not_in;
    }
    return std::nullopt;
  }

  /// `a < b < c` is a < b and b < c.
  Node comparison() {
    Node first = sum();
    Expression* all = nullptr;
    for (int line = c_.line(); const auto which = take_comparison(); line = c_.line()) {
      all = all != nullptr ? all : &node(Kind::comparison, line, {first});
      all->comparisons.push_back(*which);
      all->items.push_back(sum());
    }
    return all != nullptr ? all : first;
  }

  Node arithmetic(Operation operation, int line, Node left, Node right) {
    Expression& made = node(Kind::arithmetic, line, {left, right});
    made.operation = operation;
    return &made;
  }

  /// Operations of one precedence, from left to right.
  template <class Next>
  Node chain(const std::map<std::string, Operation, std::less<>>& signs, Next next) {
    Node left = next();
    while (c_.peek().kind == TokenKind::sign && signs.contains(c_.peek().text)) {
      const Token sign = c_.next();
      left = arithmetic(signs.at(sign.text), sign.line, left, next());
    }
    return left;
  }

  Node sum() {
    return chain(sum_signs, [this] { return concatenation(); });
  }
  Node concatenation() {
    Node left = product();
    while (c_.is_sign("~")) {
      const int line = c_.next().line;
      left = &node(Kind::concatenate, line, {left, product()});
    }
    return left;
  }
  Node product() {
    return chain(product_signs, [this] { return power(); });
  }
  Node power() {
    Node left = unary();
    while (c_.is_sign("**")) {
      const int line = c_.next().line;
      left = arithmetic(Operation::power, line, left, unary());
    }
    return left;
  }

  /// Signs before a value come before its filters.
  Node unary() {
    std::vector<Token> signs;
    while (c_.is_sign("-") || c_.is_sign("+")) {
      signs.push_back(c_.next());
    }
    Node value = postfix(primary());
    for (; !signs.empty(); signs.pop_back()) {
      value = &node(signs.back().text == "-" ? Kind::negate : Kind::unchanged, signs.back().line,
                    {value});
    }
    return filtered(value);
  }

  Node literal(Value value, int line) {
    Expression& made = node(Kind::literal, line);
    made.literal = std::move(value);
    return &made;
  }

  Node primary() {
    const Token token = c_.next();
    if (token.kind == TokenKind::name) {
      return named(token);
    }
    if (token.kind == TokenKind::number) {
      return literal(token.literal, token.line);
    }
    if (token.kind == TokenKind::text) {
      std::string text = token.literal.text();
      while (c_.peek().kind == TokenKind::text) {
        text += c_.next().literal.text();
      }
      return literal(Value::constant(std::move(text)), token.line);
    }
    if (token.kind == TokenKind::sign && token.text == "(") {
      Node inner = c_.is_sign(")") ? &node(Kind::tuple, token.line) : with_commas();
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

  Node named(const Token& token) {
    static const std::map<std::string, Value, std::less<>> constants = {
        {"true", Value(true)},   {"True", Value(true)}, {"false", Value(false)},
        {"False", Value(false)}, {"none", Value()},     {"None", Value()}};
    if (const auto constant = constants.find(token.text); constant != constants.end()) {
      return literal(constant->second, token.line);
    }
    Expression& made = node(Kind::name, token.line);
    made.text = token.text;
    made.literal = Value::undefined(shown(token.text, 40));
    return &made;
  }

  Node list(int line) {
    Expression& made = node(Kind::list, line);
    while (!c_.take_sign("]")) {
      made.items.push_back(full());
      if (!c_.is_sign("]")) {
        c_.expect_sign(",");
      }
    }
    return &made;
  }

  Node dict(int line) {
    Expression& made = node(Kind::dict, line);
    while (!c_.take_sign("}")) {
      made.items.push_back(full());
      c_.expect_sign(":");
      made.items.push_back(full());
      if (!c_.is_sign("}")) {
        c_.expect_sign(",");
      }
    }
    return &made;
  }

  Node call(Node value, int line) {
    Expression& made = node(Kind::call, line, {value});
    arguments(made);
    return &made;
  }

  Node postfix(Node value) {
    while (true) {
      const int line = c_.line();
      if (c_.take_sign(".")) {
        value = member(value, line);
      } else if (c_.take_sign("[")) {
        value = subscript(value, line);
      } else if (c_.is_sign("(")) {
        value = call(value, line);
      } else {
        return value;
      }
    }
  }

  Node member(Node object, int line) {
    if (c_.peek().kind == TokenKind::number && c_.peek().literal.is_whole()) {
      return &node(Kind::item, line, {object, literal(c_.next().literal, line)});
    }
    const std::string name = c_.expect_name();
    if (!c_.is_sign("(")) {
      Expression& made = node(Kind::attribute, line, {object});
      made.text = name;
      return &made;
    }
    if (!is_method(name)) {
      c_.refuse(fmt::format("the method .{}() is not supported", shown(name, 40)), line);
    }
    Expression& made = node(Kind::method, line, {object});
    made.text = name;
    arguments(made);
    return &made;
  }

  Node subscript(Node object, int line) {
    Node parts[3] = {};
    int colons = 0;
    while (!c_.is_sign("]")) {
      if (c_.take_sign(":")) {
        if (++colons > 2) {
          c_.refuse("a slice has more than three parts");
        }
      } else if (parts[colons] != nullptr) {
        c_.refuse("an index has more than one part");
      } else {
        parts[colons] = full();
      }
    }
    c_.expect_sign("]");
    if (colons > 0) {
      return &node(Kind::slice, line, {object, parts[0], parts[1], parts[2]});
    }
    if (parts[0] == nullptr) {
      c_.refuse("expected an index", line);
    }
    return &node(Kind::item, line, {object, parts[0]});
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
        if (std::ranges::find(call.named, name, &std::pair<std::string, Node>::first) !=
            call.named.end()) {
          c_.refuse(fmt::format("the argument '{}' is given twice", shown(name, 40)));
        }
        call.named.emplace_back(name, full());
      } else if (!call.named.empty()) {
        c_.refuse("an argument without a name follows one with a name");
      } else {
        call.items.push_back(full());
      }
      if (!c_.is_sign(")")) {
        c_.expect_sign(",");
      }
    }
  }

  /// Filters, tests and calls behind a value.
  Node filtered(Node value) {
    while (true) {
      const int line = c_.line();
      if (c_.take_sign("|")) {
        value = filter(value, line);
      } else if (c_.take_word("is")) {
        value = test(value, line);
      } else if (c_.is_sign("(")) {
        value = call(value, line);
      } else {
        return value;
      }
    }
  }

  Node filter(Node value, int line) {
    const std::string name = c_.expect_name();
    Expression& made = node(Kind::filter, line, {value});
    made.signature = find_filter(name);
    if (made.signature == nullptr) {
      c_.refuse(fmt::format("the filter '{}' is not supported", shown(name, 40)), line);
    }
    if (c_.is_sign("(")) {
      arguments(made);
    }
    return &made;
  }

  Node test(Node value, int line) {
    const bool negated = c_.take_word("not");
    const std::string name = c_.expect_name();
    Expression& made = node(Kind::test, line, {value});
    made.signature = find_test(name);
    if (made.signature == nullptr) {
      c_.refuse(fmt::format("the test 'is {}' is not supported", shown(name, 40)), line);
    }
    const TokenKind kind = c_.peek().kind;
    if (c_.is_sign("(")) {
      arguments(made);
    } else if (kind == TokenKind::text || kind == TokenKind::number || c_.is_sign("[") ||
               c_.is_sign("{") ||
               (kind == TokenKind::name && !c_.is_word("else") && !c_.is_word("or") &&
                !c_.is_word("and") && !c_.is_word("is") && !c_.is_word("if") &&
                !c_.is_word("not") && !c_.is_word("in"))) {
      made.items.push_back(postfix(primary()));
    }
    return negated ? &node(Kind::logical_not, line, {&made}) : &made;
  }

  Cursor& c_;
  Template& out_;
  int depth_ = 0;
};

class Parser {
 public:
  Parser(std::vector<Token> tokens, Template& out)
      : c_(std::move(tokens), out.name), expressions_(c_, out), out_(out) {}

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
    if (loops_ > 0 || captured_ > 0) {
      c_.refuse("{% macro %} within {% for %}, {% set %} or {% macro %} is not supported", line);
    }
    Statement made{StatementKind::macro, line};
    made.targets.push_back(c_.expect_name());
    c_.expect_sign("(");
    while (!c_.take_sign(")")) {
      made.targets.push_back(c_.expect_name());
      made.expressions.push_back(c_.take_sign("=") ? expressions_.full() : nullptr);
      if (made.expressions.back() == nullptr && made.expressions.size() > 1 &&
          made.expressions[made.expressions.size() - 2] != nullptr) {
        c_.refuse("a parameter without a default follows one with a default");
      }
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
    const int loops = std::exchange(loops_, 0);  // the body is a function of its own in Jinja
    made.bodies.push_back(statements({}));
    loops_ = loops;
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

Template parse(std::string_view text, const std::string& name, TemplateForm form) {
  Template out;
  out.name = name;
  out.strict = form == TemplateForm::verbatim;
  Parser(tokens_of(text, name, form), out).parse();
  return out;
}

}  // namespace tessera::data::jinja
