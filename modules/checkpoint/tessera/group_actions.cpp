module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.collective;
import :group_actions;

namespace tessera::checkpoint_detail {
namespace {

std::vector<std::int64_t> all_lengths(collective::Communicator& group, std::int64_t own) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(group.size()));
  group.all_gather(&own, lengths.data(), 1, DType::i64);
  return lengths;
}

}  // namespace

collective::Communicator& group_named(const char* name) {
  collective::World& world = collective::World::current();
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.communicator(ranks, name);
}

std::vector<std::string> gather_texts(collective::Communicator& group, const std::string& text) {
  const auto lengths = all_lengths(group, static_cast<std::int64_t>(text.size()));
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string own = text;
  own.resize(static_cast<std::size_t>(longest));
  const bool root = group.rank() == 0;
  std::string rows(root ? own.size() * lengths.size() : 0, '\0');
  group.gather(own.data(), rows.data(), longest, DType::u8, 0);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; root && rank < lengths.size(); ++rank) {
    texts.push_back(rows.substr(rank * own.size(), static_cast<std::size_t>(lengths[rank])));
  }
  return texts;
}

std::string broadcast_text(collective::Communicator& group, const std::string& text) {
  auto length = static_cast<std::int64_t>(text.size());
  group.broadcast(&length, 1, DType::i64, 0);
  std::string result = text;
  result.resize(static_cast<std::size_t>(length));
  group.broadcast(result.data(), length, DType::u8, 0);
  return result;
}

void act_together(collective::Communicator& group, const std::function<void()>& act) {
  constexpr std::size_t row = 2048;  // of a text: its first byte is 1 + the error's kind
  std::string own(row, '\0');
  const auto note = [&](ErrorKind kind, const std::string& text) {
    own[0] = static_cast<char>(1 + static_cast<int>(kind));
    std::copy_n(text.begin(), std::min(text.size(), row - 2), own.begin() + 1);
  };
  try {
    act();
  } catch (const collective::PeerFailed&) {
    throw;  // the run has failed: the ranks cannot agree any more
  } catch (const Error& error) {
    note(error.kind(), error.what());
  } catch (const std::exception& error) {
    note(ErrorKind::run, std::string("checkpoint: ") + error.what());
  }
  std::string rows(row * static_cast<std::size_t>(group.size()), '\0');
  group.all_gather(own.data(), rows.data(), static_cast<std::int64_t>(row), DType::u8);
  for (std::size_t at = 0; at < rows.size(); at += row) {
    if (rows[at] != 0) {
      const auto rank = static_cast<int>(at / row);
      std::string text = rows.c_str() + at + 1;
      if (group.size() > 1) {
        text = fmt::format("rank {}: {}", rank, text);
      }
      throw Error(ErrorFields{.wrong = std::move(text), .rank = rank},
                  static_cast<ErrorKind>(rows[at] - 1));
    }
  }
}

}  // namespace tessera::checkpoint_detail
