module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;

namespace tessera::runs {
namespace {

using Json = nlohmann::ordered_json;

constexpr int thread_of_rank = 0;  // the track of the rank's own thread

double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000.0; }

std::string text_of(const TracedTensor& x) {
  if (x.spec != nullptr) {
    return to_string(*x.spec);
  }
  return fmt::format("{}{}", name_of(x.dtype), to_string(x.shape));
}

/// The tensors of a call; of a long list only the first ones.
Json texts_of(const std::vector<TracedTensor>& tensors) {
  constexpr std::size_t most = 8;
  Json texts = Json::array();
  for (std::size_t i = 0; i < std::min(most, tensors.size()); ++i) {
    texts.push_back(text_of(tensors[i]));
  }
  if (tensors.size() > most) {
    texts.push_back(fmt::format("and {} more", tensors.size() - most));
  }
  return texts;
}

Json arguments_of(const TraceSlice& slice) {
  Json arguments = Json::object();
  if (slice.module != nullptr) {
    arguments["module"] = slice.module->empty() ? "model" : *slice.module;
  }
  arguments["backward"] = slice.backward;
  if (!slice.in.empty() || !slice.out.empty()) {
    arguments["in"] = texts_of(slice.in);
    arguments["out"] = texts_of(slice.out);
  }
  if (slice.collective) {
    arguments["bytes"] = slice.bytes;
    arguments["ranks"] = slice.ranks;
    arguments["group"] = slice.group;
    arguments["call"] = slice.sequence;
  }
  return arguments;
}

/// One JSON object after the other.
class Events {
 public:
  Events(int rank, std::int64_t zero) : rank_(rank), zero_(zero) {}

  void name_tracks() {
    add({{"ph", "M"},
         {"name", "process_name"},
         {"pid", rank_},
         {"args", {{"name", fmt::format("rank {}", rank_)}}}});
    add({{"ph", "M"},
         {"name", "process_sort_index"},
         {"pid", rank_},
         {"args", {{"sort_index", rank_}}}});
    add({{"ph", "M"},
         {"name", "thread_name"},
         {"pid", rank_},
         {"tid", thread_of_rank},
         {"args", {{"name", "rank thread"}}}});
  }

  void slice(const TraceSlice& s) { slice(s, thread_of_rank, arguments_of(s)); }

  /// On the track of its stream, which there is one of for each group of ranks.
  void streamed(const StreamedCall& call) {
    const std::string stream =
        fmt::format("[{}] {}", fmt::join(call.slice.ranks, ", "), call.slice.group);
    auto found = std::ranges::find(streams_, stream);
    if (found == streams_.end()) {
      found = streams_.insert(streams_.end(), stream);
      add({{"ph", "M"},
           {"name", "thread_name"},
           {"pid", rank_},
           {"tid", stream_number(found)},
           {"args", {{"name", "ranks " + stream}}}});
    }
    Json arguments = arguments_of(call.slice);
    arguments["queued"] = microseconds(call.queued - zero_);
    slice(call.slice, stream_number(found), std::move(arguments));
  }

  /// A call in flight: its own track, as several may be in flight at once.
  void span(const TraceSlice& issue, std::int64_t end, std::size_t number) {
    for (const bool begins : {true, false}) {
      Json event{{"ph", begins ? "b" : "e"},
                 {"name", issue.name},
                 {"cat", "in flight"},
                 {"id", fmt::format("{}.{}", rank_, number)},
                 {"pid", rank_},
                 {"tid", thread_of_rank},
                 {"ts", microseconds((begins ? issue.begin : end) - zero_)}};
      if (begins) {
        event["args"] = arguments_of(issue);
      }
      add(event);
    }
  }

  void memory(const TraceMemory& m) {
    Json bytes = Json::object();
    for (int i = 0; i < memory_category_count; ++i) {
      bytes[std::string(name_of(static_cast<MemoryCategory>(i)))] =
          m.bytes[static_cast<std::size_t>(i)];
    }
    add({{"ph", "C"},
         {"name", "memory"},
         {"pid", rank_},
         {"ts", microseconds(m.at - zero_)},
         {"args", bytes}});
  }

  std::string take() { return std::move(text_); }

