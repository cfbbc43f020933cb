module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <range/v3/view/enumerate.hpp>
#include <range/v3/view/zip.hpp>
#include <string_view>
#include <tessera/json_reading.hpp>
#include <utility>
module tessera.app.trace;

import tessera.base;

namespace tessera::app {

bool FileSlice::waits_for_message() const { return category == "message"; }
bool FileSlice::waits() const { return category == "wait" || waits_for_message(); }

namespace {

using Json = nlohmann::ordered_json;

constexpr double half_nanosecond = 0.0005;  // of rounding, in microseconds

class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  TraceData read() {
    return reading_json("trace: " + file_, [&] { return data_of(parse()); });
  }

 private:
  TraceData data_of(const Json& all) {
    const auto about = all.find("otherData");
    const auto events = all.find("traceEvents");
    if (about == all.end() || events == all.end() || !events->is_array() || !about->is_object() ||
        about->value("program", "") != "tessera") {
      refuse(
          "is not a trace that `tessera train` wrote (expected an object with otherData.program "
          "= \"tessera\" and traceEvents); write one with trace.file=FILE");
    }
    where_ = "otherData";
    const auto ranks = number<std::int64_t>(*about, "ranks");
    const auto steps = about->find("steps");
    if (ranks < 1 || ranks > 65536 || steps == about->end() || !steps->is_array() ||
        steps->size() != 2 || !(*steps)[0].is_number_integer() ||
        !(*steps)[1].is_number_integer()) {
      damaged("steps and ranks of the run are missing or out of range");
    }
    data_.first_step = (*steps)[0].get<std::int64_t>();
    data_.last_step = (*steps)[1].get<std::int64_t>();
    data_.mesh = text(*about, "mesh");
    data_.ranks.resize(static_cast<std::size_t>(ranks));
    data_.streamed.resize(data_.ranks.size());
    data_.memory_peaks.resize(data_.ranks.size());
    for (std::size_t i = 0; i < events->size(); ++i) {
      where_ = fmt::format("event {}", i);
      event((*events)[i]);
    }
    for (const auto& [rank, slices] : ranges::views::enumerate(data_.ranks)) {
      if (slices.empty()) {
        refuse(fmt::format("is damaged: rank {} of {} has no events; write it again", rank, ranks));
      }
      finish(slices);
    }
    return std::move(data_);
  }

  [[noreturn]] void refuse(const std::string& what) const {
    fail_input({.thing = "trace", .wrong = fmt::format("{} {}", file_, what)});
  }
  [[noreturn]] void damaged(const std::string& what) const {
    refuse(fmt::format("is damaged: {}: {}; write it again", where_, what));
  }

  Json parse() const {
    // A trace is read into memory as a whole: 100 bytes for each event at least.
    constexpr JsonLimits limits{
        .bytes = std::size_t{1} << 32, .values = std::size_t{1} << 28, .depth = 64};
    ParsedOrderedJson parsed = read_ordered_json_object(file_, limits);
    if (!parsed.problem.empty()) {
      fail_input({.thing = "trace: " + file_,
                  .wrong = parsed.problem,
                  .advice = "write it again with trace.file=FILE"});
    }
    return std::move(parsed.value);
  }

  template <class T>
  T number(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_number()) {
      damaged(fmt::format("'{}' is not a number", key));
    }
    return json_value<T>(*found, key);
  }

  std::string text(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) {
      damaged(fmt::format("'{}' is not a text", key));
    }
    return found->get<std::string>();
  }

  std::size_t rank_of(const Json& event) const {
    const auto rank = number<std::int64_t>(event, "pid");
    if (rank < 0 || rank >= static_cast<std::int64_t>(data_.ranks.size())) {
      damaged(fmt::format("there is no rank {} (the run has {} ranks)", rank, data_.ranks.size()));
    }
    return static_cast<std::size_t>(rank);
  }

  void event(const Json& event) {
    if (!event.is_object()) {
      damaged("is not an object");
    }
    const std::string phase = text(event, "ph");
    if (phase == "X") {
      slice(event);
    } else if (phase == "C") {
      memory(event);
    }
  }

  void slice(const Json& event) {
    const auto arguments = event.find("args");
    if (arguments == event.end() || !arguments->is_object()) {
      damaged("'args' is not an object");
    }
    FileSlice s;
    s.category = text(event, "cat");
    s.name = text(event, "name");
    s.begin = number<double>(event, "ts");
    const auto duration = number<double>(event, "dur");
    if (duration < 0 || s.begin < 0) {
      damaged("'ts' or 'dur' is negative");
    }
    s.end = s.begin + duration;
    s.module = arguments->contains("module") ? text(*arguments, "module") : "";
    s.backward = arguments->contains("backward") && (*arguments)["backward"] == true;
    if (arguments->contains("call")) {
      s.collective = true;
      s.bytes = number<std::int64_t>(*arguments, "bytes");
      s.call = number<std::int64_t>(*arguments, "call");
      const std::string name = text(*arguments, "group");
      const bool spaced = name.empty() || name.front() == ' ';
      s.group = json_text(json_member(*arguments, "ranks")) + (spaced ? "" : " ") + name;
    }
    if (s.category == "stream") {
      s.queued = number<double>(*arguments, "queued");
      data_.streamed[rank_of(event)].push_back(std::move(s));
    } else {
      data_.ranks[rank_of(event)].push_back(std::move(s));
    }
  }

  void memory(const Json& event) {
    const auto bytes = event.find("args");
    if (bytes == event.end() || !bytes->is_object()) {
      damaged("'args' is not an object");
    }
    std::vector<double>& peaks = data_.memory_peaks[rank_of(event)];
    if (data_.categories.empty()) {
      for (const auto& [category, value] : bytes->items()) {
        data_.categories.push_back(category);
      }
    }
    peaks.resize(data_.categories.size());
    for (auto [peak, category] : ranges::views::zip(peaks, data_.categories)) {
      peak = std::max(peak, number<double>(*bytes, category.c_str()));
    }
  }

  /// Orders the slices, and finds the time that belongs to each alone.
  static void finish(std::vector<FileSlice>& slices) {
    std::ranges::sort(slices, [](const FileSlice& a, const FileSlice& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<FileSlice*> open;
    for (FileSlice& s : slices) {
      s.own = s.end - s.begin;
      while (!open.empty() && open.back()->end <= s.begin + half_nanosecond) {
        open.pop_back();
      }
      if (!open.empty()) {
        open.back()->own -= s.own;
        s.within = s.category == "local operator" && open.back()->name == s.name;
      }
      open.push_back(&s);
    }
  }

  const std::string& file_;
  std::string where_;
  TraceData data_;
};

}  // namespace

TraceData read_trace(const std::string& file) { return Reader(file).read(); }

}  // namespace tessera::app
