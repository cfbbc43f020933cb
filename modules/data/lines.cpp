module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/content_hash.hpp"
#include "tessera/limits.hpp"
module tessera.data;

import tessera.base;
import :data_index;
import :lines;

namespace tessera::data {

LineReader::LineReader(const DataFile& file, std::size_t longest, std::size_t block)
    : file_(file), handle_(file), longest_(longest), block_bytes_(block) {}

bool LineReader::next(std::vector<Line>& lines,
                      std::vector<std::pair<std::int64_t, std::size_t>>& too_long) {
  lines.clear();
  block_.erase(0, used_);
  used_ = 0;
  std::size_t searched = 0;
  std::size_t dropped = 0;  // bytes of a line that is too long
  while (block_.find('\n', searched) == std::string::npos && position_ < file_.size()) {
    searched = block_.size();
    if (searched > longest_) {
      dropped += searched;
      block_.clear();
      searched = 0;
    }
    const std::size_t count = std::min(block_bytes_, file_.size() - position_);
    block_.resize(searched + count);
    handle_.read(file_, position_, std::as_writable_bytes(std::span(block_).subspan(searched)));
    position_ += count;
  }
  const std::size_t begin = position_ - block_.size();
  const bool ends = position_ == file_.size();
  while (used_ < block_.size()) {
    const std::size_t end = block_.find('\n', used_);
    if (end == std::string::npos && !ends) {
      break;
    }
    const std::size_t stop = std::min(end, block_.size());
    std::string_view text = std::string_view(block_).substr(used_, stop - used_);
    text.remove_suffix(text.ends_with('\r') ? 1 : 0);
    ++number_;
    if (text.size() + dropped > longest_) {
      too_long.emplace_back(number_, text.size() + dropped);
    } else {
      lines.push_back({number_, begin + used_, text});
    }
    dropped = 0;
    used_ = std::min(stop + 1, block_.size());
  }
  if (dropped > 0) {
    too_long.emplace_back(++number_, dropped);
  }
  return !lines.empty() || position_ < file_.size() || used_ < block_.size();
}

void Faults::add(const std::string& file, std::int64_t line, const std::string& text) {
  constexpr std::size_t most = 10;
  if (first_.size() < most) {
    first_.push_back(line > 0 ? fmt::format("{}:{}: {}", file, line, text)
                              : fmt::format("{}: {}", file, text));
  }
  ++count_;
}

void Faults::add_bad(const std::string& file, std::int64_t line, const std::string& text) {
  if (!skips_bad_) {
    add(file, line, text);
    return;
  }
  if (bad_++ == 0) {
    first_bad_ = fmt::format("{}:{}: {}", file, line, text);
  }
}

void Faults::add_too_long(const std::string& file,
                          std::span<const std::pair<std::int64_t, std::size_t>> lines) {
  for (const auto& [number, bytes] : lines) {
    add_bad(file, number,
            fmt::format("the line is too long (expected at most {}, got {})",
                        format_bytes(longest_line), format_bytes(bytes)));
  }
}

void Faults::throw_if_any() const {
  if (count_ == 1) {
    fail_input(first_[0]);
  }
  if (count_ > 1) {
    const std::int64_t more = count_ - std::ssize(first_);
    fail_input(fmt::format("{} faults:\n  {}{}", count_, fmt::join(first_, "\n  "),
                           more > 0 ? fmt::format("\n  and {} more", more) : ""));
  }
}

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& f) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) {
        f(i);
      }
    } catch (...) {
      next = count;
      const std::scoped_lock lock(mutex);
      if (!error) {
        error = std::current_exception();
      }
    }
  };
  const std::size_t threads = std::min(static_cast<std::size_t>(available_cores()), count);
  Threads others;
  for (std::size_t i = 1; i < threads; ++i) {
    others.start("data", work);
  }
  work();
  others.join();
  if (error) {
    std::rethrow_exception(error);
  }
}

std::string columns_text(const RecordForms& forms) {
  std::string text;
  for (const auto& [name, column] : forms.columns()) {
    text += fmt::format("{}={};", name, column);
  }
  return text;
}

std::string hash_of(std::span<const DataFile> files, const std::string& more) {
  const DataIndex index(files, "content hash " + more);
  if (const std::optional<std::string> kept = index.find()) {
    return *kept;
  }
  ContentHash hash;
  for (const DataFile& file : files) {
    for_each_piece(file, file.size(), [&](std::span<const std::byte> bytes) { hash.add(bytes); });
    const std::string size = fmt::format(";{};", file.size());
    hash.add(std::as_bytes(std::span(size)));
  }
  hash.add(std::as_bytes(std::span(more)));
  index.keep(hash.hex());
  return hash.hex();
}

}  // namespace tessera::data
