module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.tensor;
import :expression;
import :line;
import :parse_arguments;

namespace tessera {
namespace {

struct Function {
  NumberOp op;
  std::string_view name;
};
constexpr std::array<Function, 4> functions = {{{NumberOp::minimum, "min"},
                                                {NumberOp::maximum, "max"},
                                                {NumberOp::power, "pow"},
                                                {NumberOp::square_root, "sqrt"}}};

int operands_of(NumberOp op) {
  switch (op) {
    case NumberOp::constant:
    case NumberOp::variable:
      return 0;
    case NumberOp::negate:
    case NumberOp::square_root:
      return 1;
    default:
      return 2;
  }
}

/// '+' and '-' bind less than '*' and '/', those less than a sign.
int strength(NumberOp op) {
  switch (op) {
    case NumberOp::add:
    case NumberOp::subtract:
      return 1;
    case NumberOp::multiply:
    case NumberOp::divide:
      return 2;
    case NumberOp::negate:
      return 3;
    default:
      return 4;
  }
}

char sign_of(NumberOp op) {
  switch (op) {
    case NumberOp::add:
      return '+';
    case NumberOp::subtract:
      return '-';
    case NumberOp::multiply:
      return '*';
    default:
      return '/';
  }
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.';
}

/// Whether all of the text is a number.
bool is_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// A name as it is written, in quotes where it could be taken for something else.
std::string written(const std::string& name) {
  const bool plain = !name.empty() && std::ranges::all_of(name, is_word) && !is_number(name);
  return plain ? name : fmt::format("'{}'", name);
}

struct Part {
  std::string text;
  int strength;
};

std::string enclosed(const Part& part, bool encloses) {
  return encloses ? fmt::format("({})", part.text) : part.text;
}

}  // namespace

Expression::Expression(SourceId source) { add(source); }

void Expression::add(SourceId id) {
  const NumberSource source = source_of(id);
  if (source.left != 0) {
    add(source.left);
  }
  if (source.right != 0) {
    add(source.right);
  }
  terms_.push_back({.op = source.op, .constant = source.constant, .variable = source.variable});
}

double Expression::value(const StepVariables& variables) const {
  InlineVector<double, 16> stack;
  for (const Term& term : terms_) {
    if (term.op == NumberOp::constant) {
      stack.push_back(term.constant);
      continue;
    }
    if (term.op == NumberOp::variable) {
      if (const auto number = variables.numbers.find(term.variable);
          number != variables.numbers.end()) {
        stack.push_back(number->second);
      } else if (const auto count = variables.counts.find(term.variable);
                 count != variables.counts.end()) {
        stack.push_back(static_cast<double>(count->second));
      } else {
        fail({.thing = "replay",
              .wrong = fmt::format("the variable '{}' has no value", term.variable),
              .advice = "set it before the section"});
      }
      continue;
    }
    double right = 0;
    if (operands_of(term.op) == 2) {
      right = stack.back();
      stack.pop_back();
    }
    stack.back() = apply(term.op, stack.back(), right);
  }
  return stack.back();
}

std::string Expression::text() const {
  std::vector<Part> stack;
  const auto take = [&] {
    Part part = std::move(stack.back());
    stack.pop_back();
    return part;
  };
  for (const Term& term : terms_) {
    if (term.op == NumberOp::constant) {
      const bool negative = std::signbit(term.constant);
      stack.push_back(
          {fmt::format("{}", term.constant), negative ? strength(NumberOp::negate) : 4});
      continue;
    }
    if (term.op == NumberOp::variable) {
      stack.push_back({written(term.variable), 4});
      continue;
    }
    const int own = strength(term.op);
    if (const auto* const function = std::ranges::find(functions, term.op, &Function::op);
        function != functions.end()) {
      const std::string right =
          operands_of(term.op) == 2 ? fmt::format(", {}", take().text) : std::string();
      stack.push_back({fmt::format("{}({}{})", function->name, take().text, right), own});
      continue;
    }
    if (term.op == NumberOp::negate) {
      const Part of = take();
      stack.push_back({"-" + enclosed(of, of.strength <= own), own});
      continue;
    }
    const Part right = take();
    const Part left = take();
    stack.push_back({fmt::format("{}{}{}", enclosed(left, left.strength < own), sign_of(term.op),
                                 enclosed(right, right.strength <= own || right.strength == 3)),
                     own});
  }
  return stack.empty() ? std::string() : stack.back().text;
}

std::vector<std::string> Expression::variables() const {
  std::vector<std::string> all;
  for (const Term& term : terms_) {
    if (term.op == NumberOp::variable) {
      all.push_back(term.variable);
    }
  }
  return all;
}

void Expression::rename(const std::function<std::string(const std::string&)>& name) {
  for (Term& term : terms_) {
    if (term.op == NumberOp::variable) {
      term.variable = name(term.variable);
    }
  }
}

/// Reads sums of products of signed values.
class ExpressionParser {
 public:
  explicit ExpressionParser(Line& line) : line_(line) {}

