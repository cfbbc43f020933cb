// Text of the emulator's errors.
#pragma once
#include <sstream>
#include <string>

namespace emulator {

template <class... T>
std::string text(const T&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

inline std::string address(const void* data) { return text(data); }

}  // namespace emulator
