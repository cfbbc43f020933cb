module;
#include <nlohmann/json_fwd.hpp>
module tessera.app.server:request_fields;

import tessera.app.base;

// The members of a JSON object that a client has sent.

namespace tessera::app {

/// The object in a request's body. Errors (input): it is none, or is too large or too deep.
nlohmann::json request_object(std::string_view body);

/// Whether it is a whole number in this range.
bool is_count(const nlohmann::json& value, std::int64_t low, std::int64_t high);

/// Reads members by their names. Who asks for a member has read it, and in the end one that nobody
/// has read is refused: a field that is ignored would change the answer in silence. `null` is as if
/// the member was not there. Errors are of kind input and name the member.
class RequestFields {
 public:
  /// The object must outlive it. `place`: what stands before names in errors ("messages.").
  explicit RequestFields(const nlohmann::json& object, std::string place = {})
      : object_(object), place_(std::move(place)) {}
  RequestFields(const RequestFields&) = delete;
  RequestFields& operator=(const RequestFields&) = delete;

  /// Null: it is not there.
  const nlohmann::json* find(const char* name);
  /// Errors: the value has another type.
  void read(const char* name, double& into);
  void read(const char* name, bool& into);
  void read(const char* name, std::string& into);
  /// Errors: the value is no whole number of this range.
  void read(const char* name, std::int64_t low, std::int64_t high, std::int64_t& into);
  /// Ids of tokens below `vocab`. Error: the value is no list of at most so many.
  std::vector<std::int64_t> read_ids(const char* name, std::int64_t vocab, std::size_t most);
  /// Members without an effect on the answer.
  void ignore(std::initializer_list<const char*> names);
  /// Members that are not supported, and may be there where they ask for nothing: 0, false, empty.
  void ignore_empty(std::initializer_list<const char*> names);
  /// A member that may only have this value.
  void only(const char* name, const nlohmann::json& expected, const char* text);
  /// Error: there is a member that nobody has read.
  void check_rest() const;

  [[noreturn]] void refuse(const char* name, const std::string& expected) const;

 private:
  const nlohmann::json& object_;
  std::string place_;
  std::set<std::string> read_;
};

}  // namespace tessera::app
