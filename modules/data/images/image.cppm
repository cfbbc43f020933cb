export module tessera.data:image;

import tessera.base;

// Images of files as pixels.

export namespace tessera::data {

/// An image, row by row from its top: red, green and blue of each pixel.
struct Image {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> pixels = {};  // [height, width, 3]
};

/// The most pixels that an image may have: 50 million.
inline constexpr std::int64_t most_pixels = 50'000'000;
/// The most bytes that a file of an image may have: 64 MiB.
inline constexpr std::size_t most_image_bytes = std::size_t{64} << 20;

/// The image in the bytes of a PNG or JPEG file. Grey becomes three equal values, a palette its
/// colours, and transparency is left out, as by Pillow's convert("RGB"); colour profiles and EXIF
/// are not read. Errors (input) that begin with `name`: it is another file; it is damaged or
/// truncated; 16 bits a channel; CMYK; more than most_pixels.
Image decode_image(std::span<const std::byte> file, const std::string& name);

/// How pixels of another size are computed: Pillow's filters.
enum class ImageFilter : std::uint8_t { lanczos, bilinear, bicubic };

/// The image in another size, with the bits of Image.resize in Pillow 10 to 12. Sizes must be
/// positive.
/// Source: Pillow, libImaging/Resample.c: a pass over rows and one over columns, in fixed point.
Image resized(const Image& image, std::int64_t height, std::int64_t width, ImageFilter filter);

}  // namespace tessera::data
