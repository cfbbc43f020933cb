module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;
import :lines;
import :records;

namespace tessera::data {
namespace {

/// What became of a line.
struct ReadRecord {
  std::optional<DataFile> image = {};  // none: a blank line, or a fault
  std::string label = {};
  std::string fault = {};
  std::set<std::string> unread = {};
};

bool is_blank_line(std::string_view line) {
  return line.find_first_not_of(" \t") == std::string_view::npos;
}

Image read_image(const DataFile& file) {
  if (file.size() > most_image_bytes) {
    fail_input({.thing = file.path(),
                .wrong = "the file is too large for an image",
                .expected = fmt::format("at most {}", format_bytes(most_image_bytes)),
                .got = format_bytes(file.size())});
  }
  std::vector<std::byte> bytes(file.size());
  DataFile::Handle(file).read(file, 0, bytes);
  return decode_image(bytes, file.path());
}

Image in_form(Image image, const ImageForm& form, const std::string& path) {
  if (image.height == form.height && image.width == form.width) {
    return image;
  }
  if (!form.resizes) {
    fail_input({.thing = path,
                .wrong = "the image has another size than the model takes, and "
                         "preprocessor_config.json does not resize (do_resize)",
                .expected = fmt::format("{} x {}", form.width, form.height),
                .got = fmt::format("{} x {}", image.width, image.height)});
  }
  return resized(image, form.height, form.width, form.filter);
}

}  // namespace

struct LabelledImages::State {
  ImageForm form;
  RecordForms forms;
  std::vector<DataFile> files;
  std::vector<std::int64_t> first;  // image of each file
  std::vector<DataFile> images;
  std::vector<std::uint32_t> lines;  // of images
  LabelNames labels;
  std::int64_t blank_lines = 0;
  std::int64_t bad = 0;
  std::string first_bad;
  std::map<std::string, std::int64_t> unread;

