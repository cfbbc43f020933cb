module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.sources;

import tessera.base;
import tessera.plugin;

namespace tessera::sources {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<RecordSource>();

/// Endings that no source is asked for: they are read as they are, or unpacked.
constexpr std::array<std::string_view, 10> own_endings = {"jsonl", "json", "txt", "md",  "gz",
                                                          "zst",   "npy",  "png", "jpg", "jpeg"};

/// The ending of a file's name, in small letters.
std::string ending_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const std::size_t dot = name.rfind('.');
  std::string ending(dot == std::string_view::npos || dot == 0 ? "" : name.substr(dot + 1));
  std::ranges::transform(ending, ending.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return ending;
}

bool is_known(const std::string& ending) {
  if (ending.empty() || std::ranges::find(own_endings, ending) != own_endings.end()) {
    return false;
  }
  // The host searches once, too; asked for each of 10,000 files it would take seconds.
  static const std::vector<std::string> known =
      plugin::host().names(RecordSource::plugin_kind.name);
  return std::ranges::find(known, ending) != known.end();
}

}  // namespace

RecordStream::~RecordStream() = default;
double RecordStream::done() const { return 0; }
std::vector<std::string> RecordStream::left_out() const { return {}; }
RecordSource::~RecordSource() = default;
std::string RecordSource::sample() const { return {}; }

std::string source_of(std::string_view path) {
  std::string ending = ending_of(path);
  return is_known(ending) ? ending : "";
}

std::string missing_source(std::string_view path) {
  constexpr std::array<std::string_view, 3> of_parquet = {"parquet", "arrow", "feather"};
  const std::string ending = ending_of(path);
  if (std::ranges::find(of_parquet, ending) == of_parquet.end() || is_known(ending)) {
    return "";
  }
  return fmt::format(
      "no plugin reads files that end in '.{}' (expected the plugin parquet, which needs Apache "
      "Arrow); run './dev setup arrow', and build Tessera again",
      ending);
}

std::unique_ptr<RecordSource> load_source(std::string_view name) {
  std::unique_ptr<RecordSource> source = plugin::host().find<RecordSource>(name)();
  if (!source) {
    fail_input({.thing = fmt::format("source '{}'", shown(name)),
                .wrong = "its plugin returned no object"});
  }
  return source;
}

std::string source_version(std::string_view name) {
  for (const plugin::PluginFile& found : plugin::host().list()) {
    if (found.stamp && found.refusals.empty() &&
        std::ranges::find(found.stamp->provides,
                          plugin::Offer{std::string(RecordSource::plugin_kind.name),
                                        std::string(name)}) != found.stamp->provides.end()) {
      return fmt::format("{} {}", name, found.stamp->digest);
    }
  }
  return fmt::format("{} of the program", name);
}

RecordLines::RecordLines(std::string path, std::string_view source,
                         std::span<const std::string> needed)
    : path_(std::move(path)), source_(load_source(source)), stream_(source_->open(path_, needed)) {
  if (!stream_) {
    fail_input({.thing = path_, .wrong = fmt::format("source '{}' opened no file", source)});
  }
  if (const std::vector<std::string> left_out = stream_->left_out(); !left_out.empty()) {
    log(LogLevel::warning,
        fmt::format("data: {} is read without {}", shown(path_), join_words(left_out)));
  }
}

double RecordLines::done() const { return stream_->done(); }

/// Reads the next record as a line; false: there is none.
bool RecordLines::next() {
  line_.clear();
  used_ = 0;
  const auto broken = [&](const std::string& wrong) {
    fail_input({.thing = path_, .wrong = fmt::format("record {}: {}", records_ + 1, wrong)});
  };
  try {
    if (!stream_->next(line_)) {
      line_.clear();
      return false;
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    broken(error.what());
  }
  if (line_.size() > longest_record) {
    broken(fmt::format("it is too long (expected at most {}, got {})", format_bytes(longest_record),
                       format_bytes(line_.size())));
  }
  if (line_.find('\n') != std::string::npos) {
    broken("the plugin gave more than one line");
  }
  ++records_;
  line_ += '\n';
  return true;
}

std::size_t RecordLines::read(std::span<std::byte> out) {
  std::size_t filled = 0;
  while (filled < out.size() && (used_ < line_.size() || next())) {
    const std::size_t count = std::min(out.size() - filled, line_.size() - used_);
    std::memcpy(out.data() + filled, line_.data() + used_, count);
    used_ += count;
    filled += count;
  }
  return filled;
}

}  // namespace tessera::sources
