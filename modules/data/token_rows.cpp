module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;
import tessera.tokenize;
import :records;
import :token_rows;

namespace tessera::data {
namespace {

using Json = nlohmann::json;
using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t not_trained = -100;  // torch's ignore_index

/// The numbers of a member. Error (input): it is no list of whole numbers.
Numbers numbers_of(const Json& record, const char* name) {
  const Json& list = record.at(name);
  if (!list.is_array()) {
    fail_input({.wrong = fmt::format("'{}' is not a list of whole numbers", name)});
  }
  Numbers numbers;
  numbers.reserve(list.size());
  for (const Json& one : list) {
    if (!one.is_number_integer()) {
      fail_input({.wrong = fmt::format("'{}[{}]' is not a whole number", name, numbers.size())});
    }
    if (one.is_number_unsigned() && !std::in_range<std::int64_t>(one.get<std::uint64_t>())) {
      fail_input({.wrong = fmt::format("'{}[{}]' is too large", name, numbers.size())});
    }
    numbers.push_back(one.get<std::int64_t>());
  }
  return numbers;
}

/// A member with a number for each token; `absent` where there is none.
Numbers numbers_beside(const Json& record, const char* name, const Numbers& ids,
                       const Numbers& absent) {
  if (!record.contains(name)) {
    return absent;
  }
  Numbers numbers = numbers_of(record, name);
  if (numbers.size() != ids.size()) {
    fail_input({.wrong = fmt::format("'{}' is not as long as 'input_ids'", name),
                .expected = fmt::format("{} numbers", ids.size()),
                .got = fmt::format("{}", numbers.size())});
  }
  return numbers;
}

/// The places of the tokens that are no padding.
std::pair<std::size_t, std::size_t> range_of(const Numbers& mask) {
  const auto is_token = [](std::int64_t one) { return one == 1; };
  const auto begin = std::ranges::find_if(mask, is_token);
  const auto end = std::find_if(mask.rbegin(), mask.rend(), is_token).base();
  if (begin == mask.end() || !std::all_of(begin, end, is_token) ||
      !std::ranges::all_of(mask, [](std::int64_t one) { return one == 0 || one == 1; })) {
    fail_input({.wrong = "'attention_mask' is not 1 for all tokens but the padding at an end",
                .expected = "ones next to each other, with zeros before or after them"});
  }
  return {static_cast<std::size_t>(begin - mask.begin()),
          static_cast<std::size_t>(end - mask.begin())};
}

void check_label(std::size_t place, std::int64_t label, std::int64_t id, bool is_token) {
  if (label == not_trained) {
    return;
  }
  if (!is_token) {
    fail_input(
        {.wrong = fmt::format("'labels[{}]' is of a token that 'attention_mask' leaves out", place),
         .expected = "-100",
         .got = fmt::format("{}", label)});
  }
  if (label != id) {
    fail_input({.wrong = fmt::format("'labels[{}]' is another token than 'input_ids' has there; "
                                     "labels are not moved by a place",
                                     place),
                .expected = fmt::format("{}, or -100: not trained", id),
                .got = fmt::format("{}", label)});
  }
}

}  // namespace

Example example_of_tokens(const Json& record, std::int64_t vocabulary, TrainOn train_on) {
  const Numbers ids = numbers_of(record, "input_ids");
  if (ids.empty()) {
    fail_input({.wrong = "'input_ids' is empty"});
  }
  const Numbers labels = numbers_beside(record, "labels", ids, ids);
  const Numbers mask = numbers_beside(record, "attention_mask", ids, Numbers(ids.size(), 1));
  const auto [begin, end] = range_of(mask);
  Example out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool is_token = i >= begin && i < end;
    if (ids[i] < 0 || ids[i] >= vocabulary) {
      fail_input({.wrong = fmt::format("'input_ids[{}]' is no token of the tokenizer", i),
                  .expected = fmt::format("0 to {}", vocabulary - 1),
                  .got = fmt::format("{}", ids[i])});
    }
    if (is_token || record.contains("labels")) {  // else padding, whose label nobody has written
      check_label(i, labels[i], ids[i], is_token);
    }
    if (is_token) {
      out.ids.push_back(static_cast<tokenize::TokenId>(ids[i]));
      out.trained.push_back(train_on == TrainOn::all || labels[i] != not_trained ? 1 : 0);
    }
  }
  out.unread = unread_members(record, {"input_ids", "labels", "attention_mask"});
  return out;
}

}  // namespace tessera::data
