module;
#include <nlohmann/json_fwd.hpp>
module tessera.data:records;

import tessera.base;

// Members of the records of JSONL files.

namespace tessera::data {

/// A record. Errors (input), without a place: it is not a JSON object in UTF-8.
nlohmann::json parsed_record(std::string_view record);

/// A member that is a text. Error (input): it is not.
const std::string& text_member(const nlohmann::json& record, const char* name);

/// Error (input): the record lacks `name` or `label`.
void require_labelled(const nlohmann::json& record, const char* name);

/// The name of a class: a text of 1 to 200 bytes, or a whole number, as its digits. Errors (input)
/// that begin with `what`: it is neither.
std::string label_of(const nlohmann::json& value, const char* what);
/// That of a record, its member `label`.
std::string label_member(const nlohmann::json& record);

/// The members of a record that are not among those that are read.
std::set<std::string> unread_members(const nlohmann::json& record,
                                     std::initializer_list<std::string_view> read);

}  // namespace tessera::data
