#pragma once
// What a machine does with four unsigned codes of a lane and four signed ones: sums of products.
// For sources of this folder only.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "shared/kernels/simd.hpp"

namespace tessera::kernels::integers {

using simd::I32;

/// On any machine: products of words of 16 bits.
struct PlainDots {
  static constexpr bool kSigned8 = false;  // the right operand is `even` and `odd`
  [[gnu::always_inline]] static I32 pairs(I32 left, I32 right) {
    return (left & 0xffff) * (right << 16 >> 16) + (left >> 16) * (right >> 16);
  }
  [[gnu::always_inline]] static void add(I32& sum, const I32& codes, const I32& even,
                                         const I32& odd) {
    sum += pairs(codes & 0x00ff00ff, even) + pairs((codes >> 8) & 0x00ff00ff, odd);
  }
};

#if defined(__x86_64__)
// A function with more instructions than its caller cannot be always inlined. These are inlined
// all the same when their callers are in a function that has the instructions. They pass no
// vectors, as who has wider registers passes them otherwise.

// The halves of other vectors, for machines with registers of 32 bytes.
using Shorts16 = std::int16_t __attribute__((vector_size(32), may_alias));
using Words8 = std::int32_t __attribute__((vector_size(32), may_alias));
using Shorts32 = std::int16_t __attribute__((vector_size(64), may_alias));

struct Avx2Dots {
  static constexpr bool kSigned8 = false;
  __attribute__((target("avx2"))) static void add(I32& sum, const I32& codes, const I32& even,
                                                  const I32& odd) {
    const I32 low = codes & 0x00ff00ff;
    const I32 high = (codes >> 8) & 0x00ff00ff;
    const auto* const left = reinterpret_cast<const Shorts16*>(&low);
    const auto* const right = reinterpret_cast<const Shorts16*>(&even);
    const auto* const left_odd = reinterpret_cast<const Shorts16*>(&high);
    const auto* const right_odd = reinterpret_cast<const Shorts16*>(&odd);
    auto* const to = reinterpret_cast<Words8*>(&sum);
    for (int half = 0; half < 2; ++half) {
      to[half] += __builtin_ia32_pmaddwd256(left[half], right[half]);
      to[half] += __builtin_ia32_pmaddwd256(left_odd[half], right_odd[half]);
    }
  }
};

struct Avx512Dots {
  static constexpr bool kSigned8 = false;
  __attribute__((target("avx512f,avx512bw"))) static void add(I32& sum, const I32& codes,
                                                              const I32& even, const I32& odd) {
    const I32 low = codes & 0x00ff00ff;
    const I32 high = (codes >> 8) & 0x00ff00ff;
    sum += __builtin_ia32_pmaddwd512(reinterpret_cast<const Shorts32&>(low),
                                     reinterpret_cast<const Shorts32&>(even));
    sum += __builtin_ia32_pmaddwd512(reinterpret_cast<const Shorts32&>(high),
                                     reinterpret_cast<const Shorts32&>(odd));
  }
};

/// By the instruction for unsigned and signed bytes.
struct AvxVnniDots {
  static constexpr bool kSigned8 = true;  // the right operand is `four`
  __attribute__((target("avx2,avxvnni"))) static void add(I32& sum, const I32& codes,
                                                          const I32& four, const I32&) {
    const auto* const left = reinterpret_cast<const Words8*>(&codes);
    const auto* const right = reinterpret_cast<const Words8*>(&four);
    auto* const to = reinterpret_cast<Words8*>(&sum);
    to[0] = __builtin_ia32_vpdpbusd256(to[0], left[0], right[0]);
    to[1] = __builtin_ia32_vpdpbusd256(to[1], left[1], right[1]);
  }
};

struct Avx512VnniDots {
  static constexpr bool kSigned8 = true;
  __attribute__((target("avx512f,avx512vnni"))) static void add(I32& sum, const I32& codes,
                                                                const I32& four, const I32&) {
    sum = __builtin_ia32_vpdpbusd512(sum, codes, four);
  }
};

template <class Body>
__attribute__((flatten, min_vector_width(512),
               target("avx2,fma,bmi,bmi2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))) void
run_avx512_vnni(Body& body) {
  body(simd::Isa<simd::Level::avx512>{}, Avx512VnniDots{});
}
template <class Body>
__attribute__((flatten, target("avx2,fma,bmi,bmi2,f16c,avxvnni"))) void run_avx_vnni(Body& body) {
  body(simd::Isa<simd::Level::avx2>{}, AvxVnniDots{});
}
#endif

/// Calls body(isa, dots) with the fastest of them that this machine has. TESSERA_SIMD (for tests)
/// chooses a level alone, without what some of its machines have besides, or `avx_vnni`.
template <class Body>
void dispatch_dots(Body&& body) {
#if defined(__x86_64__)
  enum class Bytes : std::uint8_t { none, avx, avx512 };
  static const Bytes best = [] {
    const char* const wanted = std::getenv("TESSERA_SIMD");
    const std::string_view limit = wanted == nullptr ? "" : wanted;
    __builtin_cpu_init();
    if (limit.empty() && simd::level() == simd::Level::avx512 &&
        __builtin_cpu_supports("avx512vnni")) {
      return Bytes::avx512;
    }
    const bool takes_avx =
        limit == "avx_vnni" || (limit.empty() && simd::level() == simd::Level::avx2);
    return takes_avx && simd::level() != simd::Level::base && __builtin_cpu_supports("avxvnni")
               ? Bytes::avx
               : Bytes::none;
  }();
  if (best == Bytes::avx512) return run_avx512_vnni(body);
  if (best == Bytes::avx) return run_avx_vnni(body);
#endif
  simd::dispatch([&]<class Isa>(Isa isa) __attribute__((always_inline)) {
#if defined(__x86_64__)
    if constexpr (Isa::kLevel == simd::Level::avx512) return body(isa, Avx512Dots{});
    if constexpr (Isa::kLevel == simd::Level::avx2) return body(isa, Avx2Dots{});
#endif
    if constexpr (Isa::kLevel == simd::Level::base) return body(isa, PlainDots{});
  });
}

}  // namespace tessera::kernels::integers
