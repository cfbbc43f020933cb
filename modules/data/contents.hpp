// Whether a template has written what a conversation says.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conversations.hpp"

namespace tessera::data {

/// A content that is not in the text.
struct DroppedContent {
  std::string kind;  // "system", "content", "reasoning", "tool_calls", "tool_results", "tools"
  std::size_t message = 0;
  std::string text;
  bool after_end = false;  // it is in the text, after the end of what is trained
};

/// Bytes of the text between which a message is, where they are known.
struct MessagePlace {
  std::optional<std::size_t> begin = {};
  std::optional<std::size_t> end = {};
};

/// The kinds, in an order for errors.
const std::vector<std::string>& dropped_kinds();

/// What of a conversation is not in the text that a template made of it, and `unread` gets the
/// further members of messages that are not. White space does not count, and contents may be
/// escaped as in JSON, HTML or Python. `places`: of each message.
std::vector<DroppedContent> dropped_contents(const Conversation& conversation,
                                             std::string_view text,
                                             const std::vector<MessagePlace>& places,
                                             std::set<std::string>& unread);

}  // namespace tessera::data
