// Images of files as Pillow decodes and resizes them (tests/reference/image_classification.py),
// records of images, and files that are none.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tokenize;
import tessera.data;

#include "support.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::data;
using Catch::Contains;

namespace {

const std::string folder_of_images =
    std::string(TESSERA_SOURCE_DIR) + "/tests/reference/data/image_classification/";

Image decoded(const std::string& bytes) {
  return decode_image(std::as_bytes(std::span(bytes)), "image");
}

std::string refusal(const std::string& bytes) {
  return input_error([&] { decoded(bytes); });
}

Json stored() { return Json::parse(read_file(folder_of_images + "pixels.json")); }

std::vector<std::uint8_t> bytes_in(const Json& list) {
  return list.get<std::vector<std::uint8_t>>();
}

/// The names of its files.
std::vector<std::string> one(const std::string& path) { return {path}; }

}  // namespace

TEST_CASE("images are decoded and resized as Pillow does") {
  const Json all = stored();
  REQUIRE(all["cases"].size() == 7);
  for (const Json& own : all["cases"]) {
    INFO(own["image"]);
    const Image image = decoded(read_file(folder_of_images + own["image"].get<std::string>()));
    REQUIRE(image.width == own["width"]);
    REQUIRE(image.height == own["height"]);
    CHECK(image.pixels == bytes_in(own["pixels"]));
    for (const auto& [name, filter] :
         {std::pair("lanczos", ImageFilter::lanczos), std::pair("bilinear", ImageFilter::bilinear),
          std::pair("bicubic", ImageFilter::bicubic)}) {
      INFO(name);
      const Image other = resized(image, all["height"], all["width"], filter);
      CHECK(other.pixels == bytes_in(own[name]));
    }
  }
}

TEST_CASE("an image of the size that is asked for keeps its bits, and one pixel fills any size") {
  const Image image{.height = 1, .width = 2, .pixels = {1, 2, 3, 250, 251, 252}};
  CHECK(resized(image, 1, 2, ImageFilter::bicubic).pixels == image.pixels);
  const Image point{.height = 1, .width = 1, .pixels = {7, 8, 9}};
  const Image large = resized(point, 3, 2, ImageFilter::lanczos);
  REQUIRE(large.pixels.size() == 18);
  for (std::size_t i = 0; i < large.pixels.size(); ++i) {
    CHECK(large.pixels[i] == 7 + i % 3);
  }
}

TEST_CASE("what is no image, or a damaged one, is refused") {
  CHECK_THAT(refusal(""), Contains("image: is not a file of an image (expected PNG or JPEG"));
  CHECK_THAT(refusal("GIF89a..."), Contains("is not a file of an image"));
  const std::string png = read_file(folder_of_images + "images/05.png");
  const std::string jpeg = read_file(folder_of_images + "images/00.jpg");
  REQUIRE(png.size() > 200);
  REQUIRE(jpeg.size() > 200);
  // Every beginning of a file is an error, and nothing else.
  for (const std::string& whole : {png, jpeg}) {
    REQUIRE(refusal(whole).empty());
    for (std::size_t size = 0; size + 2 < whole.size(); size += whole.size() / 40 + 1) {
      INFO(size);
      CHECK_FALSE(refusal(whole.substr(0, size)).empty());
    }
  }
  // Changed bytes of compressed pixels: a PNG has a checksum of them.
  std::string changed = png;
  changed[changed.size() / 2] = static_cast<char>(changed[changed.size() / 2] ^ 0x40);
  CHECK_THAT(refusal(changed), Contains("the PNG file cannot be read"));
  // A header that promises more than memory has.
  std::string large = png;
  large.replace(16, 8, std::string("\x00\x00\x7F\xFF\x00\x00\x7F\xFF", 8));
  CHECK_FALSE(refusal(large).empty());
}

TEST_CASE("records of images are read at once, with every fault named") {
  const Folder folder;
  const auto image = [&](int number) {
    return folder_of_images + "images/0" + std::to_string(number) + ".png";
  };
  const auto record = [&](const std::string& path, const std::string& label) {
    return Json{{"image", path}, {"label", label}, {"from", "a camera"}}.dump() + "\n";
  };
  folder.write("text.png", "no image");
  const ImageForm form{.height = 6, .width = 5};
  const std::string good =
      folder.write("good.jsonl", record(image(5), "cat") + "\n" + record(image(6), "dog") +
                                     record(image(5), "cat"));
  const LabelledImages images(one(good), form, false, {});
  CHECK(images.size() == 3);
  CHECK(images.labels() == std::vector<std::string>{"cat", "dog"});
  CHECK(images.label(1) == 1);
  CHECK(images.blank_lines() == 1);
  CHECK(images.where(1) == good + ":3");
  CHECK(images.unread().at("from") == 3);
  std::vector<std::uint8_t> pixels(form.bytes());
  images.read(1, pixels);
  CHECK(pixels == resized(decoded(read_file(image(6))), 6, 5, ImageFilter::bilinear).pixels);

  const std::string bad = folder.write(
      "bad.jsonl", record("none.png", "cat") + record("text.png", "cat") + record("", "cat") +
                       "{\"image\": \"text.png\"}\n{\"image\": 1, \"label\": 2}\n" +
                       record("/dev/zero", "cat") + record(image(5), "cat"));
  const std::string faults = input_error([&] { LabelledImages(one(bad), form, false, {}); });
  for (const char* const text :
       {"6 faults", "bad.jsonl:1: ", "none.png: cannot be read",
        "text.png: is not a file of an image", "bad.jsonl:3: 'image' is not the path",
        "bad.jsonl:4: 'label' is missing", "bad.jsonl:5: 'image' must be a text",
        "/dev/zero: is not a regular file"}) {
    CHECK_THAT(faults, Contains(text));
  }
  const LabelledImages rest(one(bad), form, true, {});
  CHECK(rest.size() == 1);
  CHECK(rest.bad() == 6);
  CHECK_THAT(rest.first_bad(), Contains("bad.jsonl:1: "));
  CHECK_THAT(input_error([&] {
               LabelledImages(one(good), {.height = 6, .width = 5, .resizes = false}, false, {});
             }),
             Contains("the image has another size than the model takes"));
}

TEST_CASE("images are a part of the hash of their data, and must not change") {
  const Folder folder;
  const std::string copy = folder.write("copy.png", read_file(folder_of_images + "images/05.png"));
  const std::string records = folder.write("records.jsonl", R"({"image": "copy.png", "label": 0})"
                                                            "\n");
  const ImageForm form{.height = 4, .width = 4};
  const LabelledImages images(one(records), form, false, {});
  const std::string before = images.content_hash();
  folder.write("copy.png", read_file(folder_of_images + "images/06.png"));
  std::vector<std::uint8_t> pixels(form.bytes());
  CHECK_THAT(input_error([&] { images.read(0, pixels); }), Contains("while the run read it"));
  CHECK(LabelledImages(one(records), form, false, {}).content_hash() != before);
}
