// The code of a module that the emulated NVRTC has made: this mark, and the path of a library.
#pragma once
#include <string_view>

namespace emulator {

inline constexpr std::string_view module_image_mark = "emulated kernels: ";

}  // namespace emulator
