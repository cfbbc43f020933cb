module;
#include <span>
#include <string>
#include <string_view>

#include "shared/kernels/simd.hpp"
module tessera.ops;

import tessera.base;

namespace tessera::ops {
namespace {

constexpr SourceFile headers[] = {
#include TESSERA_ELEMENT_HEADERS
};

}  // namespace

std::span<const SourceFile> element_headers() { return headers; }

std::string element_options() {
  using kernels::simd::Level;
  std::string options = "-DTESSERA_NATIVE_KERNELS";
  if (kernels::simd::level() != Level::base) {
    options += " -mavx2 -mfma -mbmi -mbmi2 -mf16c";
  }
  if (kernels::simd::level() == Level::avx512) {
    options += " -mavx512f -mavx512bw -mavx512dq -mavx512vl";
  }
  return options;
}

}  // namespace tessera::ops