 private:
  int stream_number(std::vector<std::string>::const_iterator stream) const {
    return thread_of_rank + 1 + static_cast<int>(stream - streams_.begin());
  }

  void slice(const TraceSlice& s, int track, Json arguments) {
    add({{"ph", "X"},
         {"name", s.name},
         {"cat", s.category},
         {"pid", rank_},
         {"tid", track},
         {"ts", microseconds(s.begin - zero_)},
         {"dur", microseconds(s.end - s.begin)},
         {"args", std::move(arguments)}});
  }

  void add(const Json& event) {
    text_ += text_.empty() ? "" : ",\n";
    text_ += json_text(event);
  }

  int rank_;
  std::int64_t zero_;
  std::vector<std::string> streams_;
  std::string text_;
};

/// Every rank's text on rank 0; empty ones on the others. In pieces, so that the memory that the
/// ranks share need not hold it all.
std::vector<std::string> gather(collective::World& world, const std::string& mine) {
  constexpr std::int64_t piece = std::int64_t{1} << 20;
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto size = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(ranks);
  world.everyone().all_gather(&size, sizes.data(), 1, DType::i64);
  std::vector<std::string> all(ranks);
  std::vector<char> source(piece);
  std::vector<char> pieces(world.rank() == 0 ? ranks * piece : 0);
  for (std::int64_t done = 0; done < *std::ranges::max_element(sizes); done += piece) {
    const auto count = static_cast<std::size_t>(std::clamp<std::int64_t>(size - done, 0, piece));
    std::memcpy(source.data(), mine.data() + std::min(done, size), count);
    world.everyone().gather(source.data(), pieces.data(), piece, DType::u8, 0);
    for (std::size_t r = 0; world.rank() == 0 && r < ranks; ++r) {
      const auto length = std::clamp<std::int64_t>(sizes[r] - done, 0, piece);
      all[r].append(pieces.data() + r * piece, static_cast<std::size_t>(length));
    }
  }
  return all;
}

}  // namespace

std::string trace_events(const RankTrace& trace, int rank, std::int64_t zero) {
  Events events(rank, zero);
  events.name_tracks();
  for (const TraceSlice& slice : trace.slices) {
    if (slice.end != 0) {
      events.slice(slice);
    }
  }
  for (std::size_t i = 0; i < trace.spans.size(); ++i) {
    events.span(trace.slices[trace.spans[i].issue], trace.spans[i].end, i);
  }
  for (const StreamedCall& call : trace.streamed) {
    events.streamed(call);
  }
  for (const TraceMemory& memory : trace.memory) {
    events.memory(memory);
  }
  return events.take();
}

void write_trace_file(const std::string& thing, const std::string& file, const TraceRun& run,
                      const std::vector<std::string>& ranks) {
  const Json about{{"program", "tessera"},
                   {"steps", {run.first_step, run.last_step}},
                   {"ranks", ranks.size()},
                   {"mesh", run.mesh}};
  const std::string head = fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[\n", json_text(about));
  std::vector<std::string_view> parts = {head};
  for (const std::string& rank : ranks) {
    if (!rank.empty()) {
      parts.emplace_back(parts.size() > 1 ? ",\n" : "");
      parts.emplace_back(rank);
    }
  }
  parts.emplace_back("\n]}\n");
  make_folders(std::filesystem::absolute(file).parent_path().string(), thing);
  if (const std::string why = write_file(file, parts); !why.empty()) {
    fail({.thing = thing,
          .wrong = fmt::format("{} cannot be written: {}", file, why),
          .advice = "choose another path"});
  }
}

bool write_trace(collective::World& world, const RankTrace& mine, const TraceRun& run,
                 const std::string& file) {
  // The first sample of memory is the first thing that is recorded.
  std::int64_t zero = mine.memory.front().at;
  world.everyone().all_reduce(&zero, &zero, 1, DType::i64, ReduceOp::min);
  const std::vector<std::string> parts = gather(world, trace_events(mine, world.rank(), zero));
  if (world.rank() == 0) {
    return try_side_work(SideWork::output, "trace.file",
                         [&] { write_trace_file("trace.file", file, run, parts); });
  }
  return true;
}

}  // namespace tessera::runs
