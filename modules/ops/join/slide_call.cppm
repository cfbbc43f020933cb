// Where the elements of a dim come from when they change places by a rule.
module tessera.ops:slide_call;

import tessera.base;
import :join;

namespace tessera::ops {

/// From where each element of a dim comes.
struct Slide {
  enum class Kind { none, flip, roll, pad };
  Kind kind = Kind::none;
  std::int64_t extent = 0;
  std::int64_t result = 0;
  std::int64_t shift = 0;  // of element 0
  PadMode mode = PadMode::constant;

  std::int64_t source(std::int64_t i) const {
    if (kind == Kind::flip) {
      return extent - 1 - i;
    }
    const std::int64_t at = i - shift;
    if (at >= 0 && at < extent) {
      return at;
    }
    if (kind == Kind::roll || mode == PadMode::circular) {
      return (at % extent + extent) % extent;
    }
    if (mode == PadMode::replicate) {
      return at < 0 ? 0 : extent - 1;
    }
    if (mode == PadMode::reflect) {
      return at < 0 ? -at : 2 * (extent - 1) - at;
    }
    return -1;
  }

  /// The source of each element of the result, into `all`.
  void write_sources(std::int64_t* all) const {
    for (std::int64_t i = 0; i < result; ++i) {
      all[i] = source(i);
    }
  }
};

/// One for each dim of x.
using Slides = std::array<Slide, max_dims>;

inline Slides still(const Dims& x) {
  Slides slides;
  for (int d = 0; d < x.size(); ++d) {
    slides[static_cast<std::size_t>(d)].extent = x[d];
    slides[static_cast<std::size_t>(d)].result = x[d];
  }
  return slides;
}

}  // namespace tessera::ops
