module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.nn;

namespace tessera::text {
namespace {

/// States get at most half of the memory: without keys and values all of it.
std::int64_t states_of(const TextBytes& bytes, std::int64_t memory, std::int64_t most) {
  if (bytes.state == 0) {
    return 0;
  }
  return std::clamp<std::int64_t>(memory / (bytes.position > 0 ? 2 : 1) / bytes.state, 1, most);
}

std::int64_t pages_of(const TextBytes& bytes, std::int64_t memory, std::int64_t most) {
  constexpr std::int64_t most_pages = std::int64_t{1} << 26;
  if (bytes.position == 0) {
    return most_pages;
  }
  const std::int64_t left = memory - states_of(bytes, memory, most) * bytes.state;
  return std::min(left / (bytes.position * PageTable::page_size), most_pages);
}

}  // namespace

TextMemory::TextMemory(const TextBytes& bytes, std::int64_t memory, std::int64_t most)
    : pages_(pages_of(bytes, memory, most)) {
  if (pages_.most() < 1) {
    fail_input({.thing = "memory",
                .wrong = "it has no room for a text",
                .expected = fmt::format("at least {} bytes",
                                        2 * (bytes.state + bytes.position * PageTable::page_size)),
                .got = fmt::format("{}", memory)});
  }
  states_.resize(static_cast<std::size_t>(states_of(bytes, memory, most)));
}

std::optional<TextMemory::Text> TextMemory::begin(std::span<const std::int64_t> tokens,
                                                  std::int64_t expected, std::int64_t kind) {
  if (states_.empty()) {
    Text text{.pages = pages_.begin(tokens, expected, kind)};
    text.kept = text.pages.known * PageTable::page_size;
    return text;
  }
  State* best = nullptr;
  for (State& state : states_) {
    const bool continued = !state.used && state.kind == kind && !state.tokens.empty() &&
                           state.tokens.size() < tokens.size() &&
                           std::ranges::equal(state.tokens, tokens.first(state.tokens.size()));
    if (continued && (best == nullptr || state.tokens.size() > best->tokens.size())) {
      best = &state;
    }
  }
  Text text;
  if (best != nullptr) {
    text.kept = std::ssize(best->tokens);
    text.pages = std::exchange(best->pages, {});
  } else {
    best = oldest_unused();
    if (best == nullptr) {
      return std::nullopt;
    }
    drop(*best);
  }
  text.pages.expected = (expected + PageTable::page_size - 1) / PageTable::page_size;
  best->used = true;
  best->kind = kind;
  best->tokens.clear();
  text.state = best - states_.data();
  return text;
}

bool TextMemory::reserve(Text& text, std::int64_t positions) {
  while (!pages_.reserve(text.pages, positions)) {
    State* const oldest = oldest_unused(true);
    if (oldest == nullptr) {
      return false;
    }
    drop(*oldest);
  }
  return true;
}

std::int64_t TextMemory::states() const { return std::ssize(states_); }

std::int64_t TextMemory::free_positions() const {
  std::int64_t pages = pages_.most() - pages_.used();
  for (const State& state : states_) {
    pages += state.used ? 0 : std::ssize(state.pages.pages);
  }
  return pages * PageTable::page_size;
}

void TextMemory::know(Text& text, std::span<const std::int64_t> tokens, std::int64_t computed) {
  if (states_.empty()) {
    pages_.know(text.pages, tokens, computed);
  }
}

void TextMemory::release(Text& text, std::span<const std::int64_t> tokens, std::int64_t computed) {
  if (text.state < 0) {
    pages_.release(text.pages);
  } else {
    State& state = states_[static_cast<std::size_t>(text.state)];
    const auto kept = tokens.first(static_cast<std::size_t>(computed));
    state = {.used = false,
             .kind = state.kind,
             .tokens = {kept.begin(), kept.end()},
             .pages = std::move(text.pages),
             .last_used = ++uses_};
  }
  text = {};
}

void TextMemory::forget() {
  for (State& state : states_) {
    if (!state.used) {
      drop(state);
    }
  }
  pages_.forget();
}

/// Of those that no text uses.
TextMemory::State* TextMemory::oldest_unused(bool with_pages) {
  State* oldest = nullptr;
  for (State& state : states_) {
    if (!state.used && (!with_pages || !state.pages.pages.empty()) &&
        (oldest == nullptr || state.last_used < oldest->last_used)) {
      oldest = &state;
    }
  }
  return oldest;
}

void TextMemory::drop(State& state) {
  pages_.release(state.pages);
  state = {};
}

nn::RaggedRow TextMemory::row(const Text& text, std::int64_t first, std::int64_t count) const {
  nn::RaggedRow row{.first = first, .count = count, .state = std::max<std::int64_t>(text.state, 0)};
  for (std::int64_t position = 0; position < row.end(); position += PageTable::page_size) {
    const std::int64_t page =
        text.pages.pages[static_cast<std::size_t>(position / PageTable::page_size)];
    const std::int64_t place = page * PageTable::page_size;
    if (!row.kept.empty() && row.kept.back().place + row.kept.back().count == place) {
      row.kept.back().count += PageTable::page_size;
    } else {
      row.kept.push_back({.position = position, .place = place, .count = PageTable::page_size});
    }
  }
  return row;
}

}  // namespace tessera::text
