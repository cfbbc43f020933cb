#include <csetjmp>
#include <cstdio>
#include <cstring>

// Needs size_t and FILE.
#include <jerror.h>
#include <jpeglib.h>

#include "formats.hpp"

namespace tessera::data::formats {
namespace {

/// libjpeg's errors, with the place to return to.
struct Errors {
  jpeg_error_mgr manager;  // the first member: libjpeg knows its address only
  std::jmp_buf back;
  Coded* coded = nullptr;
};

[[noreturn]] void on_error(j_common_ptr info) {
  auto* const errors = reinterpret_cast<Errors*>(info->err);
  char text[JMSG_LENGTH_MAX];
  (*info->err->format_message)(info, text);
  say(*errors->coded, text);
  std::longjmp(errors->back, 1);
}

/// Warnings are of damaged files, whose pixels are not those that were written. Bytes that nobody
/// reads between two parts are none.
void on_message(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code != JWRN_EXTRANEOUS_DATA) {
    on_error(info);
  }
}

/// Everything that may leave by longjmp.
void decode(jpeg_decompress_struct& info, Coded& coded) {
  jpeg_mem_src(&info, coded.bytes, static_cast<unsigned long>(coded.size));
  jpeg_read_header(&info, TRUE);
  const auto width = static_cast<std::int64_t>(info.image_width);
  const auto height = static_cast<std::int64_t>(info.image_height);
  if (!may_have(coded, width, height)) {
    return;
  }
  if (info.num_components != 1 && info.num_components != 3) {
    say(coded, "its colours are CMYK; convert it to RGB");
    return;
  }
  info.out_color_space = JCS_RGB;
  info.mem->max_memory_to_use = long{1} << 30;
  jpeg_start_decompress(&info);
  unsigned char* const pixels = coded.allocate(
      coded.owner, static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  if (pixels == nullptr) {
    say(coded, "there is no memory for its pixels");
    return;
  }
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels + static_cast<std::int64_t>(info.output_scanline) * width * 3;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  coded.width = width;
  coded.height = height;
}

}  // namespace

bool is_jpeg(const unsigned char* bytes, std::size_t size) {
  return size >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF;
}

void decode_jpeg(Coded& coded) {
  Errors errors;
  errors.coded = &coded;
  jpeg_decompress_struct info;
  std::memset(&info, 0, sizeof(info));
  info.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = on_error;
  errors.manager.emit_message = on_message;
  if (setjmp(errors.back) == 0) {
    jpeg_create_decompress(&info);
    decode(info, coded);
  }
  jpeg_destroy_decompress(&info);
}

}  // namespace tessera::data::formats
