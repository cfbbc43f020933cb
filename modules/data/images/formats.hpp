// Images of PNG and JPEG files by libpng and libjpeg, whose errors leave by longjmp. So these
// functions hold nothing that has a destructor, and say what is wrong in a text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace tessera::data::formats {

/// Bytes of a file, and what became of them.
struct Coded {
  const unsigned char* bytes = nullptr;
  std::size_t size = 0;
  std::int64_t most_pixels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  /// Memory for [height, width, 3]; null: there is none. It must not throw.
  unsigned char* (*allocate)(void* owner, std::size_t bytes) = nullptr;
  void* owner = nullptr;
  char problem[200] = "";  // empty: none
};

inline void say(Coded& coded, const char* text) {
  std::snprintf(coded.problem, sizeof(coded.problem), "%s", text);
}

/// Whether an image of this size may be decoded; says so where it may not.
inline bool may_have(Coded& coded, std::int64_t width, std::int64_t height) {
  if (width <= coded.most_pixels / height) {
    return true;
  }
  std::snprintf(coded.problem, sizeof(coded.problem),
                "it has too many pixels (expected at most %lld, got %lld x %lld)",
                static_cast<long long>(coded.most_pixels), static_cast<long long>(width),
                static_cast<long long>(height));
  return false;
}

bool is_png(const unsigned char* bytes, std::size_t size);
bool is_jpeg(const unsigned char* bytes, std::size_t size);
/// Fill the memory, height and width; or problem.
void decode_png(Coded& coded);
void decode_jpeg(Coded& coded);

}  // namespace tessera::data::formats
