module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;

namespace tessera::text {
namespace {

constexpr std::int64_t first_room = 16;  // pages

std::int64_t pages_of(std::int64_t positions) {
  return (positions + PageTable::page_size - 1) / PageTable::page_size;
}

std::vector<std::int64_t> tokens_of(std::span<const std::int64_t> tokens, std::int64_t page) {
  const auto own = tokens.subspan(static_cast<std::size_t>(page * PageTable::page_size),
                                  static_cast<std::size_t>(PageTable::page_size));
  return {own.begin(), own.end()};
}

/// What no number of a page is: those are counted from 1.
std::uint64_t beginning_of(std::int64_t kind) {
  constexpr std::uint64_t of_kinds = std::uint64_t{1} << 63;
  return kind == 0 ? 0 : of_kinds + static_cast<std::uint64_t>(kind);
}

}  // namespace

std::int64_t PageTable::room() const { return std::ssize(pages_); }

PageTable::Text PageTable::begin(std::span<const std::int64_t> tokens, std::int64_t expected,
                                 std::int64_t kind) {
  Text text{.beginning = beginning_of(kind), .expected = pages_of(expected)};
  while ((text.known + 1) * page_size < std::ssize(tokens)) {
    const auto found = by_tokens_.find({text.beginning, tokens_of(tokens, text.known)});
    if (found == by_tokens_.end()) {
      break;
    }
    Page& page = at(found->second);
    if (page.texts++ == 0) {
      unused_.erase(page.last_used);
      ++used_;
    }
    text.pages.push_back(found->second);
    text.beginning = page.number;
    ++text.known;
  }
  return text;
}

bool PageTable::reserve(Text& text, std::int64_t positions) {
  const std::int64_t needed = pages_of(positions);
  const auto before = text.pages.size();
  while (std::ssize(text.pages) < needed) {
    const std::int64_t page = take(text);
    if (page < 0) {
      while (text.pages.size() > before) {
        --used_;
        free(text.pages.back());
        text.pages.pop_back();
      }
      return false;
    }
    at(page).texts = 1;
    ++used_;
    text.pages.push_back(page);
  }
  return true;
}

void PageTable::know(Text& text, std::span<const std::int64_t> tokens, std::int64_t computed) {
  for (; (text.known + 1) * page_size <= computed; ++text.known) {
    std::pair key(text.beginning, tokens_of(tokens, text.known));
    const std::int64_t own = text.pages[static_cast<std::size_t>(text.known)];
    const auto [found, is_new] = by_tokens_.emplace(std::move(key), own);
    if (is_new) {
      at(own).number = ++numbers_;
      at(own).tokens = found->first;
    }
    // Where another text has computed the same at the same time, its page is the known one.
    text.beginning = at(found->second).number;
  }
}

void PageTable::release(Text& text) {
  // The last page first: what many texts begin with is kept longest.
  for (auto page = text.pages.rbegin(); page != text.pages.rend(); ++page) {
    Page& own = at(*page);
    if (--own.texts > 0) {
      continue;
    }
    --used_;
    if (own.number == 0) {
      free(*page);
    } else {
      own.last_used = ++uses_;
      unused_.emplace(own.last_used, *page);
    }
  }
  runs_.erase(text.run);
  text = {};
}

void PageTable::forget() {
  while (!unused_.empty()) {
    drop_oldest();
  }
}

void PageTable::drop_oldest() {
  const std::int64_t page = unused_.begin()->second;
  unused_.erase(unused_.begin());
  by_tokens_.erase(at(page).tokens);
  free(page);
}

void PageTable::free(std::int64_t page) {
  at(page) = {};
  const auto next = gaps_.lower_bound(page);
  std::int64_t count = 1;
  if (next != gaps_.end() && next->first == page + 1) {
    count += next->second;
    gaps_.erase(next);
  }
  const auto after = gaps_.lower_bound(page);
  if (after != gaps_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == page) {
      before->second += count;
      return;
    }
  }
  gaps_.emplace(page, count);
}

void PageTable::grow(std::int64_t count) {
  const std::int64_t begin = room();
  const std::int64_t end = std::min(most_, std::max({first_room, 2 * begin, begin + count}));
  pages_.resize(static_cast<std::size_t>(end));
  for (std::int64_t page = begin; page < end; ++page) {
    free(page);
  }
}

/// The first of so many free pages into which no text grows. None: -1.
std::int64_t PageTable::begin_of_run(std::int64_t count) const {
  for (const auto& [first, size] : gaps_) {
    std::int64_t begin = first;
    for (const auto& [run, end] : runs_) {
      if (run < begin + count && end > begin) {
        begin = end;
      }
    }
    if (begin + count <= first + size) {
      return begin;
    }
  }
  return -1;
}

std::int64_t PageTable::take(Text& text) {
  const std::int64_t wanted = std::max<std::int64_t>(text.expected - std::ssize(text.pages), 1);
  std::int64_t page = text.pages.empty() ? -1 : text.pages.back() + 1;
  const auto is_free = [&](std::int64_t number) {
    const auto after = gaps_.upper_bound(number);
    return after != gaps_.begin() && std::prev(after)->first + std::prev(after)->second > number;
  };
  if (page < 0 || text.run < 0 || !is_free(page)) {
    runs_.erase(text.run);
    page = begin_of_run(wanted);
    if (page < 0 && room() < most_) {
      grow(wanted);
      page = begin_of_run(wanted);
    }
    if (page < 0 && gaps_.empty() && !unused_.empty()) {
      drop_oldest();
    }
    if (gaps_.empty()) {
      text.run = -1;
      return -1;
    }
    if (page < 0) {  // a part of the largest gap
      page = std::ranges::max_element(gaps_, {}, [](const auto& gap) { return gap.second; })->first;
    }
    text.run = page;
    runs_.emplace(page, page + wanted);
  }
  const auto gap = std::prev(gaps_.upper_bound(page));
  const auto [first, count] = *gap;
  gaps_.erase(gap);
  if (page > first) {
    gaps_.emplace(first, page - first);
  }
  if (first + count > page + 1) {
    gaps_.emplace(page + 1, first + count - page - 1);
  }
  return page;
}

}  // namespace tessera::text