  Expression all() {
    sum();
    return std::move(made_);
  }

 private:
  void op(NumberOp op) { made_.terms_.push_back({.op = op}); }

  void sum() {
    product();
    while (true) {
      if (line_.take("+")) {
        product();
        op(NumberOp::add);
      } else if (line_.take("-")) {
        product();
        op(NumberOp::subtract);
      } else {
        return;
      }
    }
  }

  void product() {
    signed_value();
    while (true) {
      if (line_.take("*")) {
        signed_value();
        op(NumberOp::multiply);
      } else if (line_.take("/")) {
        signed_value();
        op(NumberOp::divide);
      } else {
        return;
      }
    }
  }

  void signed_value() {
    if (++depth_ > most_depth) {
      fail_input("an expression has too many parentheses and signs");
    }
    const std::string_view rest = line_.rest();
    const bool of_number = rest.size() > 1 && rest[0] == '-' && is_number(word(rest.substr(1)));
    if (!of_number && line_.take("-")) {
      signed_value();
      op(NumberOp::negate);
    } else {
      value();
    }
    --depth_;
  }

  void value() {
    if (line_.take("(")) {
      sum();
      line_.expect(")");
      return;
    }
    if (line_.take("'")) {
      made_.terms_.push_back({.op = NumberOp::variable, .variable = std::string(line_.until("'"))});
      return;
    }
    const std::string_view rest = line_.rest();
    const bool negative = rest.starts_with('-');
    const std::string_view one = word(rest.substr(negative ? 1 : 0));
    if (one.empty()) {
      line_.refuse("a number or the name of a variable");
    }
    if (is_number(one)) {
      made_.terms_.push_back({.op = NumberOp::constant, .constant = line_.number<double>()});
      return;
    }
    const auto* const function = std::ranges::find(functions, one, &Function::name);
    line_.expect(one);
    if (function == functions.end() || !line_.take("(")) {
      made_.terms_.push_back({.op = NumberOp::variable, .variable = std::string(one)});
      return;
    }
    sum();
    if (operands_of(function->op) == 2) {
      line_.expect(", ");
      sum();
    }
    line_.expect(")");
    op(function->op);
  }

  /// A word of letters, digits and points, with the sign of an exponent.
  static std::string_view word(std::string_view text) {
    std::size_t size = 0;
    while (size < text.size()) {
      const bool exponent = (text[size] == '+' || text[size] == '-') && size > 1 &&
                            text[size - 1] == 'e' && is_number(text.substr(0, size - 1));
      if (!is_word(text[size]) && !exponent) {
        break;
      }
      ++size;
    }
    return text.substr(0, size);
  }

  static constexpr int most_depth = 100;
  Line& line_;
  Expression made_;
  int depth_ = 0;
};

Expression take_expression(Line& line) { return ExpressionParser(line).all(); }

Expression Expression::parse(std::string_view text) {
  Line line(text);
  Expression made = take_expression(line);
  line.end();
  return made;
}

}  // namespace tessera
