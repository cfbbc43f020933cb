module;
#include <cstddef>
#include <memory>
#include <tessera/shown.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.sinks;

import tessera.base;

namespace tessera::sinks {
namespace {

constexpr std::size_t longest_text = std::size_t{64} << 10;
/// Seconds that a run which has failed waits: other ranks wait for its error.
constexpr double patience_of_failure = 2;

void cut(std::string& text) {
  if (text.size() > longest_text) {
    text = shown(text, longest_text);
  }
}

}  // namespace

void EventStream::add(std::unique_ptr<SinkFeed> feed) { feeds_.push_back(std::move(feed)); }

void EventStream::tell(EventContent content) {
  if (ended_.load(std::memory_order_relaxed)) {
    return;
  }
  if (auto* const line = std::get_if<LogLine>(&content)) {
    cut(line->text);
  }
  const auto event =
      std::make_shared<const Event>(Event{.time = time_now(), .content = std::move(content)});
  for (const auto& feed : feeds_) {
    feed->tell(event);
  }
}

void EventStream::finish(RunEnd end) {
  cut(end.text);
  const bool failed = end.outcome == Outcome::failed;
  tell(std::move(end));
  ended_ = true;
  for (const auto& feed : feeds_) {
    feed->end(failed ? patience_of_failure : SinkFeed::no_limit);
  }
  for (const auto& feed : feeds_) {
    feed->finish();
  }
}

std::vector<FeedCounts> EventStream::counts() const {
  std::vector<FeedCounts> all;
  for (const auto& feed : feeds_) {
    all.push_back(feed->counts());
  }
  return all;
}

}  // namespace tessera::sinks
