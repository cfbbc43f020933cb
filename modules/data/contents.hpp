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
};

/// The kinds, in an order for errors.
const std::vector<std::string>& dropped_kinds();

/// What of a conversation is not in the text that a template made of it, and `unread` gets the
/// further members of messages that are not. White space does not count, and contents may be
/// escaped as in JSON, HTML or Python. `begins`: of each message the byte at which it begins, where
/// that is known.
std::vector<DroppedContent> dropped_contents(const Conversation& conversation,
                                             std::string_view text,
                                             const std::vector<std::optional<std::size_t>>& begins,
                                             std::set<std::string>& unread);

}  // namespace tessera::data
