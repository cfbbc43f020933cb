// Images of PNG and JPEG files by libpng and libjpeg, whose errors leave by longjmp. So these
// functions hold nothing that has a destructor, and say what is wrong in a text.
#pragma once
#include <cstddef>
#include <cstdint>

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

bool is_png(const unsigned char* bytes, std::size_t size);
bool is_jpeg(const unsigned char* bytes, std::size_t size);
/// Fill the memory, height and width; or problem.
void decode_png(Coded& coded);
void decode_jpeg(Coded& coded);

}  // namespace tessera::data::formats
