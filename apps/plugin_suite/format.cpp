module;
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.checkpoint;

// A format of checkpoints: whether what it writes is what it reads, whole and in parts.
namespace tessera::plugin_suite {
namespace {

namespace fs = std::filesystem;

/// A folder of this process that goes away with the object.
class Scratch {
 public:
  Scratch() : path_(fs::temp_directory_path() / fmt::format("tessera-format-{}", ::getpid())) {
    fs::remove_all(path_);
    fs::create_directory(path_);
  }
  Scratch(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string at(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

/// A tensor whose elements are told apart as well as the type can.
Tensor sample(DType dtype, const Dims& shape) {
  const auto kept = is_stored_only(dtype) ? DType::f32 : dtype;
  Tensor values = empty(shape, DType::f32);
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    values.data<float>()[i] = static_cast<float>(kept == DType::boolean ? i % 2 : i);
  }
  return ops::cast(values, dtype);
}

std::map<std::string, Tensor> samples_of_all_types() {
  std::map<std::string, Tensor> tensors{{"vector", sample(DType::f32, {7})},
                                        {"single", sample(DType::f32, {})},
                                        {"empty", sample(DType::f32, {0, 2})}};
  for (std::size_t i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    tensors.emplace(fmt::format("layer.{}", name_of(dtype)), sample(dtype, {3, 4, 2}));
  }
  return tensors;
}

/// Tensors of all types, whose values and shapes tell them and their elements apart.
class Samples final : public TensorsInMemory {
 public:
  Samples() : TensorsInMemory(samples_of_all_types(), "samples") {
    scalars_ = {{"step", std::int64_t{12}}, {"rate", 0.25}, {"name", std::string("run")}};
  }
};

/// The first difference of the tensors of `read`, which has them from `samples`; "" if there is
/// none.
std::string difference(const TensorSource& read, const TensorSource& samples) {
  for (const TensorDifference& d : compare_tensors(samples, read)) {
    return fmt::format("tensor '{}' differs: {}", d.name,
                       !d.problem.empty() ? d.problem
                       : !d.types.empty() ? d.types
                                          : fmt::format("{} elements", d.elements));
  }
  return "";
}

std::string reads_what_it_writes(const CheckpointFormat& format, const std::string& folder,
                                 const WrittenCounts& written) {
  const Samples samples;
  const auto read = format.open(folder);
  if (const std::string text = difference(*read, samples); !text.empty()) {
    return text;
  }
  if (written.tensors != samples.tensors().size()) {
    return fmt::format("write() returns {} tensors (expected {})", written.tensors,
                       samples.tensors().size());
  }
  const std::size_t scalars = read->scalars().size();
  if (scalars != written.scalars || (scalars > 0 && read->scalars() != samples.scalars())) {
    return fmt::format("{} scalars were written, and {} or other ones read", written.scalars,
                       scalars);
  }
  return read->files().empty() ? "files() names no file, so a run could not tell other weights"
                               : "";
}

std::string reads_boxes(const CheckpointFormat& format, const std::string& folder) {
  const Samples samples;
  const auto read = format.open(folder);
  const LocalPart box{{1, 2, 0}, {2, 1, 2}};
  for (const auto& [name, info] : samples.tensors()) {
    if (info.shape.size() != 3) {
      continue;
    }
    trying(fmt::format("a box of {}", name_of(info.dtype)));
    const Tensor expected = empty(box.shape, info.dtype);
    samples.read(name, box, expected);
    const Tensor strided = ops::transpose(empty({2, 1, 2}, info.dtype), 0, 2);
    read->read(name, box, strided);
    const auto values = [](const Tensor& t) { return ops::cast(ops::contiguous(t), DType::f64); };
    const Tensor a = values(strided);
    const Tensor b = values(expected);
    for (std::int64_t i = 0; i < b.numel(); ++i) {
      if (a.data<double>()[i] != b.data<double>()[i]) {
        return fmt::format(
            "the box of shape {} at {} of '{}', read into a transposed tensor, has "
            "{} at its element {} (expected {})",
            to_string(box.shape), to_string(box.offset), name, a.data<double>()[i], i,
            b.data<double>()[i]);
      }
    }
  }
  return "";
}

std::string recognises_its_own(const CheckpointFormat& format, const std::string& folder,
                               const Scratch& scratch) {
  if (!format.recognises(folder)) {
    return "recognises() is false for what it wrote";
  }
  fs::create_directory(scratch.at("other"));
  for (const char* other : {"other", "missing"}) {
    if (format.recognises(scratch.at(other))) {
      return fmt::format("recognises() is true for {} folder",
                         std::string(other) == "other" ? "an empty" : "a missing");
    }
  }
  return format.described().empty() ? "described() is empty" : "";
}

std::string refuses_cut_files(const CheckpointFormat& format, const std::string& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::uintmax_t size = entry.file_size();
    if (size < 2) {
      continue;
    }
    trying(fmt::format("{} cut to half", entry.path().filename().string()));
    const fs::path whole = entry.path().string() + ".whole";
    fs::copy_file(entry.path(), whole);
    fs::resize_file(entry.path(), size / 2);
    bool refused = false;
    try {
      const auto read = format.open(folder);
      for (const auto& [name, info] : read->tensors()) {
        static_cast<void>(read->read(name));
      }
    } catch (const Error&) {
      refused = true;
    }
    fs::rename(whole, entry.path());
    if (!refused) {
      return fmt::format("{}, cut to half, is read without an Error",
                         entry.path().filename().string());
    }
  }
  return "";
}

}  // namespace

std::vector<SuiteCheck> format_suite(const std::string& name) {
  using Check = std::function<std::string(const CheckpointFormat&, const std::string& folder,
                                          const WrittenCounts&, const Scratch&)>;
  const auto of_written = [&](const Check& check) {
    return [name, check] {
      const CheckpointFormat& format = checkpoint_format(name);
      if (!format.can_write()) {
        throw SkippedCheck{"it can only be read"};
      }
      const Scratch scratch;
      const std::string folder = scratch.at("written");
      const WrittenCounts written = format.write(Samples(), folder, {});
      return check(format, folder, written, scratch);
    };
  };
  return {{"it recognises what it writes, and nothing else",
           of_written([](const auto& format, const auto& folder, const auto&, const auto& scratch) {
             return recognises_its_own(format, folder, scratch);
           })},
          {"it reads what it writes",
           of_written([](const auto& format, const auto& folder, const auto& written, const auto&) {
             return reads_what_it_writes(format, folder, written);
           })},
          {"any box can be read, into any strides",
           of_written([](const auto& format, const auto& folder, const auto&, const auto&) {
             return reads_boxes(format, folder);
           })},
          {"a cut file is an error",
           of_written([](const auto& format, const auto& folder, const auto&, const auto&) {
             return refuses_cut_files(format, folder);
           })}};
}

}  // namespace tessera::plugin_suite
