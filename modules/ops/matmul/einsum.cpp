// einsum: terms with letters, multiplied two at a time by matmul.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

/// A tensor with a letter for each dim. Dims that "..." stands for have the letters 1, 2, ... ,
/// counted from their last one.
struct Term {
  std::string letters;
  Tensor x;

  int dim_of(char letter) const { return static_cast<int>(letters.find(letter)); }
  bool has(char letter) const { return letters.find(letter) != std::string::npos; }
};

[[noreturn]] void refuse_equation(std::string_view equation, const std::string& what) {
  fail({.thing = "einsum", .wrong = fmt::format("\"{}\": {}", equation, what)});
}

/// "b...i" for a tensor of `dims` dims: "..." becomes the letters of as many dims as are left.
std::string with_dots(std::string_view equation, std::string_view text, int dots) {
  const std::size_t at = text.find("...");
  std::string letters(text.substr(0, at));
  if (at != std::string_view::npos) {
    for (int i = dots; i > 0; --i) {
      letters.push_back(static_cast<char>(i));
    }
    letters += text.substr(at + 3);
  }
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const char c = letters[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c > 0 && c <= 8);
    if (!letter) {
      refuse_equation(equation, "expected letters, commas, \"...\" and \"->\"");
    }
    if (letters.find(c, i + 1) != std::string::npos) {
      refuse_equation(equation,
                      fmt::format("letter {} occurs twice in one term; use diagonal() first", c));
    }
  }
  return letters;
}

/// The dims of x in the order of `letters`, all of which it has.
Tensor ordered(const Term& term, std::string_view letters) {
  Dims order;
  bool moved = false;
  for (const char letter : letters) {
    moved = moved || term.dim_of(letter) != order.size();
    order.push_back(term.dim_of(letter));
  }
  return moved ? permute(term.x, order) : term.x;
}

/// Sums over the letters that nobody needs any more.
void sum_unneeded(Term& term, std::string_view needed) {
  Dims dims;
  std::string kept;
  for (const char letter : term.letters) {
    if (needed.find(letter) == std::string_view::npos) {
      dims.push_back(term.dim_of(letter));
    } else {
      kept.push_back(letter);
    }
  }
  if (!dims.empty()) {
    term = {std::move(kept), sum(term.x, dims)};
  }
}

/// Repeats extents of 1 where the other one has more.
void match_extents(std::string_view equation, const Term& from, Term& to) {
  Dims shape = to.x.shape();
  for (const char letter : to.letters) {
    if (!from.has(letter)) {
      continue;
    }
    const int dim = to.dim_of(letter);
    const std::int64_t wanted = from.x.shape()[from.dim_of(letter)];
    if (shape[dim] == 1) {
      shape[dim] = wanted;
    } else if (wanted != 1 && wanted != shape[dim]) {
      refuse_equation(
          equation,
          fmt::format("a letter has extent {} in one operand and {} in another (shapes {} and {})",
                      wanted, shape[dim], to_string(from.x.shape()), to_string(to.x.shape())));
    }
  }
  if (!(shape == to.x.shape())) {
    to.x = expand(to.x, shape);
  }
}

std::int64_t extent_of(const Term& term, std::string_view letters) {
  std::int64_t product = 1;
  for (const char letter : letters) {
    product *= term.x.shape()[term.dim_of(letter)];
  }
  return product;
}

/// The product of two terms, summed over the letters that both have and nobody needs.
Term contract(std::string_view equation, Term a, Term b, std::string_view needed) {
  sum_unneeded(a, std::string(needed) + b.letters);
  sum_unneeded(b, std::string(needed) + a.letters);
  match_extents(equation, b, a);
  match_extents(equation, a, b);
  std::string batch;
  std::string left;
  std::string right;
  std::string summed;
  for (const char letter : a.letters) {
    const bool kept = needed.find(letter) != std::string_view::npos;
    (!b.has(letter) ? left : (kept ? batch : summed)).push_back(letter);
  }
  for (const char letter : b.letters) {
    if (!a.has(letter)) {
      right.push_back(letter);
    }
  }
  Term result{batch + left + right, {}};
  Dims shape;
  for (const char letter : result.letters) {
    const Term& owner = a.has(letter) ? a : b;
    shape.push_back(owner.x.shape()[owner.dim_of(letter)]);
  }
  // Batch dims stay as they are, so that they may be sharded.
  Dims of_a;
  for (const char letter : batch) {
    of_a.push_back(a.x.shape()[a.dim_of(letter)]);
  }
  Dims of_b = of_a;
  const std::int64_t inner = extent_of(a, summed);
  of_a.push_back(extent_of(a, left));
  of_a.push_back(inner);
  of_b.push_back(inner);
  of_b.push_back(extent_of(b, right));
  const Tensor x = reshape(ordered(a, batch + left + summed), of_a);
  const Tensor y = reshape(ordered(b, batch + summed + right), of_b);
  result.x = reshape(matmul(x, y), shape);
  return result;
}

std::vector<std::string_view> terms_of(std::string_view text) {
  std::vector<std::string_view> terms;
  for (std::size_t comma = 0; comma != std::string_view::npos;) {
    comma = text.find(',');
    terms.push_back(text.substr(0, comma));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return terms;
}

/// The dots first, then the letters that occur once, in the alphabet's order.
std::string letters_of_result(const std::vector<Term>& terms, int dots) {
  std::string all;
  for (const Term& term : terms) {
    all += term.letters;
  }
  std::sort(all.begin(), all.end());
  std::string result;
  for (int i = dots; i > 0; --i) {
    result.push_back(static_cast<char>(i));
  }
  for (const char letter : all) {
    if (letter > 8 && std::count(all.begin(), all.end(), letter) == 1) {
      result.push_back(letter);
    }
  }
  return result;
}

}  // namespace

Tensor einsum(std::string_view written, std::initializer_list<Tensor> operands) {
  std::string equation(written);
  std::erase(equation, ' ');
  const std::size_t arrow = equation.find("->");
  const std::string_view text = equation;
  const std::vector<std::string_view> inputs = terms_of(text.substr(0, arrow));
  if (inputs.size() != operands.size()) {
    refuse_equation(written,
                    fmt::format("{} terms for {} operands", inputs.size(), operands.size()));
  }
  std::vector<Term> terms;
  int most_dots = 0;
  for (const Tensor& x : operands) {
    const std::string_view input = inputs[terms.size()];
    const bool dotted = input.find("...") != std::string_view::npos;
    const int dots = dotted ? x.dims() - static_cast<int>(input.size()) + 3 : 0;
    const std::string letters = with_dots(written, input, dots);
    if (static_cast<int>(letters.size()) != x.dims()) {
      refuse_equation(written, fmt::format("\"{}\" does not match an operand of shape {}", input,
                                           to_string(x.shape())));
    }
    most_dots = std::max(most_dots, dots);
    terms.push_back({letters, x});
  }
  const std::string result = arrow == std::string::npos
                                 ? letters_of_result(terms, most_dots)
                                 : with_dots(written, text.substr(arrow + 2), most_dots);
  Term product = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) {
    std::string needed = result;
    for (std::size_t k = i + 1; k < terms.size(); ++k) {
      needed += terms[k].letters;
    }
    product = contract(written, product, terms[i], needed);
  }
  sum_unneeded(product, result);
  for (const char letter : result) {
    if (!product.has(letter)) {
      refuse_equation(written,
                      fmt::format("letter {} of the result does not occur in any term", letter));
    }
  }
  return ordered(product, result);
}

}  // namespace tessera::ops
