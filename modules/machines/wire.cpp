// Small parts of what machines exchange: who is where, bytes of heads, what has left.
module;
#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module tessera.machines;

import tessera.base;
import tessera.ranks;
import :bridge;
import :wire;

namespace tessera::collective {

Machines::Machines(const std::vector<std::string>& names_of_ranks) {
  for (std::size_t r = 0; r < names_of_ranks.size(); ++r) {
    const auto known = std::ranges::find(names, names_of_ranks[r]);
    of_rank.push_back(static_cast<int>(known - names.begin()));
    if (known == names.end()) {
      names.push_back(names_of_ranks[r]);
      ranks.emplace_back();
    }
    ranks[static_cast<std::size_t>(of_rank.back())].push_back(static_cast<int>(r));
  }
}

void Departures::expect(int messages) {
  const std::lock_guard guard(mutex_);
  outstanding_.push_back(messages);
}

void Departures::left(std::uint64_t sequence) {
  const std::lock_guard guard(mutex_);
  std::uint64_t first = done.load();
  --outstanding_[static_cast<std::size_t>(sequence - first)];
  while (!outstanding_.empty() && outstanding_.front() == 0) {
    outstanding_.pop_front();
    ++first;
  }
  if (first != done.load()) {
    done.raise(first);
  }
}

void Writer::append(const void* data, std::size_t size) {
  const auto* from = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), from, from + size);
}

void Writer::put(std::string_view text) {
  put(static_cast<std::uint32_t>(text.size()));
  append(text.data(), text.size());
}

std::span<const std::byte> Reader::take(std::size_t size) {
  require(size <= bytes_.size(), "transport: a message is too short");
  const auto taken = bytes_.first(size);
  bytes_ = bytes_.subspan(size);
  return taken;
}

std::size_t Reader::there(std::uint64_t count, std::size_t each) const {
  require(count <= bytes_.size() / each, "transport: a message is too short");
  return static_cast<std::size_t>(count);
}

void Reader::take(void* to, std::size_t size) { std::memcpy(to, take(size).data(), size); }

std::string Reader::text() {
  const auto bytes = take(get<std::uint32_t>());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void put_group(Writer& writer, GroupBlock& group) {
  writer.put(group.size);
  writer.append(group.ranks(), group.size * sizeof(std::int32_t));
  writer.put(std::string_view(group.name, group.name_bytes));
}

}  // namespace tessera::collective
