// Changes of an input that know the formats' words but not their rules.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "target.hpp"

namespace fuzz {
namespace {

constexpr std::size_t longest_input = std::size_t{1} << 18;

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t count) { return random() % count; }

void change_bytes(std::string& text, Random& random) {
  for (std::size_t n = 1 + below(random, 4); n > 0; --n) {
    const std::size_t at = below(random, text.size());
    text[at] =
        static_cast<char>(random() % 3 == 0 ? random() % 256 : text[at] ^ (1 << random() % 8));
  }
}

/// One of a few sizes, in binary, as lengths and offsets are.
void write_number(std::string& text, Random& random) {
  constexpr std::array<std::uint64_t, 14> values = {0,
                                                    1,
                                                    2,
                                                    0x7f,
                                                    0x80,
                                                    0xff,
                                                    0x7fff,
                                                    0xffff,
                                                    0x7fffffff,
                                                    0x80000000,
                                                    0xffffffff,
                                                    std::uint64_t{1} << 40,
                                                    ~std::uint64_t{0} >> 1,
                                                    ~std::uint64_t{0}};
  const std::uint64_t value = values.at(below(random, values.size())) + random() % 3 - 1;
  const std::size_t width = std::size_t{1} << below(random, 4);
  const std::size_t at = below(random, text.size());
  for (std::size_t i = 0; i < width && at + i < text.size(); ++i) {
    text[at + i] = static_cast<char>(value >> (8 * i));
  }
}

/// Digits of the text become another number.
void change_digits(std::string& text, Random& random) {
  constexpr std::array<const char*, 16> values = {"0",
                                                  "-1",
                                                  "1",
                                                  "2",
                                                  "1.5",
                                                  "1e999",
                                                  "nan",
                                                  "65537",
                                                  "2147483648",
                                                  "4294967296",
                                                  "9223372036854775807",
                                                  "-9223372036854775808",
                                                  "18446744073709551616",
                                                  "1e-400",
                                                  "00",
                                                  ""};
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::size_t start = below(random, text.size());
  const auto begin =
      std::find_if(text.begin() + static_cast<std::ptrdiff_t>(start), text.end(), is_digit);
  const auto end = std::find_if_not(begin, text.end(), is_digit);
  text.replace(begin, end, values.at(below(random, values.size())));
}

void move_range(std::string& text, Random& random) {
  const std::size_t at = below(random, text.size());
  const std::size_t size =
      1 + below(random, std::min<std::size_t>(text.size() - at, 1 + below(random, 200)));
  switch (below(random, 4)) {
    case 0:
      text.erase(at, size);
      break;
    case 1:  // many times, as depth and length are
      for (std::size_t n = std::size_t{1} << below(random, 10);
           n > 0 && text.size() < longest_input; --n) {
        text.insert(at, text.substr(at, size));
      }
      break;
    case 2:
      text.insert(below(random, text.size()), text.substr(at, size));
      break;
    default:
      text.resize(at);
  }
}

void insert_word(std::string& text, const std::vector<std::string>& words, Random& random) {
  const std::string& word = words[below(random, words.size())];
  const std::size_t at = below(random, text.size() + 1);
  if (random() % 2 == 0) {
    text.insert(at, word);
  } else {
    text.replace(at, std::min(word.size(), text.size() - at), word);
  }
}

}  // namespace

std::string mutated(std::string input, const std::vector<std::string>& words,
                    std::uint64_t random_seed) {
  Random random(random_seed);
  for (std::size_t n = 1 + below(random, 5); n > 0; --n) {
    if (input.empty()) {
      input = std::string(1 + below(random, 8), static_cast<char>(random() % 256));
    }
    const std::size_t kind = below(random, words.empty() ? 4 : 6);
    if (kind == 0) {
      change_bytes(input, random);
    } else if (kind == 1) {
      write_number(input, random);
    } else if (kind == 2) {
      change_digits(input, random);
    } else if (kind == 3) {
      move_range(input, random);
    } else {
      insert_word(input, words, random);
    }
  }
  input.resize(std::min(input.size(), longest_input));
  return input;
}

}  // namespace fuzz
