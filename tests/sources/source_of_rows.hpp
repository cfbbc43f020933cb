// A source of the test's own program. Include it after the imports of tessera.base, tessera.plugin
// and tessera.sources.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"

namespace tessera::testing {

using sources::RecordSource;
using sources::RecordStream;

/// What the source of this program does: each line of a file is a record, but for some words.
struct Behaviour {
  int opened = 0;
  std::function<void()> while_read = [] {};
};
inline Behaviour behaviour;

class LineStream final : public RecordStream {
 public:
  explicit LineStream(std::string path) : path_(std::move(path)), text_(read_file(path_)) {}

  bool next(std::string& to) override {
    if (at_ >= text_.size()) {
      return false;
    }
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    const std::string line = text_.substr(at_, end - at_);
    at_ = end + 1;
    behaviour.while_read();
    if (line == "two lines") {
      to += "{}\n{}";
    } else if (line == "throws") {
      throw std::runtime_error("it went wrong");
    } else if (line == "long") {
      to += std::string(sources::longest_record + 1, ' ');
    } else {
      to += line;
    }
    return true;
  }
  std::vector<std::string> left_out() const override { return {"the column 'photo' (binary)"}; }

 private:
  std::string path_;
  std::string text_;
  std::size_t at_ = 0;
};

class LineSource final : public RecordSource {
 public:
  std::unique_ptr<RecordStream> open(const std::string& path,
                                     std::span<const std::string> needed) const override {
    ++behaviour.opened;
    CHECK(std::ranges::find(needed, "messages") != needed.end());
    return std::make_unique<LineStream>(path);
  }
};

/// A folder with the cache of data in it. The process has the source "rows" of this program, and no
/// plugins.
class SourceFolder : public Folder {
 public:
  SourceFolder() {
    static const bool once = [] {
      plugin::configure_host({.paths = {}, .environment = false, .standard_places = false});
      plugin::host().add<RecordSource>("rows", [] { return std::make_unique<LineSource>(); });
      plugin::host().add<RecordSource>("nobody", [] { return std::unique_ptr<RecordSource>(); });
      return true;
    }();
    REQUIRE(once);
    setenv("TESSERA_DATA_CACHE", (*this / "cache").c_str(), 1);
    behaviour = {};
  }
};

}  // namespace tessera::testing
