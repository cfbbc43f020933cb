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

std::vector<std::string> summands(const std::string& sum) {
  constexpr std::string_view plus = " + ";
  std::vector<std::string> keys;
  std::size_t begin = 0;
  for (std::size_t at = sum.find(plus); at != std::string::npos; at = sum.find(plus, begin)) {
    keys.push_back(sum.substr(begin, at - begin));
    begin = at + plus.size();
  }
  keys.push_back(sum.substr(begin));
  return keys;
}

}  // namespace tessera::hub