  ReadRecord read(const Line& line, const std::filesystem::path& folder) const;
  void add(const Line& line, ReadRecord record, const std::string& file, Faults& faults);
  void scan(const DataFile& file, Faults& faults);
};

ReadRecord LabelledImages::State::read(const Line& line,
                                       const std::filesystem::path& folder) const {
  ReadRecord record;
  if (is_blank_line(line.text)) {
    return record;
  }
  try {
    const nlohmann::json json = parsed_record(forms.standard(line.text));
    require_labelled(json, "image");
    record.label = label_member(json);
    const std::string& path = text_member(json, "image");
    if (path.empty() || std::ranges::any_of(path, [](unsigned char c) { return c < 0x20; })) {
      fail_input({.wrong = "'image' is not the path of a file: it is empty, or has control "
                           "characters"});
    }
    DataFile file((folder / path).lexically_normal().string());
    static_cast<void>(in_form(read_image(file), form, file.path()));
    record.image.emplace(std::move(file));
    record.unread = unread_members(json, {"image", "label"});
  } catch (const Error& error) {
    record.fault = error.what();
  }
  return record;
}

void LabelledImages::State::add(const Line& line, ReadRecord record, const std::string& file,
                                Faults& faults) {
  if (!record.fault.empty()) {
    faults.add_bad(file, line.number, record.fault);
    return;
  }
  if (!record.image) {
    ++blank_lines;
    return;
  }
  constexpr std::size_t most_names = 32;
  for (const std::string& name : record.unread) {
    ++unread[unread.size() < most_names || unread.contains(name) ? name : "others"];
  }
  images.push_back(*std::move(record.image));
  lines.push_back(static_cast<std::uint32_t>(line.number));
  labels.add(record.label, file);
}

void LabelledImages::State::scan(const DataFile& file, Faults& faults) {
  const std::filesystem::path folder = std::filesystem::path(file.path()).parent_path();
  LineReader reader(file, longest_line);
  std::vector<Line> read_lines;
  std::vector<std::pair<std::int64_t, std::size_t>> too_long;
  while (reader.next(read_lines, too_long)) {
    std::vector<ReadRecord> records(read_lines.size());
    in_parallel(read_lines.size(),
                [&](std::size_t i) { records[i] = read(read_lines[i], folder); });
    for (std::size_t i = 0; i < read_lines.size(); ++i) {
      add(read_lines[i], std::move(records[i]), file.path(), faults);
    }
  }
  faults.add_too_long(file.path(), too_long);
}

LabelledImages::LabelledImages(std::span<const std::string> files, const ImageForm& form,
                               bool skip_bad, const RecordForms& forms) {
  auto state = std::make_unique<State>();
  state->form = form;
  state->forms = forms;
  Faults faults(skip_bad);
  for (const std::string& path : files) {
    state->files.push_back(DataFile::content_of(path));
    state->first.push_back(std::ssize(state->images));
    state->scan(state->files.back(), faults);
  }
  faults.throw_if_any();
  state->bad = faults.bad();
  state->first_bad = faults.first_bad();
  if (state->images.empty()) {
    fail_input({.thing = files.empty() ? "images" : files[0],
                .wrong = fmt::format("there is no image ({} blank lines, {} bad)",
                                     state->blank_lines, state->bad)});
  }
  state_ = std::move(state);
}

LabelledImages::~LabelledImages() = default;

std::int64_t LabelledImages::size() const { return std::ssize(state_->images); }
std::string LabelledImages::where(std::int64_t image) const {
  const auto file = static_cast<std::size_t>(std::ranges::upper_bound(state_->first, image) -
                                             state_->first.begin()) -
                    1;
  return fmt::format("{}:{}", state_->files[file].path(),
                     state_->lines.at(static_cast<std::size_t>(image)));
}
const std::vector<std::string>& LabelledImages::labels() const { return state_->labels.names(); }
bool LabelledImages::has_label(std::int64_t image, std::int64_t label) const {
  return state_->labels.of(image) == label;
}
std::int64_t LabelledImages::label(std::int64_t image) const { return state_->labels.of(image); }
const ImageForm& LabelledImages::form() const { return state_->form; }
const std::string& LabelledImages::path(std::int64_t image) const {
  return state_->images.at(static_cast<std::size_t>(image)).path();
}
std::size_t LabelledImages::files() const { return state_->files.size(); }
std::int64_t LabelledImages::blank_lines() const { return state_->blank_lines; }
std::int64_t LabelledImages::bad() const { return state_->bad; }
const std::string& LabelledImages::first_bad() const { return state_->first_bad; }
const std::map<std::string, std::int64_t>& LabelledImages::unread() const { return state_->unread; }

void LabelledImages::read(std::int64_t image, std::span<std::uint8_t> pixels) const {
  const DataFile& file = state_->images.at(static_cast<std::size_t>(image));
  const Image read = in_form(read_image(file), state_->form, file.path());
  require(read.pixels.size() == pixels.size(), "image: a row of another size");
  std::ranges::copy(read.pixels, pixels.begin());
}

std::string LabelledImages::content_hash() const {
  const std::string of_records = hash_of(state_->files, columns_text(state_->forms));
  return hash_of(state_->images, of_records);
}

ImageRows::ImageRows(std::shared_ptr<const LabelledImages> images, std::int64_t begin,
                     std::int64_t end, std::vector<std::int64_t> classes)
    : images_(std::move(images)), begin_(begin), end_(end), classes_(std::move(classes)) {}

std::int64_t ImageRows::rows() const { return end_ - begin_; }
std::int64_t ImageRows::trained(std::int64_t /*row*/) const { return 1; }
std::int64_t ImageRows::used(std::int64_t /*row*/) const { return 1; }
std::string ImageRows::where(std::int64_t row) const { return images_->where(begin_ + row); }
std::vector<RowRecord> ImageRows::records(std::int64_t row) const {
  return {{.place = parse_record_place(where(row)), .end = 1, .trained = 1, .is_document = true}};
}

void ImageRows::read(std::int64_t row, std::span<std::int64_t> inputs,
                     std::span<std::int64_t> targets) const {
  std::ranges::fill(inputs, begin_ + row);
  std::ranges::fill(targets, classes_[static_cast<std::size_t>(images_->label(begin_ + row))]);
}

void ImageRows::read_pixels(std::int64_t row, std::span<std::uint8_t> pixels) const {
  images_->read(begin_ + row, pixels);
}

}  // namespace tessera::data
