module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.plugin;
import tessera.sources;

// A source: whether its records are JSON, the same at each time, and whether files that are none of
// its format, cut or changed are errors that name the file.
namespace tessera::plugin_suite {
namespace {

namespace fs = std::filesystem;

/// A folder with one file, of the format by its name.
class SourceFile {
 public:
  explicit SourceFile(std::string source) : source_(std::move(source)) {
    folder_ =
        fs::temp_directory_path() / fmt::format("tessera-suite-{:08x}", std::random_device{}());
    fs::create_directory(folder_);
  }
  SourceFile(const SourceFile&) = delete;
  SourceFile& operator=(const SourceFile&) = delete;
  ~SourceFile() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  std::string path() const { return (folder_ / ("file." + source_)).string(); }
  const std::string& source() const { return source_; }
  void write(std::string_view bytes) const {
    std::ofstream out(path(), std::ios::binary);
    out << bytes;
  }

 private:
  std::string source_;
  fs::path folder_;
};

std::ptrdiff_t threads_here() {
  return std::distance(fs::directory_iterator("/proc/self/task"), {});
}

/// The records of a file, each with the end of its line.
std::string lines_of(const SourceFile& file) {
  sources::RecordLines lines(file.path(), file.source());
  std::string all;
  std::vector<std::byte> block(std::size_t{64} << 10);
  for (std::size_t count = lines.read(block); count > 0; count = lines.read(block)) {
    all.append(reinterpret_cast<const char*>(block.data()), count);
  }
  return all;
}

std::string sample_of(const std::string& name) {
  std::string sample = sources::load_source(name)->sample();
  if (sample.empty()) {
    throw SkippedCheck{"its sample() is empty"};
  }
  return sample;
}

/// Reads a file that may be wrong; empty: it has records, or is an error as it must be.
std::string problem_of(const SourceFile& file, const std::string& what) {
  trying(what);
  try {
    static_cast<void>(lines_of(file));
    return "";
  } catch (const Error& error) {
    return error.fields().thing == file.path()
               ? ""
               : fmt::format("{}: the error's thing is not the file's path (got '{}')", what,
                             shown(error.what()));
  } catch (const std::exception& error) {
    return fmt::format("{} throws what is not an Error: {}", what, shown(error.what()));
  }
}

std::string reads_its_sample(const std::string& name) {
  const SourceFile file(name);
  file.write(sample_of(name));
  const std::string lines = lines_of(file);
  std::int64_t records = 0;
  for (std::string_view rest = lines; !rest.empty(); ++records) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    if (const std::string problem = parse_json_object(line).problem; !problem.empty()) {
      return fmt::format("record {} is not an object of JSON in UTF-8: {}", records + 1, problem);
    }
  }
  note(fmt::format("{} records", records));
  return records > 0 ? "" : "its sample has no record";
}

std::string reads_the_same_again(const std::string& name) {
  const SourceFile file(name);
  file.write(sample_of(name));
  const std::string first = lines_of(file);
  if (lines_of(file) != first) {
    return "a file has other records when it is read again";
  }
  const SourceFile other(name);
  other.write(sample_of(name));
  return lines_of(other) == first ? "" : "a copy of a file in another folder has other records";
}

std::string starts_no_thread(const std::string& name) {
  const SourceFile file(name);
  file.write(sample_of(name));
  const std::ptrdiff_t before = threads_here();
  sources::RecordLines lines(file.path(), name);
  std::vector<std::byte> block(1024);
  lines.read(block);
  return threads_here() == before ? "" : "it starts a thread, and a rank's threads are the user's";
}

bool opens(const std::string& name, const std::string& file) {
  try {
    static_cast<void>(sources::load_source(name)->open(file, {}));
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string refuses_other_files(const std::string& name) {
  const SourceFile file(name);
  trying("a file that is not there");
  if (opens(name, file.path())) {
    return "a file that is not there is opened";
  }
  std::mt19937 random(1);
  std::string noise;
  for (int i = 0; i < 5000; ++i) {
    noise += static_cast<char>(random());
  }
  std::vector<std::string> problems;
  for (const auto& [what, bytes] : {std::pair<std::string, std::string>("an empty file", ""),
                                    {"zeros", std::string(5000, '\0')},
                                    {"random bytes", noise},
                                    {"a text", "one\ntwo, three\n"}}) {
    file.write(bytes);
    problems.push_back(problem_of(file, what));
  }
  std::erase(problems, "");
  return some_of(problems);
}

std::string stands_damaged_files(const std::string& name) {
  const SourceFile file(name);
  const std::string sample = sample_of(name);
  std::vector<std::string> problems;
  const std::size_t step = sample.size() / 200 + 1;
  for (std::size_t size = 0; size < sample.size(); size += step) {
    file.write(sample.substr(0, size));
    problems.push_back(problem_of(file, fmt::format("the first {} bytes of the sample", size)));
  }
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string changed = sample;
    const std::size_t at = random() % changed.size();
    changed[at] = static_cast<char>(random());
    file.write(changed);
    problems.push_back(problem_of(file, fmt::format("the sample with another byte {}", at)));
  }
  std::erase(problems, "");
  return some_of(problems);
}

}  // namespace

std::vector<SuiteCheck> source_suite(const std::string& name) {
  const auto of = [&](std::string (*check)(const std::string&)) {
    return [name, check] { return check(name); };
  };
  return {{"the records of its sample are JSON", of(reads_its_sample)},
          {"a file has the same records at each time", of(reads_the_same_again)},
          {"it starts no thread", of(starts_no_thread)},
          {"other files are errors that name the file", of(refuses_other_files)},
          {"cut and changed files are errors, or have records", of(stands_damaged_files)}};
}

}  // namespace tessera::plugin_suite
