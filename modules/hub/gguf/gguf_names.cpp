module;
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>
module tessera.hub;

import tessera.base;
import :gguf_names;

namespace tessera::hub {

std::vector<float> llama3_factors(std::int64_t width, double theta, double factor, double low,
                                  double high, double original) {
  std::vector<float> factors;
  for (std::int64_t i = 0; i < width; i += 2) {
    const double wavelength =
        2 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / static_cast<double>(width));
    const double smooth = (original / wavelength - low) / (high - low);
    const double value = wavelength < original / high  ? 1
                         : wavelength > original / low ? factor
                                                       : 1 / ((1 - smooth) / factor + smooth);
    factors.push_back(static_cast<float>(value));
  }
  return factors;
}

namespace {

std::vector<std::string> split(const std::string& text, std::string_view between) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t at = text.find(between); at != std::string::npos;
       at = text.find(between, begin)) {
    parts.push_back(text.substr(begin, at - begin));
    begin = at + between.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

}  // namespace

std::vector<GgufTerm> terms_of(const std::string& text) {
  std::vector<GgufTerm> terms;
  for (const std::string& term : split(text, " = ")) {
    const bool product = term.find(" * ") != std::string::npos;
    terms.push_back({product, split(term, product ? " * " : " + ")});
  }
  return terms;
}

std::vector<std::int64_t> every_so_many(std::int64_t period, std::int64_t layers) {
  std::vector<std::int64_t> list;
  for (std::int64_t layer = period - 1; period > 0 && layer < layers; layer += period) {
    list.push_back(layer);
  }
  return list;
}

std::vector<std::int64_t> rope_sections(std::int64_t pairs) {
  return {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
}

}  // namespace tessera::hub
