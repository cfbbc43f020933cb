// The code of a module that the emulated NVRTC has made: this mark, and a library of a length in 8
// bytes.
#pragma once
#include <string_view>

namespace emulator {

inline constexpr std::string_view module_image_mark = "emulated kernels: ";

}  // namespace emulator
