// The conversation of a record: its messages, and what a template may use besides them.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::data {

enum class Role : std::uint8_t { system, user, assistant, tool };
inline constexpr std::size_t role_count = 4;

const char* name_of_role(Role role);
/// Error (input): the message has no role that is known.
Role role_of(const nlohmann::json& message, std::size_t number);

struct Message {
  Role role = Role::user;
  nlohmann::json json = {};
  std::vector<std::string> texts = {};  // of its content
  bool trained = true;  // false: the record says that this answer is not to be learned
};

struct Conversation {
  std::vector<Message> messages;
  nlohmann::json tools;          // a list; null: there are none
  std::string text;              // what the template gets: a JSON object
  std::set<std::string> unread;  // members of the record that nothing reads
};

/// How the contents of a template's messages are given to it.
struct TemplateContents {
  /// By role: the template takes lists of parts; else their texts are joined.
  std::array<bool, role_count> takes_parts = {};
  /// By role: the template takes texts; else a text is the one part of a list.
  std::array<bool, role_count> takes_texts = {true, true, true, true};
  /// Members of records that are variables of the template.
  std::vector<std::string> members = {};
};

using WrittenMembers = std::vector<std::pair<std::string, std::string_view>>;

/// `messages`, as they are written, with the record's other members. Errors (input): messages that
/// do not alternate, end with a question, or have an empty answer; marks that are not understood;
/// members that would change the text, or what is trained, and that are not supported.
Conversation conversation_of(const WrittenMembers& record,
                             const std::vector<std::string_view>& messages,
                             const TemplateContents& contents);

/// Calls `visit` with every text within a value, and every name of a member.
void for_each_text(const nlohmann::json& value,
                   const std::function<void(const std::string&)>& visit);

}  // namespace tessera::data
