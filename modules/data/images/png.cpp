#include <png.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats.hpp"

namespace tessera::data::formats {
namespace {

/// What is read, and where reading is.
struct Reader {
  Coded* coded = nullptr;
  std::size_t at = 0;
};

[[noreturn]] void on_error(png_structp png, png_const_charp text) {
  say(*static_cast<Reader*>(png_get_error_ptr(png))->coded, text);
  png_longjmp(png, 1);
}

void on_warning(png_structp /*png*/, png_const_charp /*text*/) {}

void read_bytes(png_structp png, png_bytep out, png_size_t count) {
  Reader& reader = *static_cast<Reader*>(png_get_io_ptr(png));
  if (count > reader.coded->size - reader.at) {
    png_error(png, "the file is truncated");
  }
  std::memcpy(out, reader.coded->bytes + reader.at, count);
  reader.at += count;
}

/// Everything that may leave by longjmp.
void decode(png_structp png, png_infop info, Coded& coded) {
  png_read_info(png, info);
  const auto width = static_cast<std::int64_t>(png_get_image_width(png, info));
  const auto height = static_cast<std::int64_t>(png_get_image_height(png, info));
  if (!may_have(coded, width, height)) {
    return;
  }
  if (png_get_bit_depth(png, info) == 16) {
    say(coded, "it has 16 bits a channel, and 8 are read; convert it");
    return;
  }
  // Palettes and grey of less than 8 bits become bytes; what is transparent is left out.
  png_set_palette_to_rgb(png);
  png_set_expand_gray_1_2_4_to_8(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  if (png_get_rowbytes(png, info) != static_cast<std::size_t>(width) * 3) {
    say(coded, "its rows are not red, green and blue");
    return;
  }
  unsigned char* const pixels = coded.allocate(
      coded.owner, static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  if (pixels == nullptr) {
    say(coded, "there is no memory for its pixels");
    return;
  }
  for (int pass = 0; pass < passes; ++pass) {
    for (std::int64_t row = 0; row < height; ++row) {
      png_read_row(png, pixels + row * width * 3, nullptr);
    }
  }
  png_read_end(png, nullptr);
  coded.width = width;
  coded.height = height;
}

}  // namespace

bool is_png(const unsigned char* bytes, std::size_t size) {
  return size >= 8 && png_sig_cmp(bytes, 0, 8) == 0;
}

void decode_png(Coded& coded) {
  Reader reader{&coded, 0};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  if (info == nullptr) {
    say(coded, "there is no memory to read it");
  } else if (setjmp(png_jmpbuf(png)) == 0) {
    png_set_user_limits(png, 1'000'000, 1'000'000);
    png_set_chunk_malloc_max(png, std::size_t{8} << 20);
    png_set_read_fn(png, &reader, read_bytes);
    decode(png, info, coded);
  }
  png_destroy_read_struct(&png, &info, nullptr);
}

}  // namespace tessera::data::formats
